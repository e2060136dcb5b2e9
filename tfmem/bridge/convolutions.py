"""Scratch of TensorFlow's own convolutions on a CPU, in whose place oneDNN's may run."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tfmem.bridge.shapes import Call, Shape
from tfmem.runtime import caches, devices

_TARGET, _CACHE = 30 * 2**20, 256 * 2**10
"""Bytes that TensorFlow takes the third and the second level of a CPU's cache to have."""

_MOST_GATHERED = 25
"""Times the operands that patches of volumes may be; Eigen's kernel runs where they are more."""

_LANES = 8
"""Numbers of a vector, of all types, that depthwise convolutions take at a time."""


def _convolution_gradient(call: Call, inputs: list[Shape], out: Shape) -> int:
    """Patches of pictures as rows of a matrix.

    As many pictures at a time as fill the cache; that of the input takes one at a time if there is
    but one, or if one is enough work for all threads (`conv_grad_input_ops.h`,
    `conv_grad_filter_ops.cc`).
    """
    is_filter = "Filter" in call.op
    pictures, patches, work = _of_each(*_operands(is_filter, inputs, out))
    is_enough = work // devices.threads_of_a_kernel() >= _CACHE // call.itemsize
    is_single = not is_filter and (pictures == 1 or is_enough)
    count = 1 if is_single else -(-(_TARGET // call.itemsize) // work)
    return count * patches * call.itemsize


def _volume_gradient(call: Call, inputs: list[Shape], out: Shape) -> int:
    """Patches of volumes as rows of a matrix, unless they are too many times the operands.

    As many volumes at a time as fill the last level of the cache; that of the input takes one at a
    time if there is but one. Eigen's kernel of the filter's in float16 gathers none
    (`conv_grad_ops_3d.cc`).
    """
    is_filter = "Filter" in call.op
    if is_filter and call.dtype == "float16":
        return 0
    operands = _operands(is_filter, inputs, out)
    volumes, patches, work = _of_each(*operands)
    is_single = not is_filter and volumes == 1
    count = 1 if is_single else -(-(caches.last_level() // call.itemsize) // max(1, work))
    gathered, held = count * patches, sum(map(prod, operands))
    return gathered * call.itemsize if gathered // max(1, held) <= _MOST_GATHERED else 0


def _operands(is_filter: bool, inputs: list[Shape], out: Shape) -> tuple[Shape, Shape, Shape]:
    """What was convolved, the kernel, and the gradient of what came of it."""
    first, second, gradient = inputs
    return (first, out, gradient) if is_filter else (out, second, gradient)


def _of_each(pictures: Shape, kernel: Shape, gradient: Shape) -> tuple[int, int, int]:
    """How many pictures there are; numbers in the patches of one, and in all matrices for one."""
    places, patch, features = prod(gradient[1:-1]), prod(kernel[:-1]), kernel[-1]
    patches = places * patch
    return pictures[0], patches, places * features + patch * features + patches


def _convolution(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """All three with the groups of channels in front, if there are several."""
    picture, kernel = inputs
    if picture[-1:] == kernel[2:3]:
        return ()
    return (0, *(prod(shape) * call.itemsize for shape in (picture, kernel, out)))


def _depthwise(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A filter for each thread."""
    return (0, *[_padded(call, inputs[1])] * devices.threads_of_a_kernel())


def _depthwise_filter_gradient(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A filter for each picture, and one for their sum."""
    kernel = _padded(call, out)
    return 0, inputs[0][0] * kernel, kernel


def _depthwise_input_gradient(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """A filter, filled up before if it has to be."""
    kernel = _padded(call, inputs[1])
    return (0, *[kernel] * (1 if kernel == prod(inputs[1]) * call.itemsize else 2))


def _padded(call: Call, kernel: Shape) -> int:
    """Bytes of a depthwise filter whose channels are filled up to whole vectors."""
    rows, columns, channels, each = kernel
    return rows * columns * -(-channels * each // _LANES) * _LANES * call.itemsize


OWN_CONVOLUTIONS: dict[str, Callable[[Call, list[Shape], Shape], int | tuple[int, ...]]] = {
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _convolution_gradient,
    "Conv2DBackpropFilter": _convolution_gradient,
    "Conv3DBackpropInputV2": _volume_gradient,
    "Conv3DBackpropFilterV2": _volume_gradient,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
}
"""As of `workspace`, by op."""
