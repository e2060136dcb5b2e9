"""Orders in which nodes overtake one another, and what steps ask for in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import DEVICE, graphs
from tests.support.plans import random_order
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.runtime.memory import MIB
from tfmem.simulation.shuffled import in_order, shuffled
from tfmem.simulation.simulate import allocate, step_of


def names(graph: Graph, order: Sequence[str], window: int, seed: int) -> tuple[str, ...]:
    numbers = [graph.form.number[name] for name in order]
    return tuple(order[place] for place in shuffled(graph.form, numbers, window, seed))


@settings(max_examples=60, deadline=None)
@given(graphs, st.integers(0, 10**6), st.integers(2, 5))
def test_nodes_overtake_one_another_within_the_window_alone(
    graph: Graph, seed: int, window: int
) -> None:
    order = random_order(graph, random.Random(seed))
    found = names(graph, order, window, seed)
    assert sorted(found) == sorted(order)
    runs = [name for name in order if not graph.by_name[name].is_input]
    ran = [name for name in found if not graph.by_name[name].is_input]
    for position, name in enumerate(ran):
        before = set(ran[:position])
        assert before.issuperset(runs[: max(0, runs.index(name) - window + 1)])
        inputs = {other for other in graph.by_name[name].predecessors if other in runs}
        assert inputs <= before
    others = {names(graph, order, window, other) for other in range(20)}
    assert len(others) > 1 or len(runs) < 2 or _is_chain(graph, runs)


def test_a_constant_that_waits_is_not_made_before() -> None:
    graph = parse(f"""
        c = Const() [4] @{DEVICE}
        a = MatMul(c:0) [4] @{DEVICE}
        d = Const(^a) [4] @{DEVICE}
        b = MatMul(d:0) [4] @{DEVICE}
        return b:0""")
    order = tuple(node.name for node in graph.nodes)
    assert {names(graph, order, 4, seed) for seed in range(20)} == {order}


def _is_chain(graph: Graph, runs: list[str]) -> bool:
    """Whether each node waits for the one before it, directly."""
    return all(a in graph.by_name[b].predecessors for a, b in itertools.pairwise(runs))


@settings(max_examples=60, deadline=None)
@given(graphs, st.integers(2, 5))
def test_each_order_asks_for_the_same_and_gives_nothing_back_before(
    graph: Graph, window: int
) -> None:
    order = tuple(node.name for node in graph.nodes)
    step, _ = step_of(graph, Costs(), Plan(order=order, window=window, device=DEVICE))
    assert len(step.orders) > 1
    for asked in step._asked:
        assert sorted(asked) == sorted(step.requests)
        there = {number for number, nbytes in step.requests if nbytes <= 0}
        there -= {number for number, nbytes in step.requests if nbytes > 0}
        for number, nbytes in asked:
            assert nbytes > 0 or number in there
            (there.add if nbytes > 0 else there.discard)(number)


def test_what_is_given_back_too_early_is_given_back_at_the_end() -> None:
    asked = [((0, 8),), ((1, 4), (0, -8)), ((2, 4), (1, -4)), ((2, -4),)]
    assert in_order(asked, (0, 1, 2)) == (
        (0, 8), (1, 4), (0, -8), (2, 4), (1, -4), (2, -4),
    )  # fmt: skip
    assert in_order(asked, (2, 0, 1)) == (
        (0, 8), (1, 4), (0, -8), (2, 4), (1, -4), (2, -4),
    )  # fmt: skip


def test_where_buffers_lie_in_other_orders_counts() -> None:
    """In its own order `b` takes the chunk that `a` has left, in another one a larger one."""
    graph = parse(f"""
        a = MatMul() [{4 * MIB}] @{DEVICE}
        s = Sum(a:0) [256] @{DEVICE}
        b = MatMul() [{4 * MIB}] @{DEVICE}
        t = Sum(b:0) [256] @{DEVICE}
        return s:0, t:0""")
    plan = Plan(order=("a", "s", "b", "t"), device=DEVICE)
    room = (4 * MIB + 2**12, 7 * MIB, 8 * MIB)
    strict, loose = (
        allocate(graph, Costs(), Plan(order=plan.order, device=DEVICE, window=window), room=room)
        for window in (1, 4)
    )
    assert strict.worst_bytes < 5 * MIB
    assert loose.worst_bytes > 10 * MIB
