"""What shapes tell about a kernel's scratch: bytes that it holds only while it runs.

Read in TensorFlow's kernels and measured on CPUs (TensorFlow 2.21, BFC statistics), with oneDNN's
kernels and with TensorFlow's own, which hold other scratch (`kernels.onednn_types`). Of some 200
kernels tried alone, in several types, these are the ones that hold more than a few per cent of
their operands, or more than 64 KiB; matrix products of two axes of float32, oneDNN's convolutions
(those of few channels are `asked`), batch norms of float32 with channels last, softmaxes, gathers,
transpositions, scans and elementwise kernels hold next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tfmem.bridge import kernels
from tfmem.bridge.convolutions import OWN_CONVOLUTIONS
from tfmem.bridge.gpu_workspace import GPU_RULES, NEVER_IN_PLACE
from tfmem.bridge.shapes import Call, Shape, spelt
from tfmem.graph.ops import LOSSES
from tfmem.runtime import devices

_ROWS, _COLUMNS, _DEPTH = 256, 64, 512
"""The largest block of a matrix product that oneDNN copies at a time, on a CPU with AVX-512; twice
as deep if only the second operand is copied and is more than twice as deep. Blocks of it have so
many columns even where it has fewer."""

_STRIP, _SUM_BYTES = 16, 4
"""Multiple that depths are rounded up to, columns of a sum that is kept apart; bytes of its
elements."""

_MANY_COLUMNS, _DESCRIPTION, _GAP = 512, 1536, 128
"""Columns from which on blocks of the second operand are copied in any case; bytes that oneDNN asks
for beside all blocks, and between those of both operands or before sums of bfloat16."""


_WIDE, _LONG, _TALL = 1024, 4096, 1024
"""Columns that a product of two matrices in parts copies at most; depth and rows from which on it
is taken in parts though its first operand lies as it should."""

_READ = 5
"""First inputs of which a rule may want the shapes; that of the sixth of a batch norm's gradient
is known to its kernel only."""


def workspace(call: Call, on_gpu: bool = False) -> tuple[int, ...]:
    """Bytes of the buffers that a node's kernel holds only while it runs; none known of, none.

    A 0 stands where the kernel makes its outputs; without one it makes them first. What a GPU's
    convolutions hold besides is chosen by cuDNN when it tries its algorithms: it is measured.
    """
    if on_gpu and _is_nccls(call):
        return ()
    own = _CUDA_RULES.get(call.op) if on_gpu and kernels.has_cuda() else None
    rule = own or _RULES.get(call.op) or (None if on_gpu else _rule_of_a_cpu(call))
    if rule is None or None in (*call.inputs[:_READ], *call.outputs[:1]) or not call.outputs:
        return ()
    found = rule(call, [s for s in call.inputs if s is not None], call.outputs[0] or ())
    return (found,) * bool(found) if isinstance(found, int) else found


def _einsum(
    call: Call, inputs: list[Shape], out: Shape, *, is_cudas: bool = False
) -> tuple[int, ...]:
    """Copies of operands whose axes do not stand as a batched matrix product wants them.

    The product takes (batch, free, contracted) or (batch, contracted, free); its result, (batch,
    free of the first, free of the second), is copied once more if the output is another.
    """
    equation = call.attrs.get("equation")
    if not isinstance(equation, str):
        return ()
    left, result = equation.replace(" ", "").split("->")
    terms = [spelt(term, shape) for term, shape in zip(left.split(","), inputs, strict=True)]
    result = spelt(result, out)
    copied: list[int] = []
    product, free_sizes, is_swapped, depth = "", [], [], 1
    for number, (term, shape) in enumerate(zip(terms, inputs, strict=True)):
        others = "".join(terms[:number] + terms[number + 1 :])
        batch = "".join(a for a in term if a in result and (a in others or a.isdigit()))
        free = "".join(a for a in term if a in result and a not in batch)
        contracted = "".join(a for a in term if a in others and a not in result)
        kept = batch + free + contracted
        if len(kept) == len(term) and term not in (kept, batch + contracted + free):
            copied.append(prod(shape) * call.itemsize)
        product = (product or batch) + free
        size_of = dict(zip(term, shape, strict=False))
        free_sizes.append(prod(size_of[a] for a in free))
        depth = prod(size_of[a] for a in contracted)
        is_swapped.append(term == batch + contracted + free != kept)
    if len(terms) == 1:
        return (*copied, 0) if copied else ()
    rows, columns = free_sizes
    blocks = 0
    if not is_cudas:
        blocks = _blocks(call, rows, columns, depth, is_swapped[0], not is_swapped[1])
    scratch = (blocks,) * bool(blocks)
    if product != result:
        return (*copied, prod(out) * call.itemsize, *scratch, 0)
    return (*copied, 0, *scratch) if copied or scratch else ()


def _product(call: Call, inputs: list[Shape], out: Shape) -> int | tuple[int, ...]:
    """Blocks of the operands; each of them and the product as float32, if it has no kernel."""
    first, second = inputs
    if call.dtype in _HALVES and not _is_onednn(call):
        return tuple(4 * prod(shape) for shape in (first, second, out))
    rows, columns = out[-2:]
    if call.op == "MatMul":
        if call.dtype != "bfloat16":
            return 0
        turns = bool(call.attrs.get("transpose_a")), bool(call.attrs.get("transpose_b"))
        return _of_two(call, rows, columns, first[-2 if turns[0] else -1], *turns)
    turns = bool(call.attrs.get("adj_x")), bool(call.attrs.get("adj_y"))
    return _blocks(call, rows, columns, first[-2 if turns[0] else -1], *turns)


def _of_two(call: Call, rows: int, columns: int, depth: int, turns_x: bool, turns_y: bool) -> int:
    """What oneDNN copies for the product of two matrices of bfloat16.

    As much as for one of a batch, unless it takes the rows in parts: then all columns are copied.
    """
    threads = devices.threads_of_a_kernel()
    block = 2 * _ROWS if depth >= _LONG and rows >= _TALL and not turns_x else _ROWS
    if not (turns_x and depth > _DEPTH) and block == _ROWS:
        strip = _ROWS * _STRIP * _SUM_BYTES if turns_x and depth == _DEPTH else 0
        return _blocks(call, rows, columns, depth, turns_x, turns_y) + threads * strip
    part = -(-_alike(rows, _DEPTH) // _STRIP) * _STRIP
    copied = (block + _alike(columns, _WIDE) + _STRIP) * part * call.itemsize
    return threads * (copied + block * _COLUMNS * _SUM_BYTES) + 2 * _GAP + _DESCRIPTION


def _alike(size: int, most: int) -> int:
    """Size of the fewest parts that are alike and no larger than `most`."""
    return -(-size // max(1, -(-size // most)))


def _blocks(call: Call, rows: int, columns: int, depth: int, turns_x: bool, turns_y: bool) -> int:
    """What oneDNN copies of operands that do not lie as it wants them, in each thread.

    It wants those of bfloat16 in pairs of rows, whose sums it keeps in float32. A product deeper
    than a block is summed up apart if its first operand is copied.
    """
    if not _is_onednn(call) or not kernels.has_avx512():
        return 0
    is_half = call.dtype == "bfloat16"
    block = _DEPTH if turns_x or depth <= 2 * _DEPTH else 2 * _DEPTH
    deep = min(-(-depth // _STRIP) * _STRIP, block)
    rows = _alike(rows, _ROWS)
    parts = [rows * deep * call.itemsize] if turns_x else []
    if copies_y := turns_y or columns >= _MANY_COLUMNS or is_half:
        parts.append(_COLUMNS * deep * call.itemsize)
    if depth > deep:
        parts += [rows * _STRIP * _SUM_BYTES] if turns_x else []
        parts += [rows * _COLUMNS * _SUM_BYTES] if is_half else []
    gaps = (turns_x and copies_y) + (is_half and depth > deep)
    return devices.threads_of_a_kernel() * sum(parts) + gaps * _GAP + _DESCRIPTION


def _is_onednn(call: Call) -> bool:
    """Whether oneDNN's kernel runs in the place of TensorFlow's own, on a CPU.

    That of a maximum pool's gradient needs the pool itself in its graph, which is elsewhere where a
    branch, a loop or a vectorized function is differentiated (`mkl_layout_pass.cc`).
    """
    if call.op == "MaxPoolGrad" and "MaxPool" not in call.makers[1:2]:
        return False
    if call.dtype == "float16" and call.op in _OF_HALF:
        return kernels.runs_half()
    return call.dtype in kernels.onednn_types()


def _as_float32(call: Call, inputs: list[Shape], out: Shape) -> int:
    """The output as float32, if it is of half its bytes."""
    return 4 * prod(out) if call.dtype in _HALVES else 0


def _norm(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Copies of images whose channels stand first, as they do where a layer norm is computed so."""
    return (prod(out) * call.itemsize,) * 2 if _are_channels_first(call) else ()


def _norm_gradient(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Such copies of both images and of the output, and the output as float32."""
    copies = (prod(out) * call.itemsize,) * 3 if _are_channels_first(call) else ()
    return (*copies, found) if (found := _as_float32(call, inputs, out)) else copies


def _are_channels_first(call: Call) -> bool:
    return str(call.attrs.get("data_format", "")).startswith("NC")


def _hue(call: Call, inputs: list[Shape], out: Shape) -> int:
    """The range of each pixel's channels."""
    return prod(out[:-1]) * call.itemsize


def _mirrored(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The input, to which what it mirrors is added."""
    return prod(inputs[0]) * call.itemsize, 0


def _histogram(call: Call, inputs: list[Shape], out: Shape) -> int:
    """The number of each value's bin."""
    return 4 * prod(inputs[0])


def _reduction(call: Call, inputs: list[Shape], out: Shape) -> int:
    """A transposed copy of the input, unless axes that lie together leave one of the short forms.

    `ReductionHelper` joins neighbouring axes that are all reduced or all kept and leaves out those
    of size 1; up to three such groups with the reduced ones on both sides or in the middle have
    kernels of their own.
    """
    axes = call.constants.get(1)
    if axes is None:
        return 0
    rank = len(inputs[0])
    reduced = {axis % rank for axis in axes} if rank else set()
    groups: list[bool] = []
    for axis, size in enumerate(inputs[0]):
        if size != 1 and groups[-1:] != [axis in reduced]:
            groups.append(axis in reduced)
    return prod(inputs[0]) * call.itemsize if len(groups) > 3 else 0


def _loss(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A number for each row, made before the losses, which are as many."""
    return prod(out) * call.itemsize, 0


def _reduction_of_devices(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """What a device receives of its neighbour in a ring: all parts of the input but its own.

    There are as many parts as devices, each a multiple of the alignment of a tensor
    (`ring_reducer.cc`, `collective_rma_local.cc`). NCCL's buffers are not the allocator's.
    """
    size = call.attrs.get("group_size") or call.constants.get(1, (0,))[0]
    if not isinstance(size, int) or size < 2:
        return ()
    part = -(-prod(out) * call.itemsize // size)
    return 0, *[-(-part // _ALIGNMENT) * _ALIGNMENT] * (size - 1)


def _is_nccls(call: Call) -> bool:
    """Whether GPUs sum up by NCCL."""
    is_reduction = call.op in _OF_DEVICES
    is_ring = str(call.attrs.get("communication_hint")).lower() == "ring"
    return is_reduction and not is_ring and kernels.has_cuda()


def passed(call: Call, on_gpu: bool) -> int:
    """Bytes that a node's kernel passes on to that of its gradient, beside its outputs.

    A maximum pool's: one for each output, where the maximum was (oneDNN).
    """
    is_passed = call.op in _POOLS and _is_onednn(call) and not on_gpu
    return prod(call.outputs[0]) if is_passed and call.outputs[0] else 0


def of_kernel(call: Call, on_gpu: bool) -> dict[str, Any]:
    """What a node's kernel does to buffers where that depends on whose it is: fields of `Node`.

    Norms of oneDNN make their first output last (seen in the requests of real steps). TensorFlow's
    own gradient of a maximum pool takes over the pool's input, and the pool's output as scratch
    (`maxpooling_op.cc`).
    """
    if on_gpu:
        return {"inplace": ()} if call.op in NEVER_IN_PLACE and kernels.has_cuda() else {}
    if _is_onednn(call):
        return {"passed": passed(call, on_gpu), "last": 0 if call.op in _NORMS else None}
    return {"inplace": (0,), "lent": 1} if call.op == "MaxPoolGrad" else {}


def _pool_gradient(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The pool's output once more, and the index of each maximum as an int64, before its own.

    The first is not made where nobody reads the pool's output any more (`Node.lent`).
    """
    return prod(inputs[1]) * call.itemsize, prod(inputs[1]) * 8, 0


_POOLS = ("MaxPool", "MaxPool3D")
_NORMS = ("FusedBatchNormV3", "_FusedBatchNormEx")
_HALVES = ("float16", "bfloat16")

_OF_HALF = {
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("MaxPool", "MaxPoolGrad", "FusedBatchNormV2", "FusedBatchNormV3"),
    *(f"DepthwiseConv2dNative{part}" for part in ("", "BackpropInput", "BackpropFilter")),
}
"""Ops that oneDNN's kernels compute in float16."""

_OF_DEVICES = ("CollectiveReduce", "CollectiveReduceV2")
"""Sums of what several devices have."""

_ALIGNMENT = 64
"""Bytes of which the parts of tensors are multiples."""

_Rule = Callable[[Call, list[Shape], Shape], int | tuple[int, ...]]

_RULES: dict[str, _Rule] = {
    "Einsum": _einsum,
    **dict.fromkeys(LOSSES, _loss),
    **{op: _reduction for op in ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")},
    **dict.fromkeys(_OF_DEVICES, _reduction_of_devices),
    "ResizeBilinearGrad": _as_float32,
    "MirrorPadGrad": _mirrored,
    "RGBToHSV": _hue,
}

_CUDA_RULES: dict[str, _Rule] = {**GPU_RULES, "Einsum": partial(_einsum, is_cudas=True)}
"""Of kernels of CUDA."""

_CPU_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    **{f"SparseSegment{kind}Grad": _as_float32 for kind in ("Sum", "Mean", "SqrtN")},
    "MaxPoolGradV2": _pool_gradient,
    "HistogramFixedWidth": _histogram,
}
"""Of kernels that a CPU alone has."""

_OWN_RULES: dict[str, _Rule] = {
    "MaxPoolGrad": _pool_gradient,
    **OWN_CONVOLUTIONS,
    **{f"FusedBatchNorm{version}": _norm for version in ("", "V2", "V3")},
    **{f"FusedBatchNormGrad{version}": _norm_gradient for version in ("", "V2", "V3")},
}
"""Of TensorFlow's own kernels on a CPU, in whose place oneDNN's may run."""


def _rule_of_a_cpu(call: Call) -> _Rule | None:
    own = None if _is_onednn(call) else _OWN_RULES.get(call.op)
    return own or _CPU_RULES.get(call.op)


WORKSPACE_OPS = frozenset((*_RULES, *_CPU_RULES, *_OWN_RULES, *_POOLS, *_NORMS, *GPU_RULES))
"""Ops of which something here knows; reductions need their second input's constant."""
