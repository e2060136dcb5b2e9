"""Simulation: peaks, clocks, the host, windows, speed."""

from __future__ import annotations

import random
import time
import timeit
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import DEVICE, graphs, random_graph, training_chain
from tests.support.plans import random_order, random_plan
from tfmem.costs.types import Costs
from tfmem.graph.ir import ARG, Graph, Node, Value
from tfmem.graph.text import parse
from tfmem.plan import Fetch, Placement, Plan, Transfer
from tfmem.planning.order.memory_order import breadth_first
from tfmem.simulation.original import folded
from tfmem.simulation.shuffled import shuffled
from tfmem.simulation.simulate import simulate, step_of

SWAP = parse("""
    a = MatMul() [100] @cpu
    b = MatMul(a:0) [8] @cpu
    c = MatMul(b:0) [8] @cpu
    d = MatMul(c:0) [8] @cpu
    e = MatMul(d:0, a:0) [8] @cpu
    return e:0""")
SECOND_EACH = dict.fromkeys("abcde", 1.0)
SLOW_LINK = Costs(SECOND_EACH, {}, to_host=100.0, from_host=50.0, latency=0.5, granularity=1)


def evict(trigger: str, pace: str = "") -> Plan:
    return Plan(
        order=tuple("abcde"),
        evictions=(Transfer(Value("a"), (Fetch(("e",), trigger),), pace),),
        device=DEVICE,
        host="host",
    )


def test_the_peak_has_a_node_and_those_alive_then() -> None:
    found = simulate(SWAP, SLOW_LINK, Plan(order=tuple("abcde"), device=DEVICE))
    assert found.peak_bytes == 116
    assert found.peak_node == "c"
    assert found.alive_at_peak == ((Value("a"), 100), (Value("b"), 8), (Value("c"), 8))
    assert found.order == tuple("abcde")
    assert found.step_seconds == 5.0


def test_workspace_counts_while_its_node_runs() -> None:
    costs = Costs({}, {"d": 7}, granularity=1)
    found = simulate(SWAP, costs, Plan(order=tuple("abcde"), device=DEVICE))
    assert found.timeline.tolist() == [100, 108, 116, 123, 116]
    assert found.peak_node == "d"


def test_sizes_are_rounded_as_the_allocator_does() -> None:
    found = simulate(SWAP, Costs(), Plan(order=tuple("abcde"), device=DEVICE))
    assert found.timeline.tolist() == [256, 512, 768, 768, 768]


def test_a_copy_to_the_host_that_nothing_paces_holds_its_value_until_it_lands() -> None:
    found = simulate(SWAP, SLOW_LINK, evict("d"))  # a ends at 1, lands at 2.5: while c runs
    assert found.timeline.tolist() == [100, 108, 116, 16, 116]


def of_a_gpu(name: str, **fields: tuple[int, ...]) -> Graph:
    """`SWAP`, one of whose kernels reads or makes something in the memory of the host."""
    nodes = [replace(n, **fields) if n.name == name else n for n in SWAP.nodes]  # type: ignore[arg-type]
    return Graph(tuple(nodes), SWAP.outputs)


def test_what_a_kernel_reads_on_the_host_waits_for_what_is_on_its_way_there() -> None:
    plain = simulate(SWAP, SLOW_LINK, evict("d"))
    found = simulate(of_a_gpu("c", on_host=(0,)), SLOW_LINK, evict("d"))
    lands = 1.0 + 0.5 + 1.0  # a; then b, of 8 bytes, lands for c
    assert plain.step_seconds == 4.0 + 0.5 + 2.0 + 1.0
    assert found.step_seconds == lands + 0.5 + 0.08 + 2.0 + 0.5 + 2.0 + 1.0


def test_what_is_folded_reads_nothing_on_the_host() -> None:
    graph = parse("""
        x = _Arg() [8]
        c = Const() [8]
        t = Tile(c:0, c:0) [8]
        y = Mul(x:0, t:0) [8]
        return y:0""")
    nodes = [replace(node, on_host=(1,) if node.name == "t" else ()) for node in graph.nodes]
    made = folded(Graph(tuple(nodes), graph.outputs))
    assert made.by_name["t"].op == "Const"
    assert not made.form.on_host


def test_what_a_kernel_makes_on_the_host_waits_for_what_is_on_its_way_back() -> None:
    found = simulate(of_a_gpu("c", from_host=(0,)), SLOW_LINK, evict("b"))
    comes_back = 2.5 + 0.5 + 2.0  # a, which is under way as c ends; then c, for d
    assert found.step_seconds == comes_back + 0.5 + 0.16 + 2.0
    assert simulate(SWAP, SLOW_LINK, evict("b")).step_seconds == comes_back + 1.0


def test_computation_waits_for_copies_and_hides_them() -> None:
    # a ends at 1, its copy lands at 2.5 and takes 2.5 back: from 2.5 with b as trigger.
    assert simulate(SWAP, SLOW_LINK, evict("b")).step_seconds == 6.0
    assert simulate(SWAP, SLOW_LINK, evict("d")).step_seconds == 7.5
    assert simulate(SWAP, SLOW_LINK, evict("d", pace="b")).step_seconds == 9.0


def test_two_copies_one_way_share_the_link() -> None:
    graph = parse("""
        a = MatMul() [100] @cpu
        b = MatMul() [100] @cpu
        c = MatMul() [8] @cpu
        return""")
    costs = Costs(SECOND_EACH, {}, to_host=50.0, latency=0.0)
    sent = (Transfer(Value("a")), Transfer(Value("b")))
    plan = Plan(order=tuple("abc"), evictions=sent, device=DEVICE, host="host")
    assert simulate(graph, costs, plan).step_seconds == 5.0


def test_what_leaves_the_device_is_counted_on_the_host() -> None:
    assert simulate(SWAP, SLOW_LINK, evict("b")).host_bytes == 100
    graph = parse("""
        v = _Variable() [64] @cpu
        r = ReadVariableOp(v:0) [64] @cpu
        a = MatMul(r:0) [64] @cpu
        u = AssignSubVariableOp(v:0, a:0) [] @cpu
        return""")
    plan = Plan(placements=(Placement("v", ("r", "u")),), device=DEVICE, host="host")
    found = simulate(graph, Costs(granularity=1), plan)
    assert found.host_bytes == 128
    assert found.peak_bytes == 128  # a and the copy of r


def test_without_an_order_the_executors_queue_decides() -> None:
    for seed in range(20):
        graph = random_graph(seed, variables=0)  # which a plan would leave where they are
        plain = simulate(graph, Costs(), Plan(device=DEVICE))
        queued = simulate(graph, Costs(), Plan(order=breadth_first(graph), device=DEVICE))
        assert plain.timeline.tolist() == queued.timeline.tolist()


def test_values_of_another_device_arrive_once() -> None:
    graph = parse("""
        x = _Arg() [64] @host
        h = MatMul(x:0) [32] @host
        a = MatMul() [8] @cpu
        b = MatMul(a:0, h:0) [8] @cpu
        c = MatMul(b:0, h:0) [8] @cpu
        return c:0""")
    found = simulate(graph, Costs(granularity=1), Plan(order=tuple("abc"), device=DEVICE))
    assert found.timeline.tolist() == [40, 48, 48]


@settings(max_examples=60, deadline=None)
@given(graphs, st.integers(0, 10**6))
def test_the_peak_is_bounded_from_both_sides(graph: Graph, seed: int) -> None:
    order = random_order(graph, random.Random(seed))
    found = simulate(graph, Costs(), Plan(order=order, device=DEVICE))
    allocated = Costs().allocated
    made = [n for n in graph.nodes if n.op not in ("_Variable", "ReadVariableOp", "Reshape")]
    updates = sum(node.op.startswith("Assign") for node in graph.nodes)
    held = [allocated(n.nbytes[0]) for n in graph.nodes if n.op == "_Variable"]
    arguments = sum(allocated(n.nbytes[0]) for n in graph.nodes if n.op == ARG)
    all_ = sum(allocated(size) for node in made for size in node.nbytes)
    assert arguments <= found.peak_bytes <= all_ + sum(held) + updates * max(held, default=0)
    assert found.peak_bytes == sum(size for _, size in found.alive_at_peak)
    assert found.peak_bytes == found.timeline.max()


@settings(max_examples=80, deadline=None)
@given(graphs, st.integers(0, 10**6), st.integers(2, 5))
def test_the_bound_of_a_window_covers_any_order_within_it(
    graph: Graph, seed: int, window: int
) -> None:
    rng = random.Random(seed)
    plan = random_plan(graph, seed, window=window)
    if plan.transfers or plan.recomputations or any(node.op == "_Variable" for node in graph.nodes):
        plan = Plan(order=random_order(graph, rng), window=window, device=DEVICE)
    bound = simulate(graph, Costs(), plan).window_peak_bytes
    strict = simulate(graph, Costs(), Plan(order=plan.order, device=DEVICE))
    assert strict.peak_bytes == strict.window_peak_bytes <= bound
    if not any(node.op == "_Variable" for node in graph.nodes):
        places = shuffled(graph.form, [graph.form.number[n] for n in plan.order], window, seed)
        order = tuple(plan.order[place] for place in places)
        assert simulate(graph, Costs(), Plan(order=order, device=DEVICE)).peak_bytes <= bound


def test_constants_take_no_place_in_a_window() -> None:
    """No order holds them: `b` may run beside `a`, however many stand between the two."""
    constants = "\n".join(f"c{i} = Const() [256] @{DEVICE}" for i in range(16))
    graph = parse(f"""
        a = MatMul() [4194304] @{DEVICE}
        s = Sum(a:0) [256] @{DEVICE}
        {constants}
        b = MatMul(c0:0) [2097152] @{DEVICE}
        t = Sum(b:0) [256] @{DEVICE}
        return s:0, t:0""")
    order = tuple(node.name for node in graph.nodes)
    found = simulate(graph, Costs(), Plan(order=order, device=DEVICE, window=4))
    assert found.peak_bytes < 5 << 20 < 6 << 20 <= found.window_peak_bytes


def test_a_view_that_nobody_reads_may_still_hold_what_it_views() -> None:
    """Within the window `v` may run behind `b`, which then takes nothing over."""
    graph = parse(f"""
        a = MatMul() [1024] @{DEVICE}
        v = Reshape(a:0) [1024] @{DEVICE}
        b = Relu(a:0) [1024] @{DEVICE}
        return b:0""")
    plan = Plan(order=tuple("avb"), device=DEVICE)
    assert simulate(graph, Costs(), plan).peak_bytes == 1024
    assert simulate(graph, Costs(), replace(plan, window=2)).window_peak_bytes == 2048


def test_an_empty_graph_takes_nothing() -> None:
    found = simulate(Graph(()), Costs(), Plan())
    assert (found.peak_bytes, found.peak_node, found.step_seconds) == (0, "", 0.0)
    inputs = Graph((Node("x", ARG, nbytes=(300,), device=DEVICE),), (Value("x"),))
    assert simulate(inputs, Costs(), Plan(device=DEVICE)).peak_bytes == 512


def test_its_time_grows_with_the_graph_and_no_faster() -> None:
    small, large = (training_chain(layers) for layers in (1_000, 20_000))  # four nodes a layer
    assert seconds_of(large) < 40 * seconds_of(small)


def seconds_of(graph: Graph) -> float:
    """Of the fastest of three, without the collector: the first also pays for new pages."""

    def run() -> None:
        found = simulate(graph, Costs(), Plan(device=DEVICE))
        assert found.timeline.dtype == np.int64

    return min(timeit.repeat(run, timer=time.process_time, repeat=3, number=1))


def test_constants_that_have_no_room_are_told_as_a_step_that_does_not_fit() -> None:
    graph = parse(f"""
        c = Const() [1048576] @{DEVICE}
        y = Exp(c:0) [1048576] @{DEVICE}
        return y:0""")
    replay, _ = step_of(graph, Costs(), Plan(device=DEVICE))
    assert not replay.within_apart((2**19,), (), 9).fits
