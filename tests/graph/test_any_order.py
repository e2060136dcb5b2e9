"""What may be in use in any order, against what is in orders drawn at random."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.checker import replay
from tests.support.graphs import graphs, random_graph
from tfmem.graph import any_order
from tfmem.graph.any_order import most_in_use
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.graph.topology import least_first


def inputs_of(graph: Graph) -> int:
    return sum(sum(node.nbytes) for node in graph.nodes if node.is_input)


def in_use(graph: Graph, seed: int) -> int:
    """Bytes in use at most in an order drawn at random."""
    form, rng = graph.form, random.Random(seed)
    ranks = [rng.random() for _ in graph.nodes]
    order = [graph.nodes[n] for n in least_first(form.predecessors, form.successors, ranks)]
    return max(replay(graph, tuple(node.name for node in order if not node.is_input)))


@given(graphs, st.integers(0, 2**16))
@example(random_graph(5, 4, variables=1), 0)
def test_no_order_has_more_in_use(graph: Graph, seed: int) -> None:
    most = most_in_use(graph, {}, granularity=1, lanes=1) + inputs_of(graph)
    assert in_use(graph, seed) <= most


def test_buffers_end_with_their_last_reader_wherever_it_runs() -> None:
    graph = parse("""
        x = _Arg() [1] @cpu
        a = MatMul(x:0) [4] @cpu
        b = MatMul(x:0) [8] @cpu
        c = MatMul(a:0) [1] @cpu
        d = MatMul(b:0, c:0) [1] @cpu
        return d:0""")
    found = [most_in_use(graph, {}, granularity=1, lanes=lanes) for lanes in (0, 1, 2)]
    assert found == [12, 12 + 8, 12 + 8 + 4]
    assert most_in_use(graph, {"c": 100}, granularity=1, lanes=1) == 12 + 101
    assert most_in_use(graph, {}, granularity=16, lanes=0) == 32


def test_a_buffer_ends_with_what_waits_for_all_its_readers() -> None:
    graph = parse("""
        x = _Arg() [1] @cpu
        a = MatMul(x:0) [8] @cpu
        c = MatMul(a:0) [1] @cpu
        d = MatMul(a:0) [1] @cpu
        e = MatMul(c:0, d:0) [4] @cpu
        f = MatMul(e:0) [16] @cpu
        return f:0""")
    assert most_in_use(graph, {}, granularity=1, lanes=0) == 16
    without = parse(str(graph).replace("(c:0, d:0)", "(c:0)"))
    assert most_in_use(without, {}, granularity=1, lanes=0) == 8 + 16


def test_a_variable_has_two_buffers_once_it_is_updated_if_the_one_before_is_returned() -> None:
    graph = parse("""
        w = _Variable() [64] @cpu
        r = ReadVariableOp(w:0) [64] @cpu
        v = Reshape(r:0) [64] @cpu
        g = MatMul(r:0) [4] @cpu
        u = ResourceApplyGradientDescent(w:0, g:0, ^v) [] @cpu
        n = ReadVariableOp(w:0, ^u) [64] @cpu
        b = MatMul(n:0) [128] @cpu
        return v:0, b:0""")
    assert most_in_use(graph, {}, granularity=1, lanes=0) == 64 + 128
    for other in ("n:0, b:0", "w:0, b:0"):  # what is in it now, or its handle
        after = parse(str(graph).replace("v:0, b:0", other))
        assert most_in_use(after, {}, granularity=1, lanes=0) == 128


def test_a_variable_has_two_buffers_while_what_was_read_before_is_in_use() -> None:
    text = """
        w = _Variable() [64] @cpu
        r = ReadVariableOp(w:0) [64] @cpu
        g = MatMul(r:0) [4] @cpu
        u = ResourceApplyGradientDescent(w:0, g:0) [] @cpu
        n = ReadVariableOp(w:0, ^u) [64] @cpu
        y = MatMul(n:0) [1] @cpu
        h = MatMul(r:0) [2] @cpu
        return y:0, h:0"""
    after = text.replace("g:0) []", "g:0, h:0) []").replace(
        "        h = MatMul(r:0) [2] @cpu\n", ""
    )
    after = after.replace("        u =", "        h = MatMul(r:0) [2] @cpu\n        u =")
    found = [most_in_use(parse(one), {}, granularity=1, lanes=0) for one in (text, after)]
    assert found == [64 + 1 + 2, 4 + 2]


def test_other_devices_do_not_count() -> None:
    graph = parse("""
        x = _Arg() [1] @cpu
        a = MatMul(x:0) [4] @cpu
        b = MatMul(a:0) [8] @host
        c = MatMul(b:0) [2] @cpu
        return c:0""")
    found = [most_in_use(graph, {}, granularity=1, lanes=0, device=one) for one in ("", "cpu")]
    assert found == [8, 4]


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_nodes_change_nothing(seed: int) -> None:
    graph = random_graph(seed, 60)
    whole = most_in_use(graph, {}, granularity=1, lanes=1)
    with mock.patch.object(any_order, "_BLOCK", 7):
        assert most_in_use(graph, {}, granularity=1, lanes=1) == whole
