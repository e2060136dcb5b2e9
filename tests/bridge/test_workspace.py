"""Scratch of kernels from shapes, as measured; buffers that kernels pass on, or make last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfmem.bridge import kernels
from tfmem.bridge.shapes import Call
from tfmem.bridge.workspace import of_kernel, passed, workspace
from tfmem.graph.ops import LOSSES
from tfmem.runtime import caches, devices
from tfmem.runtime.limited import run_limited

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


@pytest.fixture(autouse=True)
def _onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AVX-512, on which TensorFlow runs oneDNN's kernels unasked."""
    monkeypatch.setattr(kernels, "onednn_types", lambda: frozenset({"float32", "bfloat16"}))
    monkeypatch.setattr(kernels, "has_avx512", lambda: True)
    monkeypatch.setattr(kernels, "runs_half", lambda: False)


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's own kernels run."""
    monkeypatch.setattr(kernels, "onednn_types", frozenset)


@pytest.mark.parametrize(("runs_half", "copies"), [(True, ()), (False, (128, 128))])
def test_norms_of_float16_are_copied_where_onednn_does_not_take_them(
    monkeypatch: pytest.MonkeyPatch, runs_half: bool, copies: tuple[int, ...]
) -> None:
    monkeypatch.setattr(kernels, "runs_half", lambda: runs_half)
    shape, attrs = (1, 4, 16, 1), {"data_format": "NCHW"}
    call = Call("FusedBatchNormV3", [shape], [shape], 2, attrs, dtype="float16")
    assert workspace(call) == copies
    gradient = Call("FusedBatchNormGradV3", [shape] * 2, [shape], 2, attrs, dtype="float16")
    assert workspace(gradient) == (128, 128, 128, 256)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "threads_of_a_kernel", lambda: 2)


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


@pytest.mark.parametrize(("runs_half", "nbytes"), [(True, 0), (False, 9_805_824)])
@pytest.mark.usefixtures("two_threads")
def test_a_processor_with_instructions_for_float16_gathers_none_of_it(
    monkeypatch: pytest.MonkeyPatch, runs_half: bool, nbytes: int
) -> None:
    """As measured on one of each kind; the batch norm's gradient is TensorFlow's own on both."""
    monkeypatch.setattr(kernels, "runs_half", lambda: runs_half)
    inputs = [(4,), (3, 3, 64, 128), (8, 8, 8, 128)]
    call = Call("Conv2DBackpropInput", inputs, [(8, 16, 16, 64)], 2, {}, {}, "float16")
    assert sum(workspace(call)) == nbytes
    norm = Call("FusedBatchNormGradV3", [_IMAGE] * 2, [_IMAGE], 2, {}, {}, "float16")
    assert sum(workspace(norm)) == 8 * 32 * 32 * 16 * 4


_IMAGE, _KERNEL, _RESULT = (8, 32, 32, 16), (3, 3, 16, 32), (8, 32, 32, 32)
_DEEP, _SIZE = (3, 3, 21, 1), (4,)
_FEATURES = (8, 32, 32, 21)

# (op, type, bytes of an element, inputs, output, measured bytes of each buffer beside the outputs,
# of those before a 0 before them) with two threads, TensorFlow 2.21 without oneDNN.
OWN = [
    ("Conv2DBackpropInput", "float32", 4, [_SIZE, _KERNEL, _RESULT], _IMAGE, (589824,)),
    ("Conv2DBackpropFilter", "float32", 4, [_IMAGE, _SIZE, _RESULT], _KERNEL, (25362432,)),
    ("Conv2DBackpropFilter", "bfloat16", 2, [_IMAGE, _SIZE, _RESULT], _KERNEL, (25362432,)),
    ("Conv2D", "float32", 4, [_IMAGE, _KERNEL], _RESULT, ()),
    ("Conv2D", "float32", 4, [_IMAGE, (3, 3, 4, 32)], _RESULT, (0, 524288, 4608, 1048576)),
    ("DepthwiseConv2dNative", "float32", 4, [_FEATURES, _DEEP], _FEATURES, (0, 864, 864)),
    *(
        ("DepthwiseConv2dNativeBackpropFilter", *of_type, [_FEATURES, _SIZE], _DEEP, asked)
        for of_type, asked in (
            (("float32", 4), (0, 6912, 864)),
            (("bfloat16", 2), (0, 3456, 432)),
        )
    ),
    *(
        ("DepthwiseConv2dNativeBackpropInput", "float32", 4, [_SIZE, kernel, image], image, asked)
        for kernel, image, asked in (
            (_DEEP, _FEATURES, (0, 864, 864)),
            ((3, 3, 16, 1), _IMAGE, (0, 576)),
        )
    ),
    ("MatMul", "float32", 4, [(512, 300), (300, 700)], (512, 700), ()),
    ("MatMul", "bfloat16", 2, [(512, 300), (300, 700)], (512, 700), (614400, 840000, 1433600)),
    ("BatchMatMulV2", "float32", 4, [(8, 512, 300), (8, 300, 700)], (8, 512, 700), ()),
    *(
        ("BatchMatMulV2", half, 2, [(8, 512, 300), (1, 300, 700)], (8, 512, 700), parts)
        for half, parts in (
            ("bfloat16", (4915200, 840000, 11468800)),
            ("float16", (4915200, 840000, 11468800)),
        )
    ),
    ("FusedBatchNormGradV3", "float32", 4, [_IMAGE] * 2, _IMAGE, ()),
    ("FusedBatchNormGradV3", "bfloat16", 2, [_IMAGE] * 2, _IMAGE, (524288,)),
    ("FusedBatchNormGradV3", "float16", 2, [*[_IMAGE] * 2, *[(32,)] * 3, None], _IMAGE, (524288,)),
]


@pytest.mark.usefixtures("two_threads", "own_kernels")
@pytest.mark.parametrize(("op", "dtype", "itemsize", "inputs", "out", "asked"), OWN)
def test_tensorflows_own_kernels_hold_other_scratch_than_onednns(
    op: str, dtype: str, itemsize: int, inputs: list[Any], out: Any, asked: tuple[int, ...]
) -> None:
    assert workspace(Call(op, inputs, [out], itemsize, {}, {}, dtype)) == asked


# (sizes of a side of the volume and of the kernel, volumes, values of each place before and after,
# stride, type, bytes of an element, measured bytes for the input's and the filter's gradient) on a
# processor whose last cache has 256 MiB, TensorFlow 2.21 without oneDNN.
VOLUMES = [
    ((32, 3), 2, (48, 16), 1, "float32", 4, 339738624, 339738624),
    ((16, 3), 1, (16, 16), 1, "float32", 4, 7077888, 0),
    ((24, 3), 1, (32, 8), 2, "float64", 8, 11943936, 0),
    ((16, 3), 4, (64, 64), 1, "float32", 4, 0, 0),
    ((16, 3), 4, (64, 64), 1, "float64", 8, 283115520, 283115520),
    ((40, 3), 3, (40, 20), 1, "float16", 2, 276480000, 0),
    ((48, 3), 2, (32, 32), 2, "bfloat16", 2, 262766592, 262766592),
    ((32, 9), 2, (1, 1), 1, "float32", 4, 0, 0),
]


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize(
    ("sides", "count", "values", "stride", "dtype", "itemsize", "to_input", "to_filter"), VOLUMES
)
def test_gradients_of_convolutions_gather_volumes_that_fill_the_last_cache(
    sides: tuple[int, int],
    count: int,
    values: tuple[int, int],
    stride: int,
    dtype: str,
    itemsize: int,
    to_input: int,
    to_filter: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caches, "last_level", lambda: 256 * 2**20)
    volumes, kernel = (count, *[sides[0]] * 3, values[0]), (*[sides[1]] * 3, *values)
    gradient, sizes = (count, *[-(-sides[0] // stride)] * 3, values[1]), (5,)
    of_input = Call("Conv3DBackpropInputV2", [sizes, kernel, gradient], [volumes], itemsize)
    of_filter = Call("Conv3DBackpropFilterV2", [volumes, sizes, gradient], [kernel], itemsize)
    found = [sum(workspace(replace(call, dtype=dtype))) for call in (of_input, of_filter)]
    assert found == [to_input, to_filter]


@pytest.mark.usefixtures("own_kernels")
def test_own_pools_pass_nothing_on_and_own_norms_make_outputs_in_order() -> None:
    small, large = (64, 16, 16, 32), (64, 32, 32, 32)
    pool, norm = Call("MaxPool", [large], [small]), Call("FusedBatchNormV3", [large], [large])
    assert of_kernel(pool, on_gpu=False) == of_kernel(norm, on_gpu=False) == {}
    gradient = Call("MaxPoolGrad", [large, small, small], [large])
    assert of_kernel(gradient, on_gpu=False) == {"inplace": (0,), "lent": 1}
    assert workspace(gradient) == (2 * 2**20, 4 * 2**20, 0)


def test_onednns_norms_make_their_first_output_last() -> None:
    norm = Call("FusedBatchNormV3", [(8, 4, 4, 2)], [(8, 4, 4, 2)])
    assert of_kernel(norm, on_gpu=False) == {"passed": 0, "last": 0}
    assert of_kernel(norm, on_gpu=True) == {}
    assert of_kernel(replace(norm, dtype="float16"), on_gpu=False) == {}


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
    gradient = replace(
        Call("MaxPoolGrad", [large, small, small], [large]), makers=("Relu", "MaxPool", "Mul")
    )
    assert (passed(pool, on_gpu=False), passed(pool, on_gpu=True)) == (2**19, 0)
    assert workspace(pool) == workspace(gradient) == ()
    assert passed(replace(pool, itemsize=8, dtype="float64"), on_gpu=False) == 0
    assert workspace(replace(gradient, itemsize=8, dtype="float64")) == (4 * 2**20, 4 * 2**20, 0)
    elsewhere = replace(gradient, makers=("", "Reshape", ""))
    assert workspace(elsewhere) == (2 * 2**20, 4 * 2**20, 0), "TensorFlow's own runs"
    assert of_kernel(elsewhere, on_gpu=False) == {"inplace": (0,), "lent": 1}


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyWithLogits", LOSSES[-1]])
def test_a_loss_makes_a_number_for_each_row_first(op: str) -> None:
    """As much as the logits of a third of three classes: pixels of a segmentation, say."""
    rows = (4, 64, 64)
    call = Call(op, [(*rows, 3), rows], [rows, (*rows, 3)])
    assert workspace(call) == (4 * 4 * 64 * 64, 0)
    assert workspace(call, on_gpu=True)[:2] == workspace(call)


@pytest.mark.parametrize(("devices", "parts"), [(1, ()), (2, (0, 2048)), (3, (0, 1344, 1344))])
def test_devices_that_sum_up_receive_the_parts_of_their_neighbours(
    devices: int, parts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are made beside the output, of which that of CollectiveReduceV2 is the input."""
    shape = (1000,)
    second = Call("CollectiveReduceV2", [shape, ()], [shape], constants={1: (devices,)})
    first = Call("CollectiveReduce", [shape], [shape], attrs={"group_size": devices})
    for has_cuda in (True, False):
        monkeypatch.setattr(kernels, "has_cuda", lambda has_cuda=has_cuda: has_cuda)
        for call in (first, second):
            assert workspace(call) == parts
            assert workspace(call, on_gpu=True) == (() if has_cuda else parts)
        by_ring = replace(second, attrs={"communication_hint": "ring"})
        assert workspace(by_ring, on_gpu=True) == parts


def test_unknown_shapes_and_other_ops_have_none() -> None:
    assert sum(workspace(Call("Einsum", [None, (2,)], [(2,)], 4, {"equation": "ij,j->i"}))) == 0
    assert sum(workspace(Call("MatMul", [(2, 2), (2, 2)], [(2, 2)]))) == 0


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Kernels of this machine, each run alone."""
    outcome = run_limited("tests.children.scratch:found", limit_bytes=2**30, timeout=200)
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.mark.memory
def test_kernels_that_run_alone_ask_for_what_is_foreseen(alone: dict[str, Any]) -> None:
    assert alone["unforeseen"] == []


@pytest.mark.memory
@pytest.mark.parametrize("kind", ["of volumes", "of norms", "of convolutions"])
def test_kernels_ask_for_each_buffer_that_is_foreseen(alone: dict[str, Any], kind: str) -> None:
    is_some = kind != "of convolutions" or alone["has onednn"]  # others ask for nothing
    assert any(asked for asked, _ in alone[kind]) == is_some
    assert all(asked == foreseen for asked, foreseen in alone[kind])
