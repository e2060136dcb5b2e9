"""The host process: where it listens, what it reports, and what its death does."""

from __future__ import annotations

import time

import pytest

from tests.children.host import MIB, exists
from tfmem.runtime import host
from tfmem.runtime.limited import Outcome, run_limited

pytestmark = pytest.mark.memory


def run(check: str, *args: str) -> Outcome:
    return run_limited(f"tests.children.host:{check}", *args, limit_bytes=400 * MIB, timeout=100)


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


def test_what_is_older_than_the_connection_is_assigned_and_found_as_before():
    outcome = run("older")
    assert outcome.status == "ok", outcome.error + outcome.output
    facts = outcome.result
    mib = facts["before"][2]
    assert facts["before"] == [1, 2, mib]
    assert facts["within"] == [2, 4, mib]
    assert facts["word"] == 7
    assert facts["options"] == [3, 6, mib]
    assert facts["unsorted"] == [[4, 8, mib]] * 3


def test_it_ends_with_its_block_and_another_may_start(life):
    assert life["ended"]
    assert life["lost"].startswith("FailedPreconditionError")
    assert "lost with the process that it was in" in life["lost"]
    assert (life["near"], life["given"]) == ("/job:localhost/replica:0/task:0/device:CPU:0", 1)
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


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("copies")
    outcome = run("copies", str(folder))
    assert outcome.status == "ok", outcome.error + outcome.output
    assert not list(folder.iterdir())
    return outcome.result


def test_one_that_keeps_copies_is_started_again_with_its_variables(copies):
    between, after, within, home = copies["values"]
    assert copies["placed"] == 6
    assert (between, after) == ([3] * 6, [4] * 6)
    assert within == home == [within[0]] * 6
    for error in (copies["between"], copies["within"], copies["moved"]):
        assert error.startswith("HostMemoryError")
        assert "ended with signal SIGKILL" in error
        assert "started again" in error
        assert "variables there are as they were copied last" in error
    assert copies["seconds"] < 10


def test_its_variables_are_those_of_the_last_step_that_returned(copies):
    ahead, steps = copies["steps"]
    assert steps > 1
    assert ahead - steps in (0, 1)  # what is on the device may have been updated once more


def test_what_moved_there_is_copied_and_comes_home(copies):
    assert copies["late"] == 1
    assert copies["home"] == 6


def test_threads_keep_copies_beside_one_another(copies):
    assert copies["beside"] == 40


def test_variables_that_no_step_has_updated_are_named_and_have_no_value(copies):
    assert "1 that no step had updated are lost (forgotten:0)" in copies["between"]
    is_there, error = copies["forgotten"]
    assert not is_there
    assert error.startswith("FailedPreconditionError")


def test_copies_that_cannot_be_written_are_an_error_and_nothing_moves(copies):
    assert copies["full"].startswith("HostMemoryError: 1 variables on the host could not be copied")
    assert "host_process(copies=...)" in copies["full"]
    assert copies["stayed"]


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
    assert "name a folder that is there" in refusals["folder"]
    assert all(refusals[name].startswith("Error: ") for name in ("slow", "broken", "small"))


def test_it_is_refused_where_tensorflow_could_not_connect(refusals):
    assert "while a function is traced" in refusals["tracing"]
    assert "jobs: other" in refusals["cluster"]
    assert "name one of its devices" in refusals["cluster"]


def test_it_ends_when_its_owner_is_killed_and_leaves_no_copies(tmp_path):
    outcome = run("orphan", str(tmp_path))
    assert (outcome.status, outcome.error) == ("crashed", "ended by signal SIGKILL")
    pid = int(outcome.output.split()[0])
    deadline = time.monotonic() + 5
    while (exists(pid) or list(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not exists(pid)
    assert not list(tmp_path.iterdir())


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


def test_what_was_planned_for_one_that_is_gone_is_planned_anew():
    outcome = run("steps_after_its_block")
    assert outcome.status == "ok", outcome.error + outcome.output
    facts = outcome.result
    assert facts["evicted"][0] > 0
    assert len(set(facts["losses"])) == 1
    assert "Error: there is no device '/job:tfmem_host" in facts["named"]
