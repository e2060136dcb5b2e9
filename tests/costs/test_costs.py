"""Costs: seconds from sizes, loops and branches from their bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfmem.costs.static import static_costs, with_measured
from tfmem.costs.types import Costs, Measured, Rates
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.simulation.callers import with_bodies
from tfmem.simulation.contents import studied

GRAPH = parse("""
    x = _Arg() [1024] @/device:CPU:0
    a = MatMul(x:0, x:0) [2048] @/device:CPU:0
    w = While(a:0, x:0) [2048, 1024] @/device:CPU:0
    return w:0""")


def priced(graph: Graph, bodies: Bodies) -> Costs:
    device = "/device:CPU:0"
    found = studied(Body(graph, bodies=bodies), 256)
    costs = static_costs(found.graph, flops={}, device=device)
    return with_bodies(costs, found.graph, found.bodies)


def test_seconds_come_from_operations_or_from_bytes() -> None:
    slow = static_costs(GRAPH, flops={"a": 1e12}, device="/device:CPU:0")
    fast = static_costs(GRAPH, flops={"a": 1e12}, device="/device:GPU:0")
    assert slow.seconds["a"] > fast.seconds["a"] > fast.seconds["w"] > 0
    assert "x" not in slow.seconds
    assert fast.to_host > slow.to_host


def test_what_gives_out_a_buffer_that_is_there_moves_no_bytes() -> None:
    graph = parse("""
        w = _Variable() [1000000] @/device:GPU:0
        r = ReadVariableOp(w:0) [1000000] @/device:GPU:0
        flat = Reshape(r:0) [1000000] @/device:GPU:0
        sizes = Shape(r:0) [8] @/device:GPU:0
        n = Neg(flat:0) [1000000] @/device:GPU:0
        return n:0, sizes:0""")
    costs = static_costs(graph, flops={}, device="/device:GPU:0", rates=Rates(1e12, 1e9, 1e-6))
    assert costs.seconds == pytest.approx({"r": 1e-6, "flat": 1e-6, "sizes": 1e-6, "n": 2.001e-3})


def test_reads_of_a_variable_whose_rows_are_accessed_are_copies() -> None:
    graph = parse("""
        w = _Variable() [1000000] @/device:GPU:0
        i = _Arg() [4] @/device:GPU:0
        row = ResourceGather(w:0, i:0) [1000] @/device:GPU:0
        r = ReadVariableOp(w:0) [1000000] @/device:GPU:0
        return r:0, row:0""")
    costs = static_costs(graph, flops={}, device="/device:GPU:0", rates=Rates(1e12, 1e9, 1e-6))
    assert costs.seconds["r"] == pytest.approx(2.001e-3)


def test_updates_read_and_write_what_they_touch() -> None:
    graph = parse("""
        w = _Variable() [1000000] @/device:GPU:0
        v = _Variable() [1000000] @/device:GPU:0
        i = _Arg() [4] @/device:GPU:0
        x = _Arg() [1000000] @/device:GPU:0
        y = _Arg() [2000] @/device:GPU:0
        written = AssignVariableOp(v:0, x:0) [] @/device:GPU:0
        added = AssignAddVariableOp(w:0, x:0) [] @/device:GPU:0
        rows = ResourceScatterAdd(w:0, i:0, y:0) [] @/device:GPU:0
        row = ResourceGather(w:0, i:0) [2000] @/device:GPU:0
        return row:0""")
    costs = static_costs(graph, flops={}, device="/device:GPU:0", rates=Rates(1e12, 1e9, 0.0))
    moved = {name: seconds * 1e9 for name, seconds in costs.seconds.items()}
    assert moved == pytest.approx({"written": 2e6, "added": 3e6, "rows": 6004, "row": 4004})


@pytest.mark.parametrize(("values", "moved"), [(9, 10), (10, 13), (17, 20), (18, 23)])
def test_long_sums_are_read_and_written_once_more_for_each_eight(values: int, moved: int) -> None:
    inputs = "".join(f"x{i} = _Arg() [1000] @/device:CPU:0\n" for i in range(values))
    names = ", ".join(f"x{i}:0" for i in range(values))
    graph = parse(f"{inputs} s = AddN({names}) [1000] @/device:CPU:0\n return s:0")
    costs = static_costs(graph, flops={}, device="/device:CPU:0", rates=Rates(1e12, 1e3, 0.0))
    assert costs.seconds["s"] == pytest.approx(moved)


def test_sizes_are_rounded_up() -> None:
    assert [Costs().allocated(n) for n in (0, 1, 256, 257)] == [0, 256, 256, 512]


BODY = """
    i = _Arg() [2048] @/device:CPU:0
    x = _Arg() [1024] @/device:CPU:0
    h = MatMul(i:0, x:0) [4096] @/device:CPU:0
    j = MatMul(h:0) [2048] @/device:CPU:0
    return j:0, x:0"""
CONDITION = """
    i = _Arg() [2048] @/device:CPU:0
    x = _Arg() [1024] @/device:CPU:0
    c = Any(i:0) [1] @/device:CPU:0
    return c:0"""


def test_a_loop_is_charged_what_its_body_takes_beside_its_inputs_and_outputs() -> None:
    """What it is given ends with its last reader; x is handed on, and kept by the caller."""
    costs = priced(GRAPH, {"w": (Body(parse(CONDITION)), Body(parse(BODY)))})
    assert costs.workspace["w"] == 4096 + 2048 - 2048 - 2048


def test_a_branch_is_charged_what_the_largest_takes() -> None:
    branch = parse(str(GRAPH).replace("While(a:0, x:0)", "If(x:0, a:0, x:0)"))
    costs = priced(branch, {"w": (Body(parse(BODY)),)})
    assert costs.workspace["w"] == 4096 - 2048 + 2048 - 2048
    small, large = (Body(parse(BODY), workspace={"h": nbytes}) for nbytes in (1024, 6144))
    costs = priced(branch, {"w": (small, small)})
    assert costs.workspace["w"] == 4096 + 1024 - 2048
    costs = priced(branch, {"w": (small, large)})
    assert costs.workspace["w"] == 4096 + 6144 - 2048


@pytest.mark.parametrize(("returned", "scratch"), [("j:0", [1536]), ("y:0", [512, 1536])])
def test_a_kernel_in_a_body_asks_for_its_buffers_in_order(
    returned: str, scratch: list[int]
) -> None:
    """The first scratch of TensorFlow's own gradient of a pool is the pool's output, if it can."""
    text = str(GRAPH).replace("While(a:0, x:0)", "If(x:0, a:0, x:0)")
    branch = parse(text.replace("return w:0", "return w:0, w:1"))
    plain = parse(f"""
        i = _Arg() [2048] @/device:CPU:0
        x = _Arg() [1024] @/device:CPU:0
        y = MaxPool(i:0) [512] @/device:CPU:0
        g = MaxPoolGrad(i:0, y:0, x:0) [2560] @/device:CPU:0
        j = MatMul(g:0) [2048] @/device:CPU:0
        return j:0, {returned}""")
    nodes = (replace(n, lent=1) if n.name == "g" else n for n in plain.nodes)
    held: dict[str, Any] = {"workspace": {"g": 2048}, "buffers": {"g": (512, 1536, 0)}}
    costs = priced(branch, {"w": (Body(Graph(tuple(nodes), plain.outputs), **held),)})
    asked = [nbytes for _, nbytes in costs.requests["w"].events if nbytes > 0]
    assert asked == [512, *scratch, 2560, 2048]


def test_a_body_is_charged_what_the_bodies_within_it_take() -> None:
    inner = parse("""
        x = _Arg() [1024] @/device:CPU:0
        h = MatMul(x:0) [4096] @/device:CPU:0
        y = MatMul(h:0) [1024] @/device:CPU:0
        return y:0""")
    outer = parse("""
        i = _Arg() [2048] @/device:CPU:0
        x = _Arg() [1024] @/device:CPU:0
        c = If(x:0, x:0) [1024] @/device:CPU:0
        j = MatMul(c:0) [2048] @/device:CPU:0
        return j:0, x:0""")
    body = Body(outer, bodies={"c": (Body(inner),)})
    costs = priced(GRAPH, {"w": (Body(parse(CONDITION)), body)})
    assert costs.workspace["w"] == 4096 + 1024 - 2048 - 2048


def test_measured_seconds_take_the_place_of_those_from_sizes() -> None:
    graph = parse("""
        x = _Arg() [1024] @/device:CPU:0
        a = MatMul(x:0) [1024] @/device:CPU:0
        b = MatMul(a:0) [1024] @/device:CPU:0
        c = MatMul(b:0) [1024] @/device:CPU:0
        d = Tanh(c:0) [1024] @/device:CPU:0
        return d:0""")
    static = Costs({"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0}, {"a": 256, "b": 512, "d": 768})
    seconds = {"a": 2.0, "b": 8.0, "elsewhere": 1.0}
    found = with_measured(static, graph, Measured(seconds))
    assert found.seconds == {"a": 2.0, "b": 8.0, "c": 9.0, "d": 2.0}
    assert found.workspace == static.workspace
    found = with_measured(static, graph, Measured(seconds, {"b": 1024, "elsewhere": 256}))
    assert found.workspace == {"a": 0, "b": 1024, "d": 768}
    assert with_measured(static, graph, Measured({})) == static


def test_what_ran_on_the_host_says_what_the_host_takes() -> None:
    graph = parse("""
        x = _Arg() [1024] @/device:GPU:0
        a = Mul(x:0) [1024] @/device:GPU:0
        b = Mul(a:0) [1024] @/device:GPU:0
        return b:0""")
    static = Costs({"a": 1.0, "b": 2.0}, host_seconds={"a": 10.0, "b": 20.0})
    found = with_measured(static, graph, Measured({"a": 2.0}, host_seconds={"b": 60.0}))
    assert found.seconds == {"a": 2.0, "b": 4.0}
    assert [found.seconds_on_host(name) for name in ("a", "b")] == [30.0, 60.0]
