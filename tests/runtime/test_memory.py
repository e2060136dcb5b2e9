"""Measured bytes and seconds, device names and limits, and runs under a hard limit."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import tensorflow as tf

from tests.children import memory
from tests.children.host import MIB
from tfmem import Error, OutOfMemoryError
from tfmem.bridge.traces import HeapEvent
from tfmem.runtime import heap
from tfmem.runtime import memory as allocators
from tfmem.runtime.limited import Elsewhere, Outcome, is_out_of_memory, run_limited
from tfmem.simulation.allocator import parted

pytestmark = pytest.mark.memory


def run(target, *args, limit_mib: int = 200, timeout: float = 60, **options) -> Outcome:
    return run_limited(target, *args, limit_bytes=limit_mib * MIB, timeout=timeout, **options)


@pytest.fixture(scope="module")
def figures() -> dict:
    outcome = run(memory.figures)
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


def test_peak_and_current_bytes_are_those_of_the_measured_steps(figures):
    assert 16 * MIB <= figures["current"] < 34 * MIB  # the variable; a chunk is given whole
    assert 48 * MIB <= figures["peak"] <= 130 * MIB
    assert figures["peak"] > figures["current"]


def test_steps_are_timed_and_their_losses_kept(figures):
    assert 0 < figures["seconds"] < 5
    assert figures["scalars"] == [[2.0]] * 3
    assert figures["value"] == 8.0  # one call to warm up, three measured
    assert "at least one step" in figures["no steps"]


def test_a_limit_is_in_units_of_two_to_the_twenty(figures):
    assert figures["limit"] == 200 * MIB
    assert figures["device"] == figures["scarce"] == "/job:localhost/replica:0/task:0/device:CPU:0"


def test_device_names_are_completed_or_refused_with_a_list():
    found = run(memory.names).result
    assert found["same"] == "/job:localhost/replica:0/task:0/device:CPU:0"
    listed = "there are /job:localhost/replica:0/task:0/device:CPU:0"
    for name in ("GPU:5", "/job:ps/device:CPU:0"):
        assert found[name] == f"Error: there is no device {name!r}; {listed}"
    for name in ("banana", ""):
        assert found[name] == f"Error: {name!r} is no device name; {listed}"
    assert "no device name" in found["none"]


@pytest.mark.parametrize("reserve", [False, True])
def test_reserving_lets_the_whole_limit_be_had_in_one_piece(reserve):
    outcome = run(memory.largest, limit_mib=100, reserve=reserve)
    assert outcome.result == [True, True, True, reserve], outcome.error + outcome.output


def test_running_out_of_memory_is_an_outcome():
    assert run(memory.variable_mib, 40).status == "ok"
    outcome = run(memory.variable_mib, 300)
    assert (outcome.status, outcome.result) == ("out_of_memory", None)
    assert outcome.error.startswith("ResourceExhaustedError")
    assert outcome.limit_bytes == 200 * MIB


def test_out_of_memory_is_found_among_causes_and_in_constants():
    wrapped = Error("wrapped")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)
    assert is_out_of_memory(ValueError("Cannot parse tensor from proto: dtype: DT_FLOAT"))
    assert not is_out_of_memory(Error("of memory"))
    assert is_out_of_memory(OutOfMemoryError("told anew, without its cause"))
    handling = Error("raised while another was handled")
    handling.__context__ = MemoryError()
    assert is_out_of_memory(handling)
    handling.__suppress_context__ = True  # raised from None while a user fell back to less
    assert not is_out_of_memory(handling)


def test_other_endings_are_told_apart():
    failed = run(memory.fails)
    assert (failed.status, failed.error) == ("error", "KeyError: 'of mine'")
    assert "in fails" in failed.output
    killed = run(memory.killed)
    assert (killed.status, killed.error) == ("crashed", "ended by signal SIGKILL")
    slow = run(memory.sleeps, timeout=0.5)
    assert (slow.status, slow.error) == ("timeout", "still running after 0.5 s")
    assert slow.seconds < 5


def test_a_process_answers_calls_until_one_ends_it_and_begins_anew():
    with Elsewhere(200 * MIB) as elsewhere:
        first = elsewhere.call("os:getpid", timeout=60)
        assert elsewhere.call("os:getenv", "TF_CPU_BFC_MEM_LIMIT_IN_MB", timeout=60) == "200"
        assert elsewhere.call("builtins:print", "what is printed is no answer", timeout=60) is None
        with pytest.raises(Error, match="math:sqrt: ValueError: "):
            elsewhere.call("math:sqrt", -1.0, timeout=60)
        assert elsewhere.call("os:getpid", timeout=60) == first
        with pytest.raises(Error, match="os:abort: its process ended by signal SIGABRT"):
            elsewhere.call("os:abort", timeout=60)
        second = elsewhere.call("os:getpid", timeout=60)
        with pytest.raises(Error, match="time:sleep: its process ended by signal SIGKILL"):
            elsewhere.call("time:sleep", 60, timeout=0.5)
        third = elsewhere.call("os:getpid", timeout=60)
    assert len({first, second, third, os.getpid()}) == 4
    for pid in (first, second, third):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_module_is_run_as_a_command():
    module = run("tests.children.memory", "0", "and", "more")
    assert (module.status, module.result) == ("ok", {"arguments": ["0", "and", "more"]})
    failed = run("tests.children.memory", "3")
    assert (failed.status, failed.error) == ("error", "SystemExit: 3")
    assert run("tests.no_such_module").status == "error"


def test_the_child_has_the_limit_and_what_is_asked_for():
    outcome = run(memory.environment, limit_mib=7, environment={"OF_MINE": "x"})
    assert outcome.result == ["true", "7", "x"]


def test_what_cannot_be_run_is_refused():
    with pytest.raises(Error, match="at the top level of a module"):
        run(lambda: 1)
    with pytest.raises(Error, match="less than 1 MiB"):
        run_limited(memory.killed, limit_bytes=1000, timeout=1)


def test_a_device_that_is_nearly_full_is_probed_with_less(empty_cache):
    first, again, roomy = (
        run(memory.probed, free, limit_mib=60, reserve=True) for free in (6, 6, 40)
    )
    assert first.status == "ok", first.error + first.output
    assert len(first.result) == 2
    assert min(first.result) > 1e6
    assert again.result == first.result  # which were kept
    assert roomy.result != first.result  # but not for where there is room for more


def test_no_statistics_is_an_error_with_a_remedy():
    found = run(memory.no_statistics).result
    assert "keeps no statistics" in found["without"]
    assert "TF_CPU_ALLOCATOR_USE_BFC=true" in found["without"]
    assert "before TensorFlow is imported" in found["without"]
    assert found["limit"] == "None"


def test_statistics_asked_for_too_late_are_an_error():
    code = (
        "import os, tensorflow as tf; tf.zeros([10]); "
        "os.environ['TF_CPU_ALLOCATOR_USE_BFC'] = 'true'; "
        "from tfmem.runtime import memory; memory.measure(lambda: 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "it was set after TensorFlow had allocated" in done.stderr


@pytest.mark.parametrize("reserve", [True, False], ids=["region", "growing"])
def test_free_chunks_are_measured_claimed_and_kept_apart(reserve):
    outcome = run(memory.free_chunks, reserve=reserve)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    in_use, free, unclaimed = found["first"]
    assert found["holes"][0] in free
    assert in_use + sum(free) + unclaimed == pytest.approx(found["limit"], abs=MIB // 4)
    in_use, free, unclaimed = found["claimed"]
    assert unclaimed == 0
    assert in_use + sum(free) == pytest.approx(found["limit"], abs=MIB // 4)
    largest = max(free)
    assert 5 * MIB in found["parted"]
    assert sum(2**16 - 512 <= nbytes <= 2**16 for nbytes in found["parted"]) == 2
    for nbytes in set(found["holes"]) & set(free):
        assert nbytes - 3 * 256 in found["parted"]
    for count, beside in enumerate(found["beside"], 1):  # what was freed joins none
        assert not Counter(found["parted"]) - Counter(beside)
        assert sum(beside) >= sum(found["parted"]) + 3 * MIB * count
    taken = 5 * MIB + 2 * 2**16 + 6 * 256
    assert max(found["parted"]) == pytest.approx(largest - taken, abs=2048)
    assert max(found["joined"]) == pytest.approx(largest, abs=2048)


@pytest.mark.parametrize("grains", [(8, 24), (24, 8), (16, 16), (16, 17)])
def test_the_largest_chunk_is_parted_beside_others_that_are_nearly_as_large(grains):
    """Of two that are as large it is the second."""
    outcome = run(memory.chunks_alike, *grains, limit_mib=32, reserve=True)
    assert outcome.status == "ok", outcome.error + outcome.output
    before, after = outcome.result["before"], outcome.result["after"]
    first, second = (8 * MIB + 256 * count for count in grains)
    assert [nbytes for nbytes in before if nbytes > 7 * MIB] == [first, second]
    expected = [size for parts in parted(before, (2**16, MIB), ()) for size in parts]
    assert [nbytes for nbytes in after if nbytes > 2**15] == expected
    assert MIB in expected


@pytest.mark.parametrize("reserve", [True, False], ids=["region", "growing"])
def test_where_nothing_tells_what_is_free_it_is_what_the_limit_leaves(reserve):
    outcome = run(memory.untold, reserve=reserve)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert found["profiled"] is None
    assert found["disturbed"] is None
    assert found["room"] == [pytest.approx(found["left"], abs=2**16)]
    assert found["parted"]
    assert "cannot be measured, for TensorFlow's profiler is in use" in found["told"][0]


def test_what_a_nearly_full_allocator_may_still_take_is_measured():
    outcome = run(memory.nearly_full)
    assert outcome.status == "ok", outcome.error + outcome.output
    (free, unclaimed), (left, still_unclaimed) = outcome.result
    assert sorted(left) == sorted(free)[:2] == pytest.approx([260 * 1024, 404 * 1024], abs=512)
    assert still_unclaimed == pytest.approx(unclaimed, abs=2**16)
    assert unclaimed > MIB


def test_where_nothing_is_free_no_part_of_it_is():
    """TensorFlow reports no number for a part of nothing, whatever is thought to be left."""
    full = HeapEvent(True, 2**12, 256, 256, 2**20, math.nan, "op")
    assert heap._largest_chunk(full, pool=2**21) == 0
    assert heap._largest_chunk(replace(full, fragmentation=0.25), pool=2**21) == 3 * 2**18


def test_what_would_be_folded_is_not_kept_on_the_device():
    outcome = run(memory.constants, limit_mib=400)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert not found["is noop"]
    assert found["after"] - found["before"] < MIB  # the folded one would have 8 MiB
    assert found["peak"] <= found["budget"]
    assert found["predicted"] == pytest.approx(found["peak"], rel=0.03)


def test_what_is_free_once_variables_were_copied_is_foreseen():
    outcome = run(memory.copied_back)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert found["count"] == [0, 5]
    assert found["foreseen"] == found["after"]
    assert found["equal"]


def test_a_variable_of_the_environment_lets_the_memory_of_gpus_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes before what the program says."""
    gpu = "/job:localhost/replica:0/task:0/device:GPU:0"
    monkeypatch.setattr(allocators.devices, "full_name", lambda _: gpu)
    monkeypatch.setattr(allocators, "device_limit", lambda _: 2**30)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["a GPU"])
    for told, grows, region in (
        ("true", False, None), ("false", True, 2**30), ("", True, None), ("", False, 2**30),
    ):  # fmt: skip
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", told)
        monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda _, told=grows: told)
        assert allocators.region_bytes("GPU:0") == region
