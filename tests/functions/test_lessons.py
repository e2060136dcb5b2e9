"""What is learned of a step that took too much: how many bytes the next plan leaves free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.captures import LOCAL
from tfmem.costs.types import Costs
from tfmem.functions import lessons
from tfmem.functions.entry import Planned
from tfmem.functions.failures import Failure
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.candidate import FILLED_IN_ANY_ORDER
from tfmem.planning.request import Decision, Request
from tfmem.simulation.simulate import Simulation

BUDGET = 1000


def planned(worst: int = 950, order: tuple[str, ...] = ("a", "b", "c"), **asked: int) -> Planned:
    """A plan whose three nodes are predicted to have 400, 800 and 200 bytes in use, padded or not.

    What others hold, and what is left free, counts in the prediction.
    """
    timeline = np.array([400, 800, 200])
    simulation = Simulation(800, "b", timeline, 1.0, 0, (), ("a", "b", "c"), 800)
    worst += asked.get("bytes_beside", 0) + asked.get("bytes_unforeseen", 0)
    decision = Decision(Plan(order=order, device=LOCAL), simulation, simulation, worst)
    request = Request(device=LOCAL, budget=BUDGET, **asked)
    return Planned(Graph(()), Costs(), decision, request)


def test_what_was_measured_above_the_prediction_is_left_free() -> None:
    assert lessons.after_excess(planned(worst=950), 1100) == 150
    assert lessons.after_excess(planned(worst=850, bytes_beside=100), 1100) == 150
    assert lessons.after_excess(planned(worst=850, bytes_unforeseen=100), 1100) == 250


def test_what_was_learned_is_not_forgotten() -> None:
    assert lessons.after_excess(planned(worst=700, bytes_unforeseen=300), 1001) == 301
    failure = Failure("", ("c",), 100, LOCAL, 900)
    assert lessons.after_failure(planned(bytes_unforeseen=300), failure) > 300


def test_an_original_is_ordered_before_more_is_said_of_it() -> None:
    """It is left as it is only if what may be in use in any order fills no more of what is left."""
    original = planned(worst=540, order=())
    original = replace(original, decision=replace(original.decision, loose_bytes=189))
    assert lessons.after_excess(original, 1500) == 29
    assert (BUDGET - 29) * FILLED_IN_ANY_ORDER < 540 + 189 <= (BUDGET - 28) * FILLED_IN_ANY_ORDER
    assert lessons.after_failure(original, Failure("", ("a",), 500, LOCAL, 900)) == 29
    # Nothing was left that would have been better, so there is nothing less to be asked for.
    assert lessons.after_excess(planned(worst=900, order=()), 1500) == 101


@pytest.mark.parametrize(
    ("node", "nbytes", "peak", "left"),
    [
        ("b", 50, 900, 950),  # as much as predicted: what was predicted for it is too much
        ("b", 250, 1000, 760),  # 1250 where 950 were predicted: 760 will be 1000
        ("a", 50, 950, 475),  # half of the plan was predicted for it
        ("unknown", 50, 900, 950),
    ],
)
def test_a_plan_is_to_stay_below_what_was_predicted_for_the_node_that_failed(
    node: str, nbytes: int, peak: int, left: int
) -> None:
    failure = Failure("", (node,), nbytes, LOCAL, peak)
    expected = BUDGET - min(left, lessons.TIGHTER * BUDGET)
    assert lessons.after_failure(planned(), failure) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("node", "nbytes", "left_free"), [("b", 512, 512), ("b", 256, 60), ("b/then/c", 1024, 1024)]
)
def test_a_buffer_that_nothing_foresaw_is_left_free_as_a_whole(
    node: str, nbytes: int, left_free: int
) -> None:
    graph = parse(f"""
        a = MatMul() [100] @{LOCAL}
        b = If(a:0) [200] @{LOCAL}
        return b:0""")
    one = replace(planned(), graph=graph)
    assert lessons.after_failure(one, Failure("", (node,), nbytes, LOCAL, 0)) == left_free
    one = replace(one, request=replace(one.request, bytes_unforeseen=10))
    assert lessons.after_failure(one, Failure("", (node,), nbytes, LOCAL, 0)) >= left_free + 9


def test_without_statistics_each_plan_is_a_little_tighter() -> None:
    free = 0
    for _ in range(3):
        before, free = free, lessons.after_failure(planned(bytes_unforeseen=free), Failure(""))
        assert BUDGET - free <= lessons.TIGHTER * (BUDGET - before)


def test_a_limit_below_the_budget_is_what_there_is() -> None:
    request = Request(device=LOCAL, budget=1000, room=(900,))
    limited = replace(planned(), request=request)
    failure = Failure("", ("b",), 100, LOCAL, 850)
    assert lessons.after_failure(limited, failure) == 900 - int(lessons.TIGHTER * 900)
