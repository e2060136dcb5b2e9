"""What shapes tell about the scratch of kernels that only a GPU has.

Read in TensorFlow's kernels, and seen in the requests of each alone on an H200 (TensorFlow 2.21,
`tests/bridge/h200_requests.jsonl`). Of 341 op types tried these hold more than some small buffers.
What cuDNN and cuSOLVER choose when they run first is not among it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tfmem.bridge.shapes import Call, Shape

_INDEX, _SUM, _COUNT = 4, 4, 8
"""Bytes of an index, of a number that is summed up, of a count."""

_ALIGNMENT = 256
"""Bytes of which the parts of a sort's memory are multiples; it has one more of them."""

_SORTED_COLUMNS, _SORTED_VALUES = 1000, 100
"""Columns up to which all are sorted for the largest of them, and how many are wanted from which on
(`topk_op_gpu.h`)."""

_FIRST = {"NHWC": 1, "NDHWC": 1, "NCHW": 2, "NCDHW": 2}
"""Axis of a picture that is its height or depth."""


def _softmax(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The largest and the sum of each row, both in the shape of the output."""
    return 0, prod(out) * call.itemsize, prod(out) * max(call.itemsize, _SUM)


def _cross_entropy(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A number for each row, made before the losses; the logits and that once more."""
    each = prod(out) * call.itemsize
    return each, 0, prod(inputs[0]) * call.itemsize, each


def _top_k(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The index of each value, both sorted unless that is the output, and what sorting takes.

    A few of many columns are found without.
    """
    columns, count = inputs[0][-1], prod(inputs[0])
    if columns > _SORTED_COLUMNS and out[-1] != columns and out[-1] < _SORTED_VALUES:
        return ()
    indices, values = count * _INDEX, count * call.itemsize
    ordered = () if out[-1] == columns else (indices, values)
    parts = (-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in (indices, values))
    return 0, indices, *ordered, sum(parts) + _ALIGNMENT


def _in_top_k(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Which classes are above that of the row, and their number."""
    return 0, prod(inputs[0]) * _COUNT, prod(out) * _COUNT


def _rounded(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """What is compared to round to even, as buffers of their own."""
    if call.dtype == "bfloat16":
        return ()
    each = prod(out) * call.itemsize
    return each, each, each, each, prod(out), 0


def _remainder(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    return prod(out) * call.itemsize, 0


def _pool_gradient(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """cuDNN wants the pool's input and output, which an average does not have."""
    return 0, prod(out) * call.itemsize, prod(inputs[1]) * call.itemsize


def _pool_of_volumes(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Input and output with channels first; of a gradient those of the pool, too."""
    if call.attrs.get("data_format") == "NCDHW":
        return ()
    shapes = (inputs[-1], out) if call.op in _POOLS_OF_VOLUMES else (out, inputs[-1]) * 2
    return 0, *(prod(shape) * call.itemsize for shape in shapes)


def _drawn(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """For each class and sample its noise and score, for each sample the best score."""
    scores = prod(inputs[0]) * out[-1] * _SUM
    return 0, scores, scores, prod(out) * _SUM


def _inverse_transform(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The input, which cuFFT writes to."""
    return 0, prod(inputs[0]) * 2 * call.itemsize


def _factored(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A copy of each matrix, in which it is factored, and of right-hand sides."""
    return 0, *(prod(shape) * call.itemsize for shape in inputs)


def _unique(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Of a dozen buffers that its steps hold for some time, as many as are held at once."""
    return *[prod(inputs[0]) * _INDEX] * (5 if "Counts" in call.op else 4), 0


def _convolution(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """The filter as cuDNN wants it, and the picture filled up to be as wide on both sides.

    The gradient of a picture is made apart, and apart from what fills it up.
    """
    is_of_picture = "Input" in call.op
    if "Filter" in call.op:
        picture, kernel, made = inputs[0], out, inputs[2]
    elif is_of_picture:
        picture, kernel, made = out, inputs[1], inputs[2]
    else:
        picture, kernel, made = inputs[0], inputs[1], out
    turned = prod(kernel) * call.itemsize
    filled = _filled_up(call, picture, kernel, made)
    shapes = [filled] * (is_of_picture or filled != picture)
    shapes += [picture] * (is_of_picture and filled != picture)
    padded = (prod(shape) * call.itemsize for shape in shapes)
    return (0, turned, *padded) if is_of_picture else (0, *padded, turned)


def _filled_up(call: Call, picture: Shape, kernel: Shape, made: Shape) -> Shape:
    """The shape of a picture that is padded by one more on one side, if it has to be."""
    first = _FIRST.get(str(call.attrs.get("data_format")))
    strides, dilations = (call.attrs.get(name) for name in ("strides", "dilations"))
    if first is None or not isinstance(strides, tuple) or call.attrs.get("padding") != "SAME":
        return picture
    dilations = dilations if isinstance(dilations, tuple) and dilations else (1,) * len(picture)
    filled = list(picture)
    for axis, width in enumerate(kernel[:-2], first):
        reach = (made[axis] - 1) * strides[axis] + (width - 1) * dilations[axis] + 1
        filled[axis] += max(0, reach - picture[axis]) % 2
    return tuple(filled)


NEVER_IN_PLACE = frozenset(("Round", "Rint"))
"""Elementwise ops whose output is never the input's buffer, as it is on a CPU."""

_POOLS_OF_VOLUMES = ("AvgPool3D", "MaxPool3D")

CONVOLUTIONS = (
    *("Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
)

GPU_RULES: dict[str, Callable[[Call, list[Shape], Shape], tuple[int, ...]]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "TopKV2": _top_k,
    "InTopKV2": _in_top_k,
    **dict.fromkeys(("Round", "Rint"), _rounded),
    **dict.fromkeys(("FloorMod", "TruncateDiv"), _remainder),
    "AvgPoolGrad": _pool_gradient,
    **dict.fromkeys((*_POOLS_OF_VOLUMES, "AvgPool3DGrad", "MaxPool3DGrad"), _pool_of_volumes),
    **dict.fromkeys(("Multinomial", "StatelessMultinomial"), _drawn),
    **dict.fromkeys(("IRFFT", "IRFFT2D", "IRFFT3D"), _inverse_transform),
    **dict.fromkeys(("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant"), _factored),
    **dict.fromkeys(("Lu", "MatrixSolve"), _factored),
    **dict.fromkeys(("Unique", "UniqueWithCounts"), _unique),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}
"""What a GPU's kernels hold, by op; in the place of `workspace`'s rules for all devices."""
