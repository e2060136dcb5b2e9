"""What a plan is predicted to take."""

from __future__ import annotations

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.candidate import Candidate, candidate
from tfmem.planning.request import Request
from tfmem.runtime.memory import MIB


def test_what_is_kept_back_does_not_hide_the_chunk_that_a_buffer_takes() -> None:
    """Of the larger chunk less is left than the other has; `a` takes that one, and all of it."""
    graph = parse(f"""
        a = MatMul() [{4 * MIB}] @{DEVICE}
        b = MatMul(a:0) [1024] @{DEVICE}
        return b:0""")
    room = (9 * MIB, 8 * MIB - 1024)
    for window in (1, 2):
        plan = Plan(order=("a", "b"), window=window, device=DEVICE)
        found = candidate(graph, Costs(), plan, Request(device=DEVICE, room=room))
        assert found.fits
        assert 7 * MIB < found.worst_bytes < 9 * MIB


def test_the_least_budget_is_what_a_plan_takes_once_it_has_room() -> None:
    """Where it has none, the chunks that are left do not tell what it takes."""
    graph = parse(f"""
        a = MatMul() [{4 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{2 * MIB}] @{DEVICE}
        c = MatMul(a:0, b:0) [{4 * MIB}] @{DEVICE}
        d = MatMul(b:0, c:0) [1024] @{DEVICE}
        return d:0""")
    plan, budget = Plan(order=tuple("abcd"), device=DEVICE), 7 * MIB

    def found(room: int, budget: int) -> Candidate:
        return candidate(
            graph, Costs(), plan, Request(budget=budget, device=DEVICE, room=(room,), may_grow=True)
        )

    refused = found(budget, budget)
    assert not refused.keeps(budget)
    assert not found(9 * MIB, 9 * MIB).keeps(9 * MIB)
    for may_grow in (False, True):
        least = refused.least_budget(budget, may_grow)
        assert found(20 * MIB if may_grow else least, least).keeps(least)
        assert least <= 11 * MIB  # 10 in use, and what small buffers are served from
