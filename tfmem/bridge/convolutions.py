"""Scratch of TensorFlow's own convolutions on a CPU, in whose place oneDNN's may run."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tfmem.bridge.shapes import Call, Shape
from tfmem.runtime import caches, devices

_TARGET, _CACHE = 30 * 2**20, 256 * 2**10
"""Bytes that TensorFlow takes the third and the second level of a CPU's cache to have."""

_FILTER_OF_VOLUMES = "Conv3DBackpropFilterV2"
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
    is_filter = call.op.endswith("Filter")
    pictures, kernel, gradient = inputs[0] if is_filter else out, inputs[1], inputs[2]
    kernel = out if is_filter else kernel
    places, patch, features = prod(gradient[1:3]), prod(kernel[:3]), kernel[3]
    work = places * features + patch * features + places * patch
    is_enough = work // devices.threads_of_a_kernel() >= _CACHE // call.itemsize
    is_single = not is_filter and (pictures[0] == 1 or is_enough)
    count = 1 if is_single else -(-(_TARGET // call.itemsize) // work)
    return count * places * patch * call.itemsize


def _volume_gradient(call: Call, inputs: list[Shape], out: Shape) -> int:
    """Patches of volumes as rows of a matrix, unless they are too many times the operands.

    As many volumes at a time as fill the last level of the cache; that of the input takes one at a
    time if there is but one. Eigen's kernel of the filter's in float16 gathers none
    (`conv_grad_ops_3d.cc`).
    """
    is_filter = call.op == _FILTER_OF_VOLUMES
    if is_filter and call.dtype == "float16":
        return 0
    volumes, kernel, gradient = inputs[0] if is_filter else out, inputs[1], inputs[2]
    kernel = out if is_filter else kernel
    places, patch, features = prod(gradient[1:4]), prod(kernel[:4]), kernel[4]
    work = places * features + patch * features + places * patch
    is_single = not is_filter and volumes[0] == 1
    count = 1 if is_single else -(-(caches.last_level() // call.itemsize) // max(1, work))
    gathered = count * places * patch
    operands = sum(map(prod, (volumes, kernel, gradient)))
    return gathered * call.itemsize if gathered // max(1, operands) <= _MOST_GATHERED else 0


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
    _FILTER_OF_VOLUMES: _volume_gradient,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
}
"""As of `workspace`, by op."""
