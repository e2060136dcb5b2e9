"""Arguments that are not in the memory of a device when that is looked at."""

from __future__ import annotations

import pytest

from tfmem.runtime.limited import run_limited

NBYTES = 96 * 256 * 4


@pytest.mark.memory
def test_what_is_not_there_yet_is_held_free() -> None:
    outcome = run_limited(
        "tests.children.arguments:absent_arguments", limit_bytes=2**28, timeout=120
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    nothing, all_of_it = [0, 0], [NBYTES, NBYTES]
    assert outcome.result == {
        "own": nothing,
        "halves": nothing,
        "truths": nothing,
        "array": all_of_it,
        "elsewhere": all_of_it,
        "small": nothing,
    }


@pytest.mark.memory
def test_what_stays_in_the_memory_of_numpy_is_held_in_each_step() -> None:
    outcome = run_limited(
        "tests.children.arguments:adopted_arguments", limit_bytes=2**28, timeout=120
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    adopted = {"adopted": NBYTES, "several": 2 * NBYTES, "twice": NBYTES}
    assert outcome.result == {**adopted, "own": 0, "small": 0, "as much as before": 0}


@pytest.mark.memory
def test_what_stands_in_for_an_argument_lies_and_lives_as_if_it_were_the_argument() -> None:
    check = "tests.children.arguments:arguments_of_both_kinds"
    outcome = run_limited(check, limit_bytes=2**28, timeout=120)
    assert outcome.status == "ok", outcome.error + outcome.output
    as_real = dict.fromkeys(("held between steps", "beside the last", "where it was"), True)
    assert outcome.result == {**as_real, "gone with its tensor": 2**17}


@pytest.mark.memory
def test_what_lies_in_a_region_between_arrays_is_the_allocators() -> None:
    outcome = run_limited("tests.children.arguments:beside_arrays", limit_bytes=2**27, timeout=120)
    assert outcome.status == "ok", outcome.error + outcome.output
    sure = {"near": True, "as large as a region": True}
    kinds = ("all of the made", "chunks", "constants", "copies", "again", "what fills a region")
    own = dict.fromkeys((*kinds, "all that fill a region"), True)
    assert outcome.result == {**sure, **own, "one of the adopted": False}


@pytest.mark.memory
def test_who_lets_go_of_arguments_before_the_next_ones_has_these_in_their_places() -> None:
    check = "tests.children.arguments:arguments_let_go_before"
    outcome = run_limited(check, limit_bytes=2**28, timeout=120)
    assert outcome.status == "ok", outcome.error + outcome.output
    assert outcome.result == {"let go": [True, True], "held": [False]}


@pytest.mark.memory
def test_where_first_arguments_lie_is_known() -> None:
    check = "tests.children.arguments:where_arguments_lie"
    outcome = run_limited(check, limit_bytes=2**28, timeout=120)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    first, second, padded, unsure, adopted = found["passed"]
    assert [name for name, is_there in found["passed"].items() if not is_there] == [adopted]
    sure = [found["lying"][name] for name in (first, second, padded, adopted)]
    assert sure == [[nbytes, nbytes] for nbytes in found["made"]]
    assert found["made"][3] >= 2**19
    least, most = found["lying"][unsure]
    assert least == 2**17
    assert least <= most < 2 * least
    assert second in found["beside"]
    assert found["above"]
    assert found["kept"]
    assert found["gone with its tensor"] == found["made"][3]
