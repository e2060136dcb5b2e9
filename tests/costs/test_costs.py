"""Costs: seconds from sizes, workspaces from shapes, loops and branches from their bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfmem.bridge.shapes import Call
from tfmem.bridge.workspace import passed, workspace
from tfmem.costs.static import static_costs, with_measured
from tfmem.costs.types import Costs, Measured, Rates
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.graph.ops import LOSSES
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


# (equation, shapes, result, measured megabytes held beside operands and result; float32). Blocks of
# the product, of less than a megabyte for each thread, are held beside the result.
EINSUMS = [
    ("bij,bjk->bik", [(32, 256, 256), (32, 256, 256)], (32, 256, 256), 0),
    ("bthd,bshd->bhts", [(16, 128, 8, 64)] * 2, (16, 8, 128, 128), 8),
    ("bhts,bshd->bthd", [(16, 8, 128, 128), (16, 128, 8, 64)], (16, 128, 8, 64), 8),
    ("gsm,gsec->egcm", [(2, 512, 256), (2, 512, 8, 128)], (8, 2, 128, 256), 2),
    ("egcm,emh->egch", [(8, 2, 160, 256), (8, 256, 1024)], (8, 2, 160, 1024), 0),
    ("gsec,egcm->gsm", [(2, 512, 8, 128), (8, 2, 128, 256)], (2, 512, 256), 2),
    ("...nhi,...mhi->...nhm", [(64, 80, 4, 32)] * 2, (64, 80, 4, 80), 11.25),
    ("ij->ji", [(1024, 1024)], (1024, 1024), 0),
    ("ij->i", [(1024, 1024)], (1024,), 0),
]


@pytest.mark.parametrize(("equation", "inputs", "out", "megabytes"), EINSUMS)
def test_an_einsum_copies_what_stands_the_wrong_way_round(
    equation: str,
    inputs: list[tuple[int, ...]],
    out: tuple[int, ...],
    megabytes: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tfmem.bridge.workspace._blocks", lambda *_: 0)
    call = Call("Einsum", inputs, [out], 4, {"equation": equation})
    copies = workspace(call)
    assert sum(copies[: copies.index(0)] if copies else ()) == megabytes * 2**20


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfmem.bridge.workspace._threads", lambda: 2)


@pytest.mark.parametrize(
    ("op", "dtype", "inputs", "out", "attrs", "nbytes"),
    [
        ("MatMul", "float32", [(512, 1024), (1024, 768)], (512, 768), {}, 0),
        ("MatMul", "float16", [(512, 1024), (1024, 768)], (512, 768), {}, 6_815_744),
        ("BatchMatMulV2", "float32", [(16, 128, 256), (16, 256, 192)], (16, 128, 192), {}, 1536),
        ("BatchMatMulV2", "float16", [(16, 128, 256), (16, 256, 192)], (16, 128, 192), {}, 6815744),
        ("FusedBatchNormGradV3", "float16", [(32, 32, 32, 64)] * 2, (32, 32, 32, 64), {}, 2**23),
        ("FusedBatchNormGradV3", "float32", [(32, 32, 32, 64)] * 2, (32, 32, 32, 64), {}, 0),
    ],
)
def test_what_has_no_kernel_of_its_type_is_converted(
    op: str, dtype: str, inputs: list[Any], out: Any, attrs: dict[str, bool], nbytes: int
) -> None:
    """As measured on a CPU, TensorFlow 2.21."""
    assert sum(workspace(Call(op, inputs, [out], 4, attrs, {}, dtype))) == nbytes


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("turned", "rows", "columns", "depth", "nbytes"),
    [
        ((False, False), 4096, 256, 256, 67072),
        ((True, False), 4096, 256, 256, 329344),
        ((False, True), 768, 768, 4096, 394880),
        ((True, True), 512, 384, 512, 689792),
        ((True, False), 128, 768, 2048, 665344),
        ((True, False), 1024, 384, 768, 1476352),
        ((True, True), 384, 1024, 1024, 2123520),
        ((True, False), 2048, 4096, 2048, 2787072),
        ((False, True), 4096, 768, 4096, 2918144),
    ],
)
def test_a_product_of_two_matrices_of_bfloat16_copies_parts_of_them(
    turned: tuple[bool, bool], rows: int, columns: int, depth: int, nbytes: int
) -> None:
    """As measured on a CPU with two threads and AVX-512; oneDNN rounds to 64 bytes."""
    first = (depth, rows) if turned[0] else (rows, depth)
    second = (columns, depth) if turned[1] else (depth, columns)
    attrs = dict(zip(("transpose_a", "transpose_b"), turned, strict=True))
    call = Call("MatMul", [first, second], [(rows, columns)], 2, attrs, {}, "bfloat16")
    assert sum(workspace(call)) == pytest.approx(nbytes, abs=256)


# (whether the first and the second operand are turned, rows, columns, depth, measured bytes of
# blocks in float32 and bfloat16, None where nobody measured) on a CPU with two threads and AVX-512;
# where nothing is turned 1408, which take 1536 in the allocator.
BLOCKS = [
    ((False, False), 128, 192, 256, 1536, None),
    ((True, False), 128, 192, 256, 263680, None),
    ((False, True), 128, 192, 256, 132608, None),
    ((True, True), 128, 192, 256, 394880, None),
    ((True, True), 300, 64, 1024, 897408, None),
    ((False, True), 96, 16, 128, 67072, 34304),
    ((False, True), 96, 16, 100, 58880, None),
    ((False, True), 96, 64, 1024, 263680, 181888),
    ((False, True), 96, 64, 2048, 525824, 312960),
    ((True, False), 96, 64, 128, 99840, 83584),
    ((True, False), 96, 64, 1024, 407040, 390912),
    ((True, False), 300, 64, 128, 155136, 111232),
    ((True, False), 1000, 64, 700, 1057536, None),
    ((True, True), 96, 8, 2048, 669312, 390912),
]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("turned", "rows", "columns", "depth", "single", "half"), BLOCKS)
def test_a_batched_product_copies_blocks_of_what_is_turned(
    turned: tuple[bool, bool], rows: int, columns: int, depth: int, single: int, half: int | None
) -> None:
    first = (16, depth, rows) if turned[0] else (16, rows, depth)
    second = (16, columns, depth) if turned[1] else (16, depth, columns)
    attrs = dict(zip(("adj_x", "adj_y"), turned, strict=True))
    out = (16, rows, columns)
    for measured, dtype, itemsize in ((single, "float32", 4), (half, "bfloat16", 2)):
        found = sum(
            workspace(Call("BatchMatMulV2", [first, second], [out], itemsize, attrs, {}, dtype))
        )
        assert measured in (None, found)


@pytest.mark.usefixtures("two_threads")
def test_an_einsum_whose_result_is_copied_copies_blocks_before() -> None:
    inputs, out = [(4, 4, 64, 128), (4, 128, 4, 16)], (4, 64, 4, 16)
    call = Call("Einsum", inputs, [out], 4, {"equation": "bnij,bjnd->bind"})
    assert workspace(call) == (131072, 65536, 67072, 0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("dtype", "itemsize", "to_input", "to_filter"),
    [
        ("float16", 2, 9_805_824, 9_805_824),
        ("float64", 8, 294_912, 10_027_008),
        ("float32", 4, 0, 0),
    ],
)
def test_gradients_of_convolutions_gather_patches(
    dtype: str, itemsize: int, to_input: int, to_filter: int
) -> None:
    """As measured on a CPU with two threads."""
    image, kernel, result, size = (8, 16, 16, 64), (3, 3, 64, 128), (8, 8, 8, 128), (4,)
    facts = itemsize, {}, {}, dtype
    found = [
        sum(workspace(Call("Conv2DBackpropInput", [size, kernel, result], [image], *facts))),
        sum(workspace(Call("Conv2DBackpropFilter", [image, size, result], [kernel], *facts))),
    ]
    assert found == [to_input, to_filter]


@pytest.mark.parametrize(
    ("shape", "axes", "is_copied"),
    [
        ((1024, 2048), (0,), False),
        ((64, 32, 1024), (0, 2), False),
        ((64, 32, 1024), (1,), False),
        ((64, 32, 32, 32), (0, 2), True),
        ((64, 32, 32, 32), (1, -1), True),
        ((64, 32, 32, 32), (0, 1, 2), False),
        ((64, 1, 32, 32), (0, 2), False),
    ],
)
def test_a_reduction_over_scattered_axes_transposes_first(
    shape: tuple[int, ...], axes: tuple[int, ...], is_copied: bool
) -> None:
    call = Call("Sum", [shape, (len(axes),)], [()], 4, {}, {1: axes})
    count = 4
    for size in shape:
        count *= size
    assert sum(workspace(call)) == (count if is_copied else 0)


def test_pooling_keeps_where_its_maxima_were() -> None:
    small, large = (64, 16, 16, 32), (64, 32, 32, 32)
    pool = Call("MaxPool", [large], [small])
    gradient = Call("MaxPoolGrad", [large, small, small], [large])
    assert (passed(pool, on_gpu=False), passed(pool, on_gpu=True)) == (2**19, 0)
    assert workspace(pool) == workspace(gradient) == ()
    assert passed(replace(pool, itemsize=8, dtype="float64"), on_gpu=False) == 0
    assert workspace(replace(gradient, itemsize=8, dtype="float64")) == (8 * 2**20,)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyWithLogits", LOSSES[-1]])
def test_a_loss_makes_a_number_for_each_row_first(op: str) -> None:
    """As much as the logits of a third of three classes: pixels of a segmentation, say."""
    rows = (4, 64, 64)
    call = Call(op, [(*rows, 3), rows], [rows, (*rows, 3)])
    assert workspace(call) == (4 * 4 * 64 * 64, 0)
    assert workspace(call, on_gpu=True) == workspace(call)


def test_unknown_shapes_and_other_ops_have_none() -> None:
    assert sum(workspace(Call("Einsum", [None, (2,)], [(2,)], 4, {"equation": "ij,j->i"}))) == 0
    assert sum(workspace(Call("MatMul", [(2, 2), (2, 2)], [(2, 2)]))) == 0
