"""What tests/bridge/test_workspace.py asks of a process with statistics: kernels that run alone.

    TF_CPU_ALLOCATOR_USE_BFC=true python -m tests.children.scratch

runs all ops that there are cases of, and prints which of them hold what is not foreseen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.simgpu import op_layers
from tests.simgpu.op_cases import CASES
from tests.simgpu.op_requests import call_of, recorded
from tests.simgpu.op_runner import NO_KERNEL
from tfmem.bridge import kernels
from tfmem.bridge.asked import Ask
from tfmem.bridge.capture import capture
from tfmem.bridge.shapes import Call
from tfmem.bridge.workspace import workspace
from tfmem.runtime import devices, heap
from tfmem.runtime.asking import asking

assert op_layers  # its cases are among `CASES`

SIZE, BEYOND = 96, 600
"""What cases are drawn by; bytes by which what is foreseen may be wrong."""

VOLUMES = ((1, 16, 16, 16), (2, 16, 24, 8), (16, 16, 8, 64))
"""Volumes, their sides, values of each place before and after a convolution."""

OPS = (
    *("MirrorPadGrad", "RGBToHSV", "HistogramFixedWidth", "MaxPoolGradV2", "ResizeBilinearGrad"),
    *("SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SoftmaxCrossEntropyWithLogits"),
    *("Sum", "Max", "ResourceApplyAdam", "ResourceScatterAdd"),
)
"""Ops of every run of the tests, none of which oneDNN computes."""


def found() -> dict[str, Any]:
    """What is asked of one process."""
    return {
        "unforeseen": unforeseen(OPS),
        "of volumes": of_volumes(),
        "of norms": of_norms(),
        "of convolutions": of_convolutions(),
        "has onednn": bool(kernels.onednn_types()),
    }


def unforeseen(ops: Sequence[str]) -> list[dict[str, Any]]:
    """Calls of ops, in all types that they have, whose kernels hold more or less than foreseen.

    Or that cannot be run alone.
    """
    device = devices.full_name("CPU:0")
    found = []
    for op in ops:
        for dtype in CASES[op].dtypes:
            try:
                row = recorded(op, CASES[op], dtype, SIZE, device)
            except Exception as error:
                if not any(text in str(error) for text in NO_KERNEL):
                    found.append({"op": op, "dtype": dtype.name, "error": str(error)})
                continue
            asked = zip(row["requests"], row["stays"], strict=True)
            held = sum(size for size, stays in asked if not stays)
            foreseen = sum(workspace(call_of(row)))
            if abs(held - foreseen) > BEYOND:
                found.append({"op": op, "dtype": dtype.name, "held": held, "foreseen": foreseen})
    return found


def of_volumes() -> list[tuple[list[int], list[int]]]:
    """What gradients of convolutions asked for beside their outputs, and what is foreseen.

    Of float64, for oneDNN computes other types in other ways.
    """
    return [one for count, side, *values in VOLUMES for one in _of_volumes(count, side, *values)]


def _of_volumes(
    count: int, side: int, before: int, after: int
) -> Iterator[tuple[list[int], list[int]]]:
    shapes = (count, *[side] * 3, before), (3, 3, 3, before, after), (count, *[side] * 3, after)
    volumes, kernel, made = (tf.zeros(shape, tf.float64) for shape in shapes)
    options = {"out_backprop": made, "strides": [1] * 5, "padding": "SAME"}
    sizes = [tf.constant(shape) for shape in shapes[:2]]
    to_input, to_filter = tf.raw_ops.Conv3DBackpropInputV2, tf.raw_ops.Conv3DBackpropFilterV2
    with heap.traced(devices.full_name("CPU:0")) as first:
        to_input(input_sizes=sizes[0], filter=kernel, **options)
    with heap.traced(devices.full_name("CPU:0")) as second:
        to_filter(input=volumes, filter_sizes=sizes[1], **options)
    calls = (
        (first, "Conv3DBackpropInputV2", [(5,), *shapes[1:]], shapes[0]),
        (second, "Conv3DBackpropFilterV2", [shapes[0], (5,), shapes[2]], shapes[1]),
    )
    for events, op, inputs, out in calls:
        asked = [one.requested for one in events if one.is_request and one.node == op]
        asked.remove(8 * int(np.prod(out)))
        yield asked, [*workspace(Call(op, inputs, [out], 8, {}, {}, "float64"))]


def of_norms() -> list[tuple[list[int], list[int]]]:
    """What batch norms and their gradients ask for, channels first, and what is foreseen.

    Of the output, and what is as large; as tf-keras computes the norms of layers.
    """
    return [one for dtype in (tf.float32, tf.bfloat16, tf.float16) for one in _of_norms(dtype)]


def _of_norms(dtype: tf.DType) -> Iterator[tuple[list[int], list[int]]]:
    shape, size = (1, 64, 96, 1), 64 * 96 * dtype.size
    images, one, none = tf.zeros(shape, dtype), tf.ones([64]), tf.zeros([0])
    options = {"epsilon": 1e-3, "data_format": "NCHW"}
    with heap.traced(devices.full_name("CPU:0")) as first:
        _, *made = tf.raw_ops.FusedBatchNormV3(
            x=images, scale=one, offset=one, mean=none, variance=none, **options
        )
    told = dict(zip((f"reserve_space_{k}" for k in (1, 2, 3)), made[2:], strict=True))
    with heap.traced(devices.full_name("CPU:0")) as second:
        tf.raw_ops.FusedBatchNormGradV3(y_backprop=images, x=images, scale=one, **told, **options)
    calls = (
        (first, "FusedBatchNormV3", [shape, *[(64,)] * 4]),
        (second, "FusedBatchNormGradV3", [shape, shape, *[(64,)] * 3, None]),
    )
    for events, op, inputs in calls:
        asked = [one.requested for one in events if one.is_request and one.node.endswith(op)]
        call = Call(op, inputs, [shape], dtype.size, options, {}, dtype.name)
        yield [one for one in asked if one >= size], [size, *workspace(call)]


def of_convolutions() -> list[tuple[list[int], list[int]]]:
    """What convolutions ask for beside their outputs, and what is foreseen.

    Of few channels, in tiles of bfloat16, of channels that stand first; only oneDNN has kernels of
    the last.
    """
    half, single = tf.bfloat16, tf.float32
    with asking() as ask:
        found = [
            _of_convolution(ask, tf.nn.conv2d, [2, 65, 64, 1], [11, 11, 1, 8], single),
            _of_convolution(ask, tf.nn.conv2d, [2, 65, 64, 3], [11, 11, 3, 8], half),
            _of_convolution(ask, tf.nn.conv2d, [2, 32, 32, 64], [3, 3, 64, 64], half),
            _of_convolution(ask, tf.nn.conv3d, [2, 8, 16, 16, 16], [3, 3, 3, 16, 8], half),
        ]
        if kernels.onednn_types():
            images, first = [2, 64, 32, 32], (single, "NCHW")
            found += [
                _of_convolution(ask, tf.nn.conv2d, images, [3, 3, 64, 64], *first),
                _of_convolution(ask, tf.nn.depthwise_conv2d, images, [3, 3, 64, 1], *first),
            ]
        return found


def _of_convolution(
    ask: Ask,
    convolve: Any,
    images: list[int],
    kernel: list[int],
    dtype: tf.DType,
    layout: str = "",
) -> tuple[list[int], list[int]]:
    given, weights = tf.zeros(images, dtype), tf.zeros(kernel, dtype)
    options = {"data_format": layout} if layout else {}

    @tf.function
    def layer(given: tf.Tensor) -> tf.Tensor:
        strides = [1] * len(images)
        return tf.nn.relu(convolve(given, weights, strides, "SAME", **options))

    device = devices.full_name("CPU:0")
    captured = capture(layer.get_concrete_function(given), device=device, ask=ask)
    out = layer(given)
    with heap.traced(device) as events:
        layer(given)
    asked = [one.requested for one in events if one.is_request]
    asked.remove(int(out.shape.num_elements()) * dtype.size)
    foreseen = [nbytes for sizes in captured.buffers.values() for nbytes in sizes]
    return _counting(asked), _counting(foreseen)


def _counting(buffers: Iterable[int]) -> list[int]:
    """Those of some size: without AMX, convolutions of bfloat16 hold 12 kB."""
    return [nbytes for nbytes in buffers if nbytes >= heap.LEAST_CHUNK]


if __name__ == "__main__":
    for one in unforeseen(sorted(CASES)):
        sys.stdout.write(f"{one}\n")
