"""Plans of the functions that loops and branches run."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.support.graphs import DEVICE
from tfmem.costs.static import static_costs
from tfmem.errors import BudgetError
from tfmem.graph.bodies import Body
from tfmem.graph.text import parse
from tfmem.plan import BodyPlan, Plan
from tfmem.planning.alternatives import least_peak_order
from tfmem.planning.nested import without_budgets
from tfmem.planning.request import Request
from tfmem.planning.search import choose
from tfmem.simulation.callers import with_bodies


def plans(order: str, outer: int, inner: int) -> tuple[BodyPlan, ...]:
    """The plan of a function whose loop has a planned function itself."""
    within = BodyPlan("cond", 0, Plan(order=tuple(order), budget=inner))
    return (BodyPlan("while", 1, Plan(order=("cond",), budget=outer, bodies=(within,))),)


def test_plans_that_differ_in_budgets_alone_do_the_same() -> None:
    assert without_budgets(plans("ab", 7, 5)) == without_budgets(plans("ab", 8, 6))
    assert without_budgets(plans("ab", 7, 5)) != without_budgets(plans("ba", 7, 5))
    assert without_budgets(()) == ()


def searched(budget: int, **changes: Any) -> tuple[int, int]:
    """How often a graph that cannot keep a budget, and the body of its branch, are searched."""
    graph = parse("""
        x = _Arg() [1024] @cpu
        a = MatMul(x:0, x:0) [2048] @cpu
        b = MatMul(a:0) [65536] @cpu
        c = If(a:0, x:0) [1024] @cpu
        return c:0""")
    body = parse("""
        x = _Arg() [1024] @cpu
        h = MatMul(x:0) [4096] @cpu
        y = MatMul(h:0) [1024] @cpu
        return y:0""")
    bodies = {"c": (Body(body),)}
    costs = with_bodies(static_costs(graph, flops={}, device=DEVICE), graph, bodies)
    request = Request(
        device=DEVICE, budget=budget, techniques=frozenset({"order", "recompute"}), **changes
    )
    with (
        mock.patch("tfmem.planning.search.least_peak_order", wraps=least_peak_order) as begun,
        pytest.raises(BudgetError),
    ):
        choose(graph, costs, request, bodies=bodies)
    graphs = [call.args[0] for call in begun.call_args_list]
    return graphs.count(graph), graphs.count(body)


def test_a_graph_is_searched_once_for_bodies_that_cost_the_same() -> None:
    """What a body takes that has one order only does not depend on what is left free for it."""
    assert searched(1)[0] == 1


def test_a_body_is_searched_once_for_all_budgets_that_its_plan_keeps() -> None:
    """And once more for its least, which is all that the last budget leaves it."""
    assert searched(65536, in_order=True) == (1, 3)
