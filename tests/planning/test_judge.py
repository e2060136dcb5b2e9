"""When the original is left alone: only if its nodes may run in any order."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.support.graphs import DEVICE, training_chain, unet
from tfmem.costs.static import static_costs
from tfmem.costs.types import Costs
from tfmem.errors import BudgetError
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.planning.candidate import FILLED_IN_ANY_ORDER
from tfmem.planning.judge import original
from tfmem.planning.nested import overlapping
from tfmem.planning.request import Request
from tfmem.planning.search import choose
from tfmem.simulation.callers import with_bodies

RECOMPUTE = frozenset({"order", "recompute"})


def left_alone(graph: Graph, costs: Costs, bodies: Bodies | None = None) -> int:
    """The least budget that the original keeps in whatever order its nodes run."""
    found = original(graph, costs, Request(device=DEVICE), bodies or {})
    return math.ceil((found.worst_bytes + found.loose_bytes) / FILLED_IN_ANY_ORDER)


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_budget_that_any_order_keeps_changes_nothing(lanes: int) -> None:
    graph = training_chain(10)
    costs = dataclasses.replace(static_costs(graph, flops={}, device=DEVICE), lanes=lanes)
    enough = left_alone(graph, costs)
    for budget, is_left_alone in ((enough, True), (enough - 1, False)):
        made = choose(graph, costs, Request(device=DEVICE, budget=budget, techniques=RECOMPUTE))
        assert ("is within the budget" in made.plan.reason) == is_left_alone
        assert bool(made.plan.order) != is_left_alone
    assert lanes == 1 or enough > left_alone(graph, dataclasses.replace(costs, lanes=1))


@pytest.mark.parametrize("turns", [1, 10])
def test_the_original_is_left_alone_if_turns_that_overlap_keep_the_budget_too(turns: int) -> None:
    graph = parse("""
        x = _Arg() [1024] @cpu
        a = MatMul(x:0, x:0) [2048] @cpu
        w = While(a:0, x:0) [2048, 1024] @cpu
        y = MatMul(w:1) [1024] @cpu
        return y:0""")
    condition = parse("""
        i = _Arg() [2048] @cpu
        x = _Arg() [1024] @cpu
        c = Any(i:0) [1] @cpu
        return c:0""")
    body = parse("""
        i = _Arg() [2048] @cpu
        x = _Arg() [1024] @cpu
        h = MatMul(i:0, x:0) [4096] @cpu
        j = MatMul(h:0) [2048] @cpu
        return j:0, x:0""")
    bodies = {"w": (Body(condition), Body(body, turns=turns))}
    costs = with_bodies(static_costs(graph, flops={}, device=DEVICE), graph, bodies)
    found = original(graph, costs, Request(device=DEVICE), bodies)
    alone = original(graph, costs, Request(device=DEVICE), {})
    more = overlapping(bodies, costs, DEVICE)
    assert more == (turns - 1) * (4096 + 2048)
    assert found.loose_bytes - alone.loose_bytes == more
    within = {"v": (Body(condition), Body(graph, bodies=bodies, turns=3))}
    assert overlapping(within, costs, DEVICE) >= 3 * more
    enough = left_alone(graph, costs, bodies)
    for budget, is_left_alone in ((enough, True), (enough - 1, False)):
        request = Request(device=DEVICE, budget=budget, techniques=RECOMPUTE)
        made = choose(graph, costs, request, bodies=bodies).plan
        assert ("is within the budget" in made.reason) == is_left_alone


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (1, r"because buffers that come and go leave holes in the 192.0 KiB that are free"),
        (6, r"for which the 192.0 KiB of free chunks are too scattered"),
    ],
)
def test_a_refusal_tells_holes_that_the_step_makes_from_those_that_are_there(
    parts: int, said: str
) -> None:
    graph = unet(8, 2**16)
    costs, free = static_costs(graph, flops={}, device=DEVICE), 3 * 2**16
    budget = free + sum(sum(node.nbytes) for node in graph.nodes if node.is_input)
    request = Request(device=DEVICE, budget=budget, techniques=RECOMPUTE)
    with pytest.raises(BudgetError, match=said):
        choose(graph, costs, dataclasses.replace(request, room=parts * (free // parts,)))
