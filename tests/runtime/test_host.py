"""The host process: where it listens, what it reports, and what its death does."""

from __future__ import annotations

import time

import pytest

from tests.children.host import MIB, exists
from tfmem.runtime import host
from tfmem.runtime.limited import Outcome, run_limited

pytestmark = pytest.mark.memory


def run(check: str) -> Outcome:
    return run_limited(f"tests.children.host:{check}", limit_bytes=400 * MIB, timeout=100)


@pytest.fixture(scope="module")
def life() -> dict:
    outcome = run("life")
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.fixture(scope="module")
def death() -> dict:
    outcome = run("death")
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.fixture(scope="module")
def refusals() -> dict:
    outcome = run("refusals")
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


def test_one_host_process_is_shared_by_nested_blocks(life):
    assert life["device"] == "/job:tfmem_host/replica:0/task:0/device:CPU:0"
    assert life["again"]
    assert life["still"]


def test_both_servers_listen_on_the_loopback_interface_only(life):
    if life["listening"] is None:
        pytest.skip("needs ss, of iproute2")
    assert len(life["listening"]) == 2
    assert all(address.startswith("*%lo:") for address in life["listening"])


def test_it_reports_its_own_memory_under_its_own_limit(life):
    assert 100 * MIB <= life["held"] < 200 * MIB  # the allocator may give more than was asked
    peak, resident, limit = life["memory"]
    assert peak >= 100 * MIB
    assert resident > 100 * MIB
    assert limit == 300 * MIB  # the owner's is 400 MiB


def test_a_function_sees_what_was_assigned_before_its_call(life):
    assert life["order"] == 0


def test_a_full_host_is_named_and_stays_usable(life):
    assert life["full"].startswith("HostMemoryError")
    assert "limit 314,572,800 bytes" in life["full"]
    assert "memory_limit" in life["full"]
    assert life["usable"] == 0


def test_variables_and_functions_older_than_the_connection_work(life):
    assert life["before"] == [1000, 2]
    assert life["after"] == 2000


def test_it_ends_with_its_block_and_another_may_start(life):
    assert life["ended"]
    assert "invalid device" in life["lost"] or "unknown device" in life["lost"]
    assert life["second"] == 10


def test_its_death_in_a_step_is_a_clear_error_within_seconds(death):
    for error in (death["error"], death["next"], death["asked"]):
        assert error.startswith("HostMemoryError")
        assert "ended with signal SIGKILL" in error
        assert "restore a checkpoint" in error
    assert death["seconds"] < 5


def test_its_death_leaves_local_variables_intact_and_can_be_recovered_from(death):
    assert death["intact"]
    assert death["same"]
    assert death["restarted"]


def test_one_that_a_signal_has_stopped_goes_on_and_nothing_is_lost():
    outcome = run("pause")
    assert outcome.status == "ok", outcome.error + outcome.output
    assert outcome.result["result"] == 4
    assert outcome.result["value"] == 2
    assert 1 < outcome.result["seconds"] < 10
    assert "does not answer" in outcome.result["late"]
    assert outcome.result["fresh"]


def test_a_host_process_that_cannot_start_says_what_failed(refusals):
    assert "did not serve within 0.01 s" in refusals["slow"]
    assert "start_timeout" in refusals["slow"]
    assert "exit status 1" in refusals["broken"]
    assert "No module named 'no_such_tensorflow'" in refusals["broken"]
    assert "is less than 1 MiB" in refusals["small"]
    assert all(refusals[name].startswith("Error: ") for name in ("slow", "broken", "small"))


def test_it_is_refused_where_tensorflow_could_not_connect(refusals):
    assert "while a function is traced" in refusals["tracing"]
    assert "jobs: other" in refusals["cluster"]
    assert "name one of its devices" in refusals["cluster"]


def test_it_ends_when_its_owner_is_killed():
    outcome = run("orphan")
    assert (outcome.status, outcome.error) == ("crashed", "ended by signal SIGKILL")
    pid = int(outcome.output.split()[0])
    deadline = time.monotonic() + 5
    while exists(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not exists(pid)


def test_what_a_container_has_left_is_what_is_free(tmp_path, monkeypatch):
    most, used, statistics = (tmp_path / name for name in ("max", "current", "stat"))
    files = (str(most), str(used), str(statistics), "inactive_file")
    monkeypatch.setattr(host, "_CONTAINERS", (files,))
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    machine = host.free_bytes(here)
    most.write_text(f"{100 * MIB}\n")
    used.write_text(f"{70 * MIB}\n")
    statistics.write_text(f"anon 5\ninactive_file {10 * MIB}\nactive_file 7\n")
    assert host.free_bytes(here) == 40 * MIB
    most.write_text("max\n")
    assert host.free_bytes(here) == pytest.approx(machine, rel=0.2)


def test_other_errors_pass_the_guard():
    assert run("unrelated").result == "InvalidArgumentError"
