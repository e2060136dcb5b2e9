"""Lifetimes: against the independent checker, and rule by rule."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import checker
from tests.support.graphs import DEVICE, graphs, random_graph
from tests.support.plans import random_order, random_plan
from tfmem import Error
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.text import parse
from tfmem.plan import Fetch, Placement, Plan, Recomputation, Transfer
from tfmem.simulation.liveness import lifetimes, owner
from tfmem.simulation.program import program
from tfmem.simulation.simulate import simulate

COSTS = Costs(granularity=1)


def timeline(text: str, **plan: object) -> list[int]:
    graph = parse(text)
    order = tuple(node.name for node in graph.nodes)
    plan_ = Plan(order=order, device=DEVICE, host="host", **plan)  # type: ignore[arg-type]
    return simulate(graph, COSTS, plan_).timeline.tolist()


@settings(max_examples=150, deadline=None)
@given(graphs, st.integers(0, 10**6))
def test_an_order_takes_what_the_checker_counts(graph: Graph, seed: int) -> None:
    order = random_order(graph, random.Random(seed))
    found = simulate(graph, Costs(), Plan(order=order, device=DEVICE)).timeline.tolist()
    assert found == checker.replay(graph, order)


@settings(max_examples=250, deadline=None)
@given(graphs, st.integers(0, 10**6))
def test_a_plan_takes_what_the_checker_counts(graph: Graph, seed: int) -> None:
    plan = random_plan(graph, seed)
    instant = Costs(
        dict.fromkeys((node.name for node in graph.nodes), 1.0), {}, float("inf"), float("inf"), 0.0
    )
    found = simulate(graph, instant, plan).timeline.tolist()
    assert found == checker.replay(graph, plan.order, plan)


def test_a_view_keeps_its_buffer_alive_and_an_elementwise_kernel_takes_it_over() -> None:
    assert timeline("""
        x = _Arg() [8] @cpu
        a = MatMul(x:0) [32] @cpu
        b = Reshape(a:0) [32] @cpu
        c = Relu(b:0) [32] @cpu
        d = MatMul(c:0) [16] @cpu
        return d:0""") == [40, 40, 40, 56]


def test_a_second_reader_costs_the_elementwise_kernel_a_buffer() -> None:
    assert timeline("""
        a = MatMul() [32] @cpu
        b = Relu(a:0) [32] @cpu
        c = AddV2(a:0, b:0) [32] @cpu
        return c:0""") == [32, 64, 64]


def test_the_softmax_loss_writes_its_gradient_over_the_logits() -> None:
    assert timeline("""
        a = MatMul() [32] @cpu
        l = MatMul() [32] @cpu
        b = SoftmaxCrossEntropyWithLogits(a:0, l:0) [4, 32] @cpu
        return b:1""") == [32, 64, 68]


def test_constants_inputs_and_outputs_stay() -> None:
    assert timeline("""
        x = _Arg() [8] @cpu
        a = MatMul(x:0) [16] @cpu
        k = Const() [4] @cpu
        b = MatMul(a:0, k:0) [32] @cpu
        c = MatMul() [64] @cpu
        return b:0""") == [28, 28, 60, 108]


UPDATE = """
    v = _Variable() [64] @cpu
    r = ReadVariableOp(v:0) [64] @cpu
    {first}
    {second}
    return"""


def test_an_update_is_in_place_once_the_reads_are_over() -> None:
    use, update = "m = MatMul(r:0) [8] @cpu", "u = AssignSubVariableOp(v:0, m:0, ^r) [] @cpu"
    assert timeline(UPDATE.format(first=use, second=update)) == [64, 72, 72]


def test_an_update_while_a_read_is_alive_makes_a_copy() -> None:
    update, use = "u = AssignSubVariableOp(v:0, k:0, ^r) [] @cpu", "m = MatMul(r:0) [8] @cpu"
    text = UPDATE.replace("return", "e = MatMul() [1] @cpu\n    return")
    text = "    k = Const() [64] @cpu\n" + text.format(first=update, second=use)
    assert timeline(text) == [128, 128, 192, 200, 129]


def test_an_assignment_adopts_the_value() -> None:
    assert timeline("""
        v = _Variable() [64] @cpu
        a = MatMul() [64] @cpu
        u = AssignVariableOp(v:0, a:0) [] @cpu
        e = MatMul() [1] @cpu
        return""") == [128, 128, 65]


def test_a_variable_of_a_caller_is_counted_there_before_and_after() -> None:
    assert timeline("""
        v = _Variable() [0] @cpu
        a = MatMul() [64] @cpu
        u = AssignVariableOp(v:0, a:0) [] @cpu
        e = MatMul() [1] @cpu
        return""") == [64, 64, 1]


BY_ROWS = """
    v = _Variable() [64] @cpu
    g = ResourceGather(v:0) [8] @cpu
    r = ReadVariableOp(v:0) [64] @cpu
    m = MatMul(r:0) [8] @cpu
    u = AssignSubVariableOp(v:0, m:0) [] @cpu
    return"""


def test_access_by_rows_makes_reads_copy() -> None:
    assert timeline(BY_ROWS) == [72, 128, 136, 72]


def test_access_by_rows_makes_dense_updates_of_the_original_copy() -> None:
    assert simulate(parse(BY_ROWS), COSTS, Plan()).timeline.tolist() == [72, 128, 136, 136]


LARGE = """
    v = _Variable() [65537] @cpu
    r = ReadVariableOp(v:0) [65537] @cpu
    a = MatMul() [65537] @cpu
    u = AssignVariableOp(v:0, a:0) [] @cpu
    e = MatMul({reads}) [1] @cpu
    return"""


def test_an_assignment_of_a_large_variable_is_made_in_place() -> None:
    graph = parse(LARGE.format(reads=""))
    order = tuple(node.name for node in graph.nodes)
    for plan, moves in ((Plan(order=order), False), (Plan(), True)):
        found = lifetimes(program(graph, plan), 1)
        assert [one != other for one, other in found.variables] == [moves]
    assert timeline(LARGE.format(reads="")) == [65537, 131074, 131074, 65538]


def test_an_assignment_in_place_copies_what_is_still_read() -> None:
    peaks = timeline(LARGE.format(reads="r:0"))
    assert peaks == [65537, 131074, 3 * 65537, 131075]


SWAP = """
    a = MatMul() [32] @cpu
    b = MatMul(a:0) [8] @cpu
    c = MatMul(b:0) [8] @cpu
    d = MatMul(c:0) [8] @cpu
    e = MatMul(d:0, a:0) [8] @cpu
    return e:0"""


def test_an_eviction_is_away_between_its_pace_and_its_trigger() -> None:
    away = Transfer(Value("a"), (Fetch(("e",), "c"),), "b")
    assert timeline(SWAP, evictions=(away,)) == [32, 40, 16, 48, 48]


def test_a_placed_variable_costs_the_device_its_copies_only() -> None:
    text = """
        v = _Variable() [64] @cpu
        r = ReadVariableOp(v:0) [64] @cpu
        a = MatMul() [8] @cpu
        b = MatMul(a:0, r:0) [8] @cpu
        c = MatMul(b:0) [64] @cpu
        u = AssignSubVariableOp(v:0, c:0) [] @cpu
        return"""
    fetched = Transfer(Value("r"), (Fetch(("b",), "a"),))
    there = Placement("v", ("r", "u"), (fetched, Transfer(Value("c"))))
    assert timeline(text, placements=(there,)) == [8, 80, 72]
    assert timeline(text, placements=(Placement("v", ("r", "u")),)) == [72, 80, 72]


def test_the_owner_of_a_view_of_a_read_is_the_variable() -> None:
    graph = parse("""
        v = _Variable() [64] @cpu
        h = Identity(v:0) [0] @cpu
        r = ReadVariableOp(h:0) [64] @cpu
        s = Reshape(r:0) [64] @cpu
        t = Relu(s:0) [64] @cpu
        return""")
    assert owner(graph, Value("h")) == Value("v")
    assert owner(graph, Value("s")) == Value("v")
    assert owner(graph, Value("t")) == Value("t")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(order=("b", "a", "c", "d", "e")), "node b stands before node a"),
        (Plan(order=("a", "b", "c", "d")), "node e runs on the device but is not there"),
        (Plan(order=("a", "b", "c", "d", "e", "e")), "comes twice"),
        (Plan(order=("a", "q")), "no node q"),
        (Plan(evictions=(Transfer(Value("a"), (Fetch(("b",), "c"),)),)), "before the copy of a:0"),
        (Plan(evictions=(Transfer(Value("a"), (Fetch(("c",)),)),)), "c does not read it"),
        (Plan(evictions=(Transfer(Value("a", 3)),)), "no value a:3"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(Error, match=message):
        simulate(parse(SWAP), COSTS, plan)


def test_a_variable_and_its_update_on_two_devices_are_refused() -> None:
    graph = random_graph(0)
    update = next(n for n in graph.nodes if n.op.startswith("Assign"))
    plan = Plan(placements=(Placement(update.inputs[0].node),), device=DEVICE, host="host")
    with pytest.raises(Error, match="move both or neither"):
        simulate(graph, COSTS, plan)


def test_what_a_kernel_passes_to_its_gradient_lives_until_then() -> None:
    text = """
        x = _Arg() [64] @cpu
        y = MaxPool(x:0) [16] @cpu
        z = Relu6(y:0) [16] @cpu
        u = Exp(z:0) [1] @cpu
        g = MaxPoolGrad(x:0, y:0, u:0) [64] @cpu
        s = Sum(g:0) [1] @cpu
        return s:0"""
    plain = parse(text)
    nodes = [replace(node, passed=4 if node.name == "y" else 0) for node in plain.nodes]
    passing = Graph(tuple(nodes), plain.outputs)

    def more(**plan: Any) -> list[int]:
        found = [simulate(g, COSTS, Plan(device=DEVICE, **plan)).timeline for g in (plain, passing)]
        return (found[1] - found[0]).tolist()

    assert more() == [4, 4, 4, 4, 0]
    again = (Recomputation("y", ("g",)),)
    order = ("x", "y", "z", "u", "y/clone1", "g", "s")
    assert more(order=order, recomputations=again) == [4, 0, 0, 4, 4, 0]


@pytest.mark.parametrize(("host", "takes"), [("localhost", 4), ("tfmem_host", 8)])
def test_what_is_sent_to_another_process_is_not_made_in_place(host: str, takes: int) -> None:
    """Its buffer is made for network cards, that of `a` is not."""
    here, there = (f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("localhost", host))
    there = there.replace("CPU:0", "CPU:1")
    graph = Graph(
        (
            Node("a", "MatMul", nbytes=(4,), device=here),
            Node("b", "Tanh", (Value("a"),), nbytes=(4,), device=here),
            Node("c", "Sum", (Value("b"),), nbytes=(1,), device=here),
        ),
        (Value("c"),),
    )
    away = Transfer(Value("b"), (Fetch(("c",), ""),))
    plan = Plan(order=("a", "b", "c"), evictions=(away,), device=here, host=there)
    assert simulate(graph, COSTS, plan).timeline[1] == takes
