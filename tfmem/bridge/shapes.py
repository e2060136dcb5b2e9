"""What shapes tell about a kernel: its operations, and whether its outputs share an input's buffer.

Free of TensorFlow: `capture` describes a node by a `Call` and asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]

ALIGNMENT_BYTES = 64
"""TensorFlow's EIGEN_MAX_ALIGN_BYTES: a slice that starts off this boundary is copied."""


@dataclass(frozen=True, slots=True)
class Call:
    """One node as its kernel sees it.

    Attributes:
      op: TensorFlow's op type.
      inputs: shape of each input; None where it is unknown.
      outputs: shape of each output; None where it is unknown.
      itemsize: bytes of one element of the first output.
      attrs: attributes that are numbers, texts, truths or lists of these.
      constants: value of each small input that is a constant of integers, flattened.
      dtype: TensorFlow's name of the type of the first output.
      makers: op type of the maker of each input that is a first output, empty for the others.
      is_exact: whether shapes are those of each step; otherwise some are the largest there can be,
        and what is as large then need not be in others.
    """

    op: str
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    itemsize: int = 4
    attrs: Mapping[str, object] = field(default_factory=dict)
    constants: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    dtype: str = "float32"
    makers: Sequence[str] = ()
    is_exact: bool = True


def flops(call: Call) -> float:
    """Floating-point operations of a node; 0 where the op is not one of many operations.

    A multiplication and its addition count as two.
    """
    count = _FLOPS.get(call.op)
    if count is None or None in (*call.inputs[:2], *call.outputs[:1]):
        return 0.0
    return float(count(call, [s for s in call.inputs if s is not None], call.outputs[0] or ()))


def spelt(term: str, shape: Shape) -> str:
    """A term of an equation with a digit for each axis of its dots, counted from the last."""
    count = len(shape) - len(term.replace("...", ""))
    return term.replace("...", "".join(str(axis) for axis in reversed(range(count))))


def shared_input(call: Call) -> int | None:
    """Index of the input whose buffer all outputs of a node share, where attributes decide that.

    None where every output has a buffer of its own, or where what decides is not known.
    """
    if (rule := _SHARES.get(call.op)) is None or not call.inputs:
        return None
    index = 1 if call.op == "Split" else 0
    shape = call.inputs[index] if index < len(call.inputs) else None
    if shape is None or not call.outputs or None in call.outputs:
        return None
    return index if rule(call, shape, [s for s in call.outputs if s is not None]) else None


def opaque_nbytes(
    op: str,
    index: int,
    outputs: Sequence[Shape | None],
    dtype: str = "float32",
    *,
    is_own: bool = False,
) -> int | None:
    """Bytes of an output whose shape only the kernel knows; None for any other output.

    The last output of a batch norm is scratch for the gradient: empty, or a number if TensorFlow's
    own kernel runs on a CPU (`is_own`); for the norm fused with a ReLU a mask of one bit for each
    element, in a buffer of one float for each byte. It is of one byte for each where channels do
    not come in eights, those of bfloat16 in sixteens: a buffer as large as the output (seen with
    oneDNN in TensorFlow 2.21).
    """
    if index != 5 or op not in OPAQUE_OPS:
        return None
    shape = outputs[0]
    if op == "FusedBatchNormV3" or shape is None:
        return 4 if is_own else 0
    together = 16 if dtype == "bfloat16" else 8
    return 4 * (prod(shape) if shape[-1] % together else -(-prod(shape) // 8))


_SELECTING = ("ListDiff", *(f"NonMaxSuppressionV{version}" for version in (2, 3, 4, 5)))
_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_REDUCING = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")
_TOP = ("TopK", "TopKV2")
_DECODING = ("CTCGreedyDecoder", "CTCBeamSearchDecoder")


def most_elements(
    op: str, inputs: Sequence[Shape | None], index: int, rank: int | None = None
) -> Shape | None:
    """The largest shape an output can take that depends on data; None if there is no such bound.

    Args:
      op: of the node.
      inputs: shapes of what it reads.
      index: of the output.
      rank: of the output, where that is known.
    """
    if not inputs or inputs[0] is None:
        return None
    count = prod(inputs[0])
    if op == "Where":
        return (count, len(inputs[0]))
    if op == "ComputeAccidentalHits":
        return (count,)  # one sampled class, the last, hits each true class
    if op == "DynamicPartition":
        return None if inputs[1] is None else (prod(inputs[1]), *inputs[0][len(inputs[1]) :])
    if op in _DECODING:
        count = prod(inputs[0][:2])  # a symbol of each time in each sequence
        return (count, 2) if rank == 2 else (count,)
    if op in _SELECTING:
        return inputs[0][:1]
    if op in _REDUCING or op in _TOP:
        return inputs[0]  # over axes, or of a number of elements, that are not known
    if op == "BroadcastGradientArgs":
        return None if inputs[1] is None else max(inputs[0], inputs[1])
    return (count,) if op in _UNIQUE and len(inputs[0]) == 1 else None


def looked_up(keys: Shape | None, default: Shape | None) -> Shape | None:
    """Shape of what a table has for keys: one value, as large as the default, for each.

    None where the default might have a value for each key itself. Where keys are vectors, it is
    more than there is.
    """
    if keys is None or default is None or (keys and default[: len(keys)] == keys):
        return None
    return (*keys, *default)


def holding_all(found: Sequence[Shape | None]) -> Shape | None:
    """The least shape that holds each of some; None if one is not known, or of another rank."""
    known = [shape for shape in found if shape is not None]
    if not known or len(known) < len(found) or len({len(shape) for shape in known}) > 1:
        return None
    return tuple(map(max, zip(*known, strict=True)))


def least_common(found: Sequence[Shape | None], *, from_last: bool) -> list[Shape | None]:
    """Shapes in which each dimension but 1 is the least of those beside it in other shapes.

    Args:
      found: shapes; None where one is not known.
      from_last: whether last dimensions are beside each other, or first ones.
    """
    step = -1 if from_last else 1
    turned = [None if shape is None else shape[::step] for shape in found]
    rank = max((len(shape) for shape in turned if shape is not None), default=0)
    least = []
    for axis in range(rank):
        beside = [shape[axis] for shape in turned if shape is not None and axis < len(shape)]
        least.append(min((size for size in beside if size != 1), default=1))
    return [
        None
        if shape is None
        else tuple(size if size == 1 else least[axis] for axis, size in enumerate(shape))[::step]
        for shape in turned
    ]


def broadcast_axes(first: Shape, second: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes of the broadcast shape along which each of two shapes was stretched."""
    rank = max(len(first), len(second))
    one, other = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (first, second))

    def stretched(shape: Shape, beside: Shape) -> tuple[int, ...]:
        return tuple(i for i in range(rank) if shape[i] == 1 != beside[i])

    return stretched(one, other), stretched(other, one)


# Operations. Inputs and output have known shapes here.


def _matmul(call: Call, inputs: list[Shape], out: Shape) -> float:
    rows_last = call.attrs.get("transpose_a") or call.attrs.get("adj_x")
    return 2.0 * prod(out) * inputs[0][-2 if rows_last else -1]


def _convolution(call: Call, inputs: list[Shape], out: Shape) -> float:
    *window, channels, _ = inputs[1]
    return 2.0 * prod(out) * prod(window) * channels


def _convolution_gradient_input(call: Call, inputs: list[Shape], out: Shape) -> float:
    *window, channels, _ = inputs[1]
    return 2.0 * prod(inputs[2]) * prod(window) * channels


def _convolution_gradient_filter(call: Call, inputs: list[Shape], out: Shape) -> float:
    *window, channels, _ = out
    return 2.0 * prod(inputs[2]) * prod(window) * channels


def _depthwise(call: Call, inputs: list[Shape], out: Shape) -> float:
    return 2.0 * prod(out) * prod(inputs[1][:2])


def _depthwise_gradient(call: Call, inputs: list[Shape], out: Shape) -> float:
    window = out[:2] if call.op.endswith("Filter") else inputs[1][:2]
    return 2.0 * prod(inputs[2]) * prod(window)


def _einsum(call: Call, inputs: list[Shape], out: Shape) -> float:
    equation = call.attrs.get("equation")
    if not isinstance(equation, str) or len(inputs) < 2:
        return 0.0
    terms, _, _ = equation.replace(" ", "").partition("->")
    letters: dict[str, int] = {}
    for term, shape in zip(terms.split(","), inputs, strict=False):
        for letter, size in zip(spelt(term, shape), shape, strict=False):
            letters[letter] = max(size, letters.get(letter, 1))  # dots broadcast
    return 2.0 * prod(letters.values())


_MATMULS = """
    MatMul _FusedMatMul _MklMatMul SparseMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3
    _FusedBatchMatMulV2 _MklBatchMatMulV2 _MklFusedBatchMatMulV2
"""
_FLOPS: dict[str, Callable[[Call, list[Shape], Shape], float]] = {
    **dict.fromkeys(_MATMULS.split(), _matmul),
    **dict.fromkeys(("Conv2D", "_FusedConv2D", "_MklNativeFusedConv2D"), _convolution),
    **dict.fromkeys(("Conv3D", "_FusedConv3D"), _convolution),
    "Conv2DBackpropInput": _convolution_gradient_input,
    "Conv3DBackpropInputV2": _convolution_gradient_input,
    "Conv2DBackpropFilter": _convolution_gradient_filter,
    "Conv3DBackpropFilterV2": _convolution_gradient_filter,
    **dict.fromkeys(("DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative"), _depthwise),
    "DepthwiseConv2dNativeBackpropInput": _depthwise_gradient,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_gradient,
    "Einsum": _einsum,
}

FLOP_OPS = frozenset(_FLOPS)
"""Ops that `flops` counts."""


# Sharing, as the CPU kernels of TensorFlow 2.21 do it (slice_op.cc, strided_slice_op.cc,
# split_op.cc, unpack_op.cc, ops_util.h). `shape` is that of the input that would be shared.


def _is_row_aligned(call: Call, shape: Shape) -> bool:
    """Whether each step along the first dimension is a multiple of the alignment."""
    if not shape or shape[0] == 0:
        return False
    return prod(shape[1:]) * call.itemsize % ALIGNMENT_BYTES == 0


def _is_aligned_run(call: Call, shape: Shape, start: int, stop: int) -> bool:
    if len(shape) > 1:
        return _is_row_aligned(call, shape)
    return all(edge * call.itemsize % ALIGNMENT_BYTES == 0 for edge in (start, stop))


def _same_size(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return call.is_exact and len(outs) == 1 and outs[0] == shape


def _same_count(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return call.is_exact and len(outs) == 1 and prod(outs[0]) == prod(shape)


def _single(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return len(call.inputs) == 1


def _cast(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return call.attrs.get("SrcT") == call.attrs.get("DstT")


def _pack(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return call.attrs.get("N") == 1


def _transpose(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    order = call.constants.get(1)
    if order is None:
        return False
    moving = [axis for axis in order if shape[axis] != 1]
    return len(shape) <= 1 or moving == sorted(moving)


def _band_part(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    widths = call.constants.get(1), call.constants.get(2)
    return all(width is not None and width[0] < 0 for width in widths)


def _slice(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    if call.is_exact and outs[0] == shape:
        return True
    begin = call.constants.get(1)
    if begin is None or len(outs[0]) != len(shape) or outs[0][1:] != shape[1:]:
        return False
    return _is_aligned_run(call, shape, begin[0], outs[0][0])


def _strided_slice(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    begin, strides = call.constants.get(1), call.constants.get(3)
    if strides is None or any(stride != 1 for stride in strides):
        return False
    if call.is_exact and prod(outs[0]) == prod(shape):
        return True
    kinds = ("ellipsis", "new_axis", "shrink_axis", "begin")
    ellipsis, new_axis, shrunk, unset = (int(str(call.attrs.get(f"{k}_mask") or 0)) for k in kinds)
    if begin is None or (ellipsis | new_axis) & 1 or shrunk > 1 or not shape or not shape[0]:
        return False
    rows = 1 if shrunk else outs[0][0]
    if prod(outs[0]) != rows * prod(shape[1:]):
        return False
    start = 0 if unset & 1 else begin[0] % shape[0] if begin[0] < 0 else begin[0]
    return _is_aligned_run(call, shape, start, start + rows)


def _split(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    if len(outs) == 1:
        return True
    axis = call.constants.get(0 if call.op == "Split" else 2)
    if axis is None or axis[0] not in (0, -len(shape)):
        return False
    if call.op == "Split":
        return _is_row_aligned(call, shape)
    start = 0
    for out in outs:
        if not _is_aligned_run(call, shape, start, start + out[0]):
            return False
        start += out[0]
    return True


def _unpack(call: Call, shape: Shape, outs: list[Shape]) -> bool:
    return len(outs) == 1 or (call.attrs.get("axis") == 0 and _is_row_aligned(call, shape))


_SHARES: dict[str, Callable[[Call, Shape, list[Shape]], bool]] = {
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Split": _split,
    "SplitV": _split,
    "Unpack": _unpack,
    "Pack": _pack,
    "Transpose": _transpose,
    "MatrixBandPart": _band_part,
    "Cast": _cast,
    "AddN": _single,
    "IdentityN": _single,
    **dict.fromkeys(("BroadcastTo", "Tile", "Pad", "PadV2"), _same_size),
    **dict.fromkeys(["Sum", "Mean", "Max", "Min", "Prod", "All", "Any"], _same_count),
}

SHARING_OPS = frozenset(_SHARES)
"""Ops that `shared_input` has a rule for."""

OPAQUE_OPS = frozenset(("FusedBatchNormV3", "_FusedBatchNormEx"))
"""Ops of which `opaque_nbytes` knows an output."""
