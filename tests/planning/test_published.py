"""TensorFlowMem's policy and the choice under a budget: rules, and plans carried out."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings

from tests.support.checker import replay
from tests.support.graphs import (
    DEVICE,
    HOST,
    NAMED,
    graphs,
    named,
    random_graph,
    renamed,
    training_chain,
)
from tfmem.costs.types import Costs
from tfmem.errors import BudgetError, Error
from tfmem.graph.ir import Graph, Value
from tfmem.graph.text import parse
from tfmem.passes.linearise import Linearise
from tfmem.passes.pipeline import run_passes
from tfmem.passes.place import Place
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.passes.transfer import Route
from tfmem.plan import Plan
from tfmem.planning.judge import carry_out
from tfmem.planning.placement import moved_nodes, placeable_variables, placement_levels
from tfmem.planning.published.distance import distant_evictions
from tfmem.planning.published.partitions import Partitions
from tfmem.planning.published.tensorflowmem import TensorFlowMem
from tfmem.planning.request import TECHNIQUES, Request
from tfmem.simulation.simulate import simulate

COSTS = Costs(granularity=1)
SMALL = TensorFlowMem(partition_size=2, min_swap_bytes=1, min_place_bytes=1)


def decide(graph: Graph, strategy: TensorFlowMem = SMALL) -> Plan:
    return strategy.decide(graph, COSTS, device=DEVICE, host=HOST, techniques=frozenset(TECHNIQUES))


def rewrite(graph: Graph, plan: Plan) -> Graph:
    passes = [
        Reorder(plan.order),
        Swap(plan.evictions, Route(HOST)),
        Place(plan.placements, Route(HOST)),
        Linearise(DEVICE, plan.window),
    ]
    return run_passes(graph, passes)


@settings(max_examples=60, deadline=None)
@given(graphs)
def test_every_plan_can_be_judged_and_carried_out(graph: Graph) -> None:
    plan = decide(graph)
    assert (
        max(replay(graph, plan.order, plan), default=0) <= simulate(graph, COSTS, plan).peak_bytes
    )
    rewritten = rewrite(graph, plan)
    assert [n.name for n in rewritten.nodes if not n.origin] == list(plan.order)
    assert decide(graph) == plan
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", NAMED)
def test_named_graphs_can_be_rewritten_with_a_window(name: str) -> None:
    graph = named(name)
    rewrite(graph, decide(graph, dataclasses.replace(SMALL, window=4)))


def test_names_do_not_matter() -> None:
    for seed in range(10):
        graph = random_graph(seed)
        other, new_names = renamed(graph)
        assert [new_names[name] for name in decide(graph).order] == list(decide(other).order)


def test_swapping_keeps_a_training_chain_flat() -> None:
    """x -> a1 -> a2 -> ... -> an, and back again: each activation is needed once more, late."""
    peaks = {}
    for layers in (20, 40):
        graph = training_chain(layers, nbytes=1000)
        strategy = TensorFlowMem(
            partition_size=4, min_swap_bytes=1, min_place_bytes=1, order="depth_first"
        )
        plan = decide(graph, strategy)
        peaks[layers] = max(replay(graph, plan.order, plan))
        assert plan.evictions
    assert peaks[40] <= peaks[20] * 1.05


DISTANCES = """
    x = _Arg() [64] @cpu
    a = MatMul(x:0) [64] @cpu
    b = MatMul(a:0) [64] @cpu
    c = MatMul(b:0) [64] @cpu
    d = MatMul(c:0) [64] @cpu
    e = MatMul(d:0) [64] @cpu
    f = MatMul(e:0, a:0) [64] @cpu
    g = MatMul(f:0, a:0) [64] @cpu
    h = MatMul(g:0, f:0, x:0) [64] @cpu
    return h:0"""


def test_a_value_leaves_if_its_next_use_is_more_than_the_distance_away() -> None:
    """Partitions of one op; a is used in partitions 1, 5 and 6, f in 6 and 7, x is an input."""
    strategy = TensorFlowMem(
        partition_size=1, swap_distance=2, min_swap_bytes=1, order="depth_first"
    )
    (eviction,) = decide(parse(DISTANCES), strategy).evictions
    assert eviction.value == Value("a")
    (fetch,) = eviction.fetches
    assert fetch.users == ("f", "g"), "neighbouring uses share a copy"
    assert fetch.trigger == "d", "it starts when the partition before its use opens"
    assert eviction.pace == "b", "the next partition waits for the copy out"
    near = dataclasses.replace(strategy, swap_distance=4)
    assert not decide(parse(DISTANCES), near).evictions


UPDATE = """
    x = _Arg() [4096] @cpu
    w = _Variable() [1000000] @cpu
    m = _Variable() [1000000] @cpu
    v = _Variable() [1000000] @cpu
    rate = _Variable() [4] @cpu
    lr = ReadVariableOp(rate:0) [4] @cpu
    read = ReadVariableOp(w:0) [1000000] @cpu
    h = MatMul(x:0, read:0) [4096] @cpu
    dy = Neg(h:0) [4096] @cpu
    g = MatMul(x:0, dy:0) [1000000] @cpu
    square = Square(g:0) [1000000] @cpu
    sum = ReadVariableOp(v:0) [1000000] @cpu
    more = AddV2(sum:0, square:0) [1000000] @cpu
    hold = AssignVariableOp(v:0, more:0, ^sum) [] @cpu
    old = ReadVariableOp(m:0) [1000000] @cpu
    scaled = Mul(g:0, lr:0) [1000000] @cpu
    new = AddV2(old:0, scaled:0) [1000000] @cpu
    keep = AssignVariableOp(m:0, new:0, ^old) [] @cpu
    total = Sum(dy:0) [4] @cpu
    step = Mul(new:0, total:0) [1000000] @cpu
    update = AssignSubVariableOp(w:0, step:0, ^read) [] @cpu
    return h:0"""


def test_the_update_runs_beside_its_variable_and_the_gradient_crosses_once() -> None:
    """Both moments need g, so that their arithmetic goes along; dy -> total shrinks, and stays."""
    graph = parse(UPDATE)
    variables = placeable_variables(graph, DEVICE, 1000)
    assert variables == ("w", "m", "v")
    moved = set(moved_nodes(graph, variables))
    assert {"read", "old", "keep", "update", "new", "scaled", "step", "square", "more"} <= moved
    assert moved.isdisjoint({"g", "dy", "total", "h", "lr"})

    plan = decide(graph, TensorFlowMem(min_place_bytes=1000, min_swap_bytes=1000))
    sent = [t.value for p in plan.placements for t in p.transfers if not t.fetches]
    assert sorted(value.node for value in sent) == ["g", "lr", "total"]
    fetched = [t.value for p in plan.placements for t in p.transfers if t.fetches]
    assert fetched == [Value("read")]
    assert simulate(graph, COSTS, plan).peak_bytes < 2_100_000


def test_a_check_of_a_variable_that_only_the_device_waits_for_stays_there() -> None:
    """It reads what the host has, but nothing on the host needs it."""
    graph = parse("""
    x = _Arg() [1000000] @cpu
    w = _Variable() [1000000] @cpu
    rate = Const() [1] @cpu
    read = ReadVariableOp(w:0) [1000000] @cpu
    ok = CheckNumerics(read:0) [1000000] @cpu
    a = Exp(x:0) [1000000] @cpu
    b = MatMul(x:0, read:0) [1000000] @cpu
    g = AddV2(a:0, b:0, ^ok) [1000000] @cpu
    step = Mul(g:0, rate:0) [1000000] @cpu
    update = AssignSubVariableOp(w:0, step:0, ^read) [] @cpu
    return x:0""")
    moved = moved_nodes(graph, ("w",))
    assert moved.keys() >= {"read", "update"}
    assert not moved.keys() & {"ok", "g"}


def test_arithmetic_stays_on_the_device_where_the_host_takes_longer_than_the_copies() -> None:
    graph = parse(UPDATE)
    variables = placeable_variables(graph, DEVICE, 1000)
    arithmetic = {"square", "more", "scaled", "new", "step"}
    for on_host, stays in ((1e-3, True), (1e-6, False)):
        costs = Costs(
            seconds=dict.fromkeys(graph.by_name, 1e-6),
            host_seconds=dict.fromkeys(graph.by_name, on_host),
            to_host=1e10,
            from_host=1e10,
        )
        moved = moved_nodes(graph, variables, costs)
        assert {"read", "hold", "keep", "update"} <= moved.keys()
        assert arithmetic.isdisjoint(moved) if stays else arithmetic <= moved.keys()


def test_variables_that_a_loop_holds_stay() -> None:
    graph = parse("""
        w = _Variable() [1000000] @cpu
        v = _Variable() [1000000] @cpu
        loop = While(w:0) [4] @cpu
        r = ReadVariableOp(v:0) [1000000] @cpu
        s = Sum(r:0) [4] @cpu
        return s:0, loop:0""")
    assert placeable_variables(graph, DEVICE, 1) == ("v",)


def test_levels_of_placement_begin_with_what_is_read_least() -> None:
    sizes = {"a": 2, "b": 2, "c": 2, "d": 2}  # MB
    lines = ["x = _Arg() [1000] @cpu"]
    for times, (name, size) in enumerate(sizes.items(), 1):
        lines.append(f"{name} = _Variable() [{size * 10**6}] @cpu")
        lines.append(f"{name}_read = ReadVariableOp({name}:0) [{size * 10**6}] @cpu")
        lines += [f"{name}{i} = MatMul(x:0, {name}_read:0) [1000] @cpu" for i in range(times)]
    lines += ["slot = _Variable() [2000000] @cpu", "old = ReadVariableOp(slot:0) [2000000] @cpu"]
    lines += [
        "new = Mul(old:0, old:0) [2000000] @cpu",
        "keep = AssignVariableOp(slot:0, new:0) [] @cpu",
    ]
    graph = parse("\n".join([*lines, "return d0:0"]))
    assert [set(level) for level in placement_levels(graph, DEVICE)] == [
        set(), {"slot"}, {"slot", *"ab"}, {"slot", *"abc"}, {"slot", *"abcd"}
    ]  # fmt: skip


def test_families_are_placed_together() -> None:
    graph = parse("""
        g = _Arg() [1000] @cpu
        w = _Variable() [1000] @cpu
        m = _Variable() [8] @cpu
        other = _Variable() [8] @cpu
        u = ResourceApplyMomentum(w:0, m:0, g:0) [] @cpu
        r = ReadVariableOp(other:0) [8] @cpu
        return r:0""")
    assert placeable_variables(graph, DEVICE, 500) == ("w", "m")


def test_partitions_leave_constants_and_host_nodes_out() -> None:
    graph = parse("""
        x = _Arg() [8] @cpu
        k = Const() [8] @cpu
        a = Mul(x:0, k:0) [8] @cpu
        b = Neg(a:0) [8] @host
        c = Neg(a:0) [8] @cpu
        d = Neg(c:0) [8] @cpu
        return d:0""")
    partitions = Partitions(graph, DEVICE, 2)
    assert partitions.chain == ("a", "c", "d")
    assert [partitions.of[name] for name in "acd"] == [0, 0, 1]
    assert (partitions.first(1), partitions.last(0), partitions.first(9)) == ("d", "c", "")


@pytest.mark.parametrize(("passed", "leaves"), [(0, {"x", "y"}), (4, {"x"})])
def test_a_pool_that_passes_something_to_its_gradient_stays(passed: int, leaves: set[str]) -> None:
    plain = parse("""
        k = _Arg() [16] @cpu
        x = MatMul(k:0) [16] @cpu
        y = MaxPool(x:0) [8] @cpu
        a = Neg(y:0) [8] @cpu
        b = Neg(a:0) [8] @cpu
        c = Neg(b:0) [8] @cpu
        g = MaxPoolGrad(x:0, y:0, c:0) [16] @cpu
        return g:0""")
    nodes = tuple(
        dataclasses.replace(n, passed=passed if n.name == "y" else 0) for n in plain.nodes
    )
    partitions = Partitions(Graph(nodes, plain.outputs), DEVICE, 1)
    found = distant_evictions(partitions, distance=2, lead=1, pace=1, min_bytes=1)
    assert {one.value.node for one in found} == leaves


def request(budget: int | None, **changes: object) -> Request:
    made = Request(device=DEVICE, host=HOST, budget=budget)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_max_slowdown_is_kept() -> None:
    graph = training_chain(30, nbytes=10**7)
    with pytest.raises(BudgetError, match="above max_slowdown"):
        carry_out(graph, COSTS, request(None, max_slowdown=1.0), SMALL)


def test_a_strategy_that_gains_nothing_changes_nothing() -> None:
    graph = parse("x = _Arg() [64] @cpu\ny = Relu(x:0) [64] @cpu\nreturn y:0")
    decision = carry_out(graph, COSTS, request(None), SMALL)
    assert decision.plan.is_noop
    assert "not below the original's" in decision.plan.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_size": 0}, "partition_size=0"),
        ({"window": 0}, "window=0"),
        ({"order": "random"}, "use 'memory' or 'depth_first'"),
        ({"swap_distance": 1}, "would be back before it left"),
    ],
)
def test_bad_fields_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(Error, match=message):
        TensorFlowMem(**options)  # type: ignore[arg-type]


def test_plans_of_further_devices_go_along() -> None:
    graph = training_chain(6)
    plan = decide(graph)
    both = dataclasses.replace(plan, others=(dataclasses.replace(plan, device="other"),))
    assert Plan.from_json(both.to_json()) == both
    assert not dataclasses.replace(Plan(), others=(plan,)).is_noop
    assert both.summary().count("predicted peak") == 2
    assert (
        "nothing changed on cpu"
        in dataclasses.replace(Plan(device="cpu"), others=(plan,)).summary()
    )


def test_what_is_no_plan_is_refused() -> None:
    for text in ("", "{}", "[1]", '{"order": 3}', "[" * 100_000, "null"):
        with pytest.raises(Error, match="not a plan in JSON"):
            Plan.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"window": "1"},
        {"window": True},
        {"peak_bytes": -1},
        {"peak_bytes": 10**400},
        {"step_seconds": float("nan")},
        {"step_seconds": float("inf")},
        {"order": ["a", 3]},
        {"order": "ab"},
        {"device": "\ud800"},
        {"reason": None},
        {"speed": 3},
        {"recomputations": [{"node": "a", "users": [["b"]], "index": 1}]},
        {"recomputations": [{"node": "a", "users": ["b"], "index": float("inf")}]},
        {"recomputations": [{"node": "a", "users": ["b"]}]},
        {"evictions": [{"value": ["a", -1], "fetches": [], "pace": ""}]},
        {"evictions": [{"value": ["a"], "fetches": [], "pace": ""}]},
        {"others": [[]]},
    ],
    ids=str,
)
def test_a_plan_of_which_a_field_cannot_be_is_refused(change: dict) -> None:
    text = decide(training_chain(6)).to_json()
    with pytest.raises(Error, match="not a plan in JSON"):
        Plan.from_json(json.dumps(json.loads(text) | change))
