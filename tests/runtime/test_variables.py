"""Variables that move, all or none, and variables that are made on the host."""

from __future__ import annotations

import pytest

from tests.children.host import MIB
from tfmem.runtime.limited import run_limited

pytestmark = pytest.mark.memory


def run(check: str, limit_mib: int, module: str = "variables") -> dict:
    outcome = run_limited(
        f"tests.children.{module}:{check}", limit_bytes=limit_mib * MIB, timeout=100
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.fixture(scope="module")
def moving() -> dict:
    return run("moving", 800)


@pytest.fixture(scope="module")
def failing() -> dict:
    return run("all_or_nothing", 400)


@pytest.fixture(scope="module")
def made() -> dict:
    return run("made_on_the_host", 150)


@pytest.fixture(scope="module")
def refusals() -> dict:
    return run("refusals", 100)


def test_a_moved_variable_is_the_same_object_with_the_same_value(moving):
    assert moving["device"]
    assert moving["identity"]
    assert moving["value"]
    assert moving["back"] == moving["pinned"] == [True, True]


def test_moving_frees_the_old_memory_and_needs_no_second_copy(moving):
    assert moving["freed"] < MIB
    assert moving["peak"] < 44 * MIB  # one piece of 32 beside the variable's 96
    assert moving["peak_back"] < 164 * MIB  # 32, and 96 in a chunk of 128
    assert moving["read_back"] < MIB  # it is no copy, as that of other variables
    assert moving["host_bytes"] < MIB


@pytest.mark.parametrize("when", ["old", "old_on_host"])
def test_functions_traced_before_a_move_use_the_variable_where_it_is(moving, when):
    """To the host and back: what they read, what they write, and gradients."""
    _, read = moving["new"]
    assert read > 0
    assert moving[when] == {"read": read, "gradient": 2.0, "add": 5.0, "assign": 0.0}


def test_functions_that_call_others_traced_before_use_it_too(moving):
    assert moving["nested"][0] == moving["nested"][1]


def test_functions_traced_after_the_move_work(moving):
    new, first = moving["new"]
    assert new == first
    assert moving["moves"] == [0, 1]


def test_checkpoints_are_right_while_an_old_function_lives(moving):
    assert moving["checkpoint"]
    assert moving["checkpoint_back"]


def test_a_move_that_the_host_cannot_take_moves_nothing(failing):
    assert failing["full"].startswith("HostMemoryError")
    assert "out of memory" in failing["full"]
    assert failing["kept"]
    assert failing["one"]


def test_a_move_of_which_one_group_fails_moves_no_group(failing):
    assert failing["groups"].startswith("HostMemoryError")
    assert failing["kept_groups"]


def test_a_move_to_a_dead_host_moves_nothing(failing):
    assert failing["dead"].startswith("HostMemoryError")
    assert "signal SIGKILL" in failing["dead"]
    assert failing["kept_dead"]
    assert "there is no device 'GPU:7'; there are /job:localhost" in failing["unknown"]


def test_what_cannot_be_moved_is_named(refusals):
    assert "only variables with one resource handle" in refusals["tensor"]
    assert "graph mode" in refusals["graph"]
    assert "while a function is traced" in refusals["traced"]
    assert "enter tfmem.host_process()" in refusals["scope"]


def test_large_variables_are_made_on_the_host_and_never_touch_the_device(made):
    assert made["plain"] == [True, True, False]
    assert made["peak"] < 16 * MIB


@pytest.mark.parametrize("kind", ["tf_keras", "keras", "lazy"])
def test_layers_and_traced_functions_make_theirs_on_the_host(made, kind):
    assert made[kind] == [True, False]


def test_a_variable_that_the_host_has_no_room_for_is_not_made(made):
    assert made["too large"].startswith(
        "HostMemoryError: a variable of 4096.00 GiB has no room on "
    )


def test_initial_values_are_those_made_on_the_device(made):
    assert made["same"] == [True, True]
    assert made["outside"] == [False, False, False]


def test_slots_made_while_tracing_are_on_the_host(made):
    for slots in made["slots"]:
        assert len(slots) >= 2
        assert all(slots)
    assert made["keras_moved"] == [False]


def test_what_a_nested_function_makes_moves_home_with_its_trace(made):
    """Keras 3 makes its optimizers' slots in one, which is not traced again with the step."""
    assert made["nested"] == [MIB // 2, MIB, True]


def test_those_that_share_a_buffer_get_theirs_before_room_is_short() -> None:
    before, after, updated = run("crowded", 200)
    assert after - before == 16 * MIB
    assert updated == after


def test_variables_that_share_a_buffer_get_one_each_where_there_is_room() -> None:
    facts = run("shared", 200)
    before, after, updated = facts["bytes"]
    assert before == pytest.approx((16 + 128) * MIB, abs=MIB)
    assert after == pytest.approx((32 + 128) * MIB, abs=MIB)
    assert updated == pytest.approx(after, abs=MIB)
    assert facts["read"] == [0, pytest.approx(16 * MIB, abs=MIB // 2), 0]
    assert facts["values"] == [True, 32 * MIB]


def test_no_time_is_lost_where_what_is_free_is_too_scattered_for_a_buffer_of_its_own() -> None:
    """TensorFlow looks for it for ten seconds."""
    facts = run("scattered", 200)
    assert facts["free"] > 5 * 16 * MIB
    assert facts["bytes"] == pytest.approx(5 * MIB // 4, abs=MIB // 4)
    assert facts["seconds"] < 5


@pytest.fixture(scope="module")
def numbers() -> dict:
    return run("go_on", 200, "numbers")


def test_random_numbers_go_on_in_a_smaller_batch_and_where_variables_were_home_in_between(numbers):
    """Their kernels count the numbers that they gave out; a function of its own has others."""
    assert len(numbers["placed"]) == 1
    assert numbers["placed"][0] > 0
    assert numbers["away"] == [numbers["placed"][0], 0] * len(numbers["losses"])
    assert numbers["is_kept"]
    assert numbers["anew"] == [True, True]
    assert numbers["losses"] == pytest.approx(numbers["expected"], rel=1e-6)


def test_random_numbers_of_each_signature_go_on_where_others_move_a_variable(numbers):
    """All traces are made anew then, not that of the next call alone."""
    assert numbers["in turn"] == pytest.approx(numbers["in turn expected"], rel=1e-6)
