"""Topological orders of random graphs, and sets that are joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.graphs import graphs
from tfmem.graph.ir import Graph
from tfmem.graph.topology import (
    Countdown,
    DisjointSets,
    first_ready_first,
    last_ready_first,
    least_first,
    post_order,
)


@given(graphs)
def test_every_order_is_topological_and_whole(graph: Graph) -> None:
    before, after = graph.form.predecessors, graph.form.successors
    roots = [node for node, others in enumerate(after) if not others]
    orders = [
        first_ready_first(before, after),
        last_ready_first(before, after),
        least_first(before, after, range(len(graph))),
        post_order(roots, before.__getitem__),
    ]
    for order in orders:
        place = {node: i for i, node in enumerate(order)}
        assert sorted(order) == list(range(len(graph)))
        assert all(place[b] < place[node] for node in order for b in before[node])
    assert orders[2] == list(range(len(graph)))  # the graph's own order, as its keys ask


def test_which_ready_node_is_next() -> None:
    r"""0 -> 2, 1 -> 3, 0 -> 4"""
    before, after = [(), (), (0,), (1,), (0,)], [[2, 4], [3], [], [], []]
    assert first_ready_first(before, after) == [0, 1, 2, 4, 3]
    assert last_ready_first(before, after) == [0, 2, 4, 1, 3]
    assert least_first(before, after, [4, 3, 2, 1, 0]) == [1, 3, 0, 4, 2]
    assert post_order([3, 2, 4], before.__getitem__) == [1, 3, 0, 2, 4]


def test_a_cycle_leaves_nodes_out() -> None:
    assert least_first([(), (2,), (1,)], [[], [2], [1]], range(3)) == [0]


def test_a_node_is_ready_once_all_before_it_are_taken() -> None:
    countdown = Countdown([0, 0, 2], [[2], [2], []])
    assert countdown.ready() == [0, 1]
    assert countdown.take(0) == []
    assert countdown.take(1) == [2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_joined_sets_are_those_of_connected_numbers(pairs: list[tuple[int, int]]) -> None:
    sets, groups = DisjointSets(10), [{number} for number in range(10)]
    for first, second in pairs:
        sets.join(first, second)
        merged = next(g for g in groups if first in g) | next(g for g in groups if second in g)
        groups = [g for g in groups if not g <= merged] + [merged]
    for group in groups:
        assert len({sets.find(number) for number in group}) == 1
    assert len({sets.find(number) for number in range(10)}) == len(groups)
