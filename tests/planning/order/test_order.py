"""Orders: valid, never behind the plain ones, close to the optimum, the same whatever the names."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings

from tests.support import checker
from tests.support.graphs import (
    DEVICE,
    NAMED,
    OPTIMA,
    graphs,
    named,
    random_graph,
    renamed,
    training_chain,
    unet,
)
from tests.support.optimum import least_peak
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.order import memory_order as orders
from tfmem.planning.order.early import crossings_first, updates_after_reads, updates_first
from tfmem.planning.order.pressure import pressure
from tfmem.planning.order.stretch import Stretch
from tfmem.planning.order.sweep import backwards, forwards
from tfmem.planning.request import Request
from tfmem.planning.search import choose
from tfmem.simulation.simulate import simulate

PLAIN = (orders.program_order, orders.depth_first, orders.breadth_first)
COSTS = Costs()


def peak(graph: Graph, order: tuple[str, ...], costs: Costs = COSTS) -> int:
    return simulate(graph, costs, Plan(order=order, device=DEVICE)).peak_bytes


def is_topological(graph: Graph, order: tuple[str, ...]) -> bool:
    place = {name: i for i, name in enumerate(order)}
    return sorted(place) == sorted(graph.by_name) and all(
        place[before] < place[node.name] for node in graph.nodes for before in node.predecessors
    )


@settings(max_examples=60, deadline=None)
@given(graphs)
def test_every_order_is_topological_and_none_of_the_plain_is_better(graph: Graph) -> None:
    found = orders.memory_order(graph, COSTS, DEVICE)
    inputs = (node.name for node in graph.nodes if node.is_input)
    original = simulate(graph, COSTS, Plan(device=DEVICE))
    executed = *inputs, *original.order
    for order in (found, executed, *(plain(graph) for plain in PLAIN)):
        assert is_topological(graph, order)
        assert peak(graph, found) <= peak(graph, order)
    adopts = any(node.op == "AssignVariableOp" for node in graph.nodes)  # as plans do not
    assert adopts or peak(graph, found) <= original.peak_bytes
    assert peak(graph, found) == max(checker.replay(graph, found), default=0) or len(graph) < 3


@pytest.mark.parametrize("name", NAMED)
def test_the_named_graphs_reach_their_known_optima(name: str) -> None:
    r"""Among them OLLA's; the diamond:

    a -> b -> c(60) ------> f -> g
           -> d(40) -> e(50) ^         c last before f takes 60 + 50, and 20 + 60 + 50 = 130
    """
    exact = Costs(granularity=1)
    graph = named(name)
    assert peak(graph, orders.memory_order(graph, exact, DEVICE), exact) == OPTIMA[name]


def test_the_gap_to_the_optimum_is_small() -> None:
    gaps = []
    for seed in range(200):
        graph = random_graph(seed, 8 + seed % 9, variables=0)
        least = least_peak(graph)
        gaps.append(peak(graph, orders.memory_order(graph, COSTS, DEVICE)) / least - 1)
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) < 0.002
    assert max(gaps) < 0.05


def test_sweeps_and_windows_find_the_optimum_of_larger_graphs_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graphs of 36 nodes: as one window (nearly always exact) and as large graphs are searched."""
    graphs_ = [random_graph(seed, 36, variables=1) for seed in range(40)]
    whole = [peak(g, orders.memory_order(g, COSTS, DEVICE)) for g in graphs_]
    monkeypatch.setattr(orders, "WHOLE", 0)
    pieces = [peak(g, orders.memory_order(g, COSTS, DEVICE)) for g in graphs_]
    gaps = [piece / best - 1 for piece, best in zip(pieces, whole, strict=True)]
    assert sum(gaps) / len(gaps) < 0.02


@settings(max_examples=30, deadline=None)
@given(graphs)
def test_a_stretch_is_searched_to_its_optimum(graph: Graph) -> None:
    model, order = pressure(graph, COSTS, DEVICE), list(range(len(graph)))
    for begin in range(sum(graph.form.is_input), len(order) - 4, 5):
        end = begin + 5
        peaks = {
            nodes: max(model.timeline([*order[:begin], *nodes, *order[end:]])[begin:end])
            for nodes in permutations(order[begin:end])
            if not any(
                set(nodes[i:]) & set(graph.form.predecessors[n]) for i, n in enumerate(nodes)
            )
        }
        stretch, before = Stretch(model, order, order, begin, end), tuple(order[begin:end])
        found, _ = stretch.search(1000)
        least = min(peaks.values())
        assert peaks[tuple(found or before)] == least
        assert stretch.least() - stretch.peak() <= least - peaks[before]


def test_updates_run_as_soon_as_their_gradients_are_there() -> None:
    """g3 u3 g2 u2 ..: no more than one gradient is alive beside what the step holds anyway."""
    graph = training_chain(8, 1024)
    found = simulate(
        graph, COSTS, Plan(order=orders.memory_order(graph, COSTS, DEVICE), device=DEVICE)
    )
    assert found.peak_bytes <= 8 * 512 + 10 * 1024  # weights, stash, one gradient of each kind


def test_updates_wait_for_all_who_read_the_old_contents() -> None:
    """u2 needs the new contents, so u stays before it; w's update moves behind b, which reads w."""
    graph = parse(f"""
        v = _Variable() [1024] @{DEVICE}
        w = _Variable() [1024] @{DEVICE}
        x = _Arg() [1024] @{DEVICE}
        rv = ReadVariableOp(v:0) [1024] @{DEVICE}
        rw = ReadVariableOp(w:0) [1024] @{DEVICE}
        a = MatMul(x:0, rw:0) [1024] @{DEVICE}
        uw = AssignSubVariableOp(w:0, a:0) [] @{DEVICE}
        uv = AssignSubVariableOp(v:0, a:0) [] @{DEVICE}
        nv = ReadVariableOp(v:0, ^uv) [1024] @{DEVICE}
        b = MatMul(a:0, rw:0) [1024] @{DEVICE}
        c = MatMul(nv:0, rv:0) [1024] @{DEVICE}
        return b:0, c:0""")
    order = tuple(node.name for node in graph.nodes)
    found = updates_after_reads(graph, order)
    assert found == ("v", "w", "x", "rv", "rw", "a", "uv", "nv", "b", "uw", "c")
    assert updates_after_reads(graph, found) == found


def test_updates_wait_for_clones_that_read_the_old_contents() -> None:
    """y is computed again behind the large a, once g has updated w: a copy of w would lie there."""
    graph = parse(f"""
        w = _Variable() [1024] @{DEVICE}
        x = _Arg() [1024] @{DEVICE}
        r = ReadVariableOp(w:0) [1024] @{DEVICE}
        y = MatMul(x:0, r:0) [8192] @{DEVICE}
        g = MatMul(y:0) [1024] @{DEVICE}
        u = AssignSubVariableOp(w:0, g:0) [] @{DEVICE}
        a = MatMul(x:0, g:0) [16384] @{DEVICE}
        s = MatMul(a:0) [256] @{DEVICE}
        z = MatMul(y:0, s:0) [256] @{DEVICE}
        return z:0""")
    techniques = frozenset({"order", "recompute"})
    made = choose(graph, COSTS, Request(device=DEVICE, budget=22_000, techniques=techniques)).plan
    (found,) = made.recomputations
    assert found.node == "y"
    assert made.order.index("u") > made.order.index(found.clone)
    assert max(checker.replay(graph, made.order, made)) == made.peak_bytes <= 22_000


def test_what_depends_on_an_update_waits_with_it() -> None:
    """The second update of w waits for the first, which waits for b."""
    graph = parse(f"""
        w = _Variable() [1024] @{DEVICE}
        x = _Arg() [1024] @{DEVICE}
        rw = ReadVariableOp(w:0) [1024] @{DEVICE}
        a = MatMul(x:0, rw:0) [1024] @{DEVICE}
        u1 = AssignSubVariableOp(w:0, a:0) [] @{DEVICE}
        u2 = AssignSubVariableOp(w:0, a:0, ^u1) [] @{DEVICE}
        b = MatMul(a:0, rw:0) [1024] @{DEVICE}
        c = MatMul(b:0) [1024] @{DEVICE}
        return c:0""")
    found = updates_after_reads(graph, tuple(node.name for node in graph.nodes))
    assert found == ("w", "x", "rw", "a", "b", "u1", "u2", "c")


def test_an_update_waits_for_readers_of_a_view_of_the_variable() -> None:
    """Within branches TensorFlow keeps the Identity of each read."""
    graph = parse(f"""
        w = _Variable() [1024] @{DEVICE}
        x = _Arg() [1024] @{DEVICE}
        rw = ReadVariableOp(w:0) [1024] @{DEVICE}
        same = Identity(rw:0) [1024] @{DEVICE}
        u = AssignVariableOp(w:0, x:0) [] @{DEVICE}
        a = MatMul(x:0, same:0) [1024] @{DEVICE}
        return a:0""")
    found = updates_after_reads(graph, tuple(node.name for node in graph.nodes))
    assert found == ("w", "x", "rw", "same", "a", "u")


@settings(max_examples=60, deadline=None)
@given(graphs)
def test_updates_that_wait_leave_a_topological_order(graph: Graph) -> None:
    assert is_topological(
        graph, updates_after_reads(graph, orders.memory_order(graph, COSTS, DEVICE))
    )


def test_masks_are_made_just_before_their_use() -> None:
    r"""m1 .. m8 are ready at the start; each is needed by one f only."""
    lines = ["x = _Arg() [256] @cpu", *(f"m{i} = Range() [1024] @cpu" for i in range(8))]
    lines += [f"f{i} = MatMul({f'f{i - 1}' if i else 'x'}:0, m{i}:0) [256] @cpu" for i in range(8)]
    graph = parse("\n".join([*lines, "return f7:0"]))
    assert peak(graph, orders.memory_order(graph, COSTS, DEVICE)) == 256 * 3 + 1024


def test_a_sweep_never_raises_the_peak_of_the_model() -> None:
    for seed in range(60):
        model = pressure(random_graph(seed, 40, variables=0), COSTS, DEVICE)
        order = list(range(len(model.makes)))
        before = max(model.timeline(order))
        for sweep in (backwards, forwards):
            order = sweep(model, order, before)
            assert max(model.timeline(order)) <= before
            before = max(model.timeline(order))


def test_names_do_not_matter_and_neither_does_the_run() -> None:
    for seed in range(15):
        graph = random_graph(seed, 60)
        other, names = renamed(graph)
        order = orders.memory_order(graph, COSTS, DEVICE)
        assert order == orders.memory_order(Graph(graph.nodes, graph.outputs), COSTS, DEVICE)
        assert tuple(names[n] for n in order) == orders.memory_order(other, COSTS, DEVICE)


def test_a_graph_without_choice_keeps_its_order() -> None:
    graph = unet(20)
    assert orders.memory_order(graph, COSTS, DEVICE) == orders.program_order(graph)
    assert orders.memory_order(Graph(()), COSTS, DEVICE) == ()


def test_ten_thousand_nodes_take_seconds() -> None:
    for graph in (training_chain(2_000), random_graph(1, 10_000, variables=100)):
        start = time.process_time()
        orders.memory_order(graph, COSTS, DEVICE)
        assert time.process_time() - start < 6.0


def test_updates_run_behind_all_inputs() -> None:
    """One that reads a variable which stands behind its own."""
    graph = parse("""
        a = _Variable() [8] @/device:CPU:0
        u = _Variable() [8] @/device:CPU:0
        p = ReadVariableOp(u:0) [8] @/device:CPU:0
        q = AssignVariableOp(a:0, p:0) [] @/device:CPU:0
        x = _Arg() [64] @/device:CPU:0
        y = Exp(x:0) [64] @/device:CPU:0
        return y:0""")
    order = updates_first(graph, [node.name for node in graph.nodes])
    assert order == ("a", "u", "x", "p", "q", "y")


def test_tiny_values_that_the_host_reads_come_first_with_what_makes_them() -> None:
    """Seeds of the second dropout, and what the host makes of them; not a size of what is large."""
    graph = parse("""
        x = _Arg() [4096] @gpu
        step = _Variable() [8] @gpu
        y = Exp(x:0) [4096] @gpu
        seed = ReadVariableOp(step:0) [8] @gpu
        pair = Pack(seed:0, seed:0) [16] @gpu
        key = StatelessRandomGetKeyCounter(pair:0) [8, 16] @gpu
        z = StatelessRandomUniformV2(key:0, key:1) [4096] @gpu
        count = Sum(y:0) [4] @gpu
        t = Tile(z:0, count:0) [4096] @gpu
        text = AsString(seed:0) [24] @cpu
        return t:0, text:0""")
    there = {"key": {"on_host": (0,), "from_host": (0, 1)}, "t": {"on_host": (1,)}}
    nodes = tuple(replace(n, **there.get(n.name, {})) for n in graph.nodes)
    order = [node.name for node in nodes]
    found = crossings_first(Graph(nodes, graph.outputs), order)
    assert found[:4] == ("step", "seed", "pair", "key")
    assert found[4:] == tuple(name for name in order if name not in found[:4])
    assert crossings_first(graph, order)[:2] == ("step", "seed")  # for the text, on the CPU
