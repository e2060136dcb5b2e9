"""Kernels that are asked what they hold: those whose memory a library decides when it runs first.

oneDNN copies what a convolution of few channels reads, so that each product of it is long: one of
41 x 11 elements of one channel held 456 MB for a result of 13. It copies images whose channels
stand first, and what it multiplies in tiles of bfloat16. cuDNN tries its algorithms on the
first call of a convolution, keeps the fastest for the process and takes as its workspace what that
wants; what a recurrence reserves for its gradient only cuDNN knows. So the kernel is run for what
it will be given, as an op of its own. A step's first call then finds the algorithm chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

from tfmem.bridge import kernels
from tfmem.bridge.gpu_workspace import CONVOLUTIONS
from tfmem.bridge.graphdefs import NodeDef
from tfmem.bridge.shapes import Shape
from tfmem.graph import device_names

_DEPTHWISE = [f"DepthwiseConv2dNative{part}" for part in ("", "BackpropInput", "BackpropFilter")]
TRYING_OPS = frozenset((*CONVOLUTIONS, *_DEPTHWISE))
"""Ops for which cuDNN tries as many algorithms as find room for their workspaces."""

_CUDNN = (
    *("FusedBatchNormV3", "FusedBatchNormGradV3", "_FusedBatchNormEx", "_FusedBatchNormGradEx"),
    *(f"CudnnRNN{part}{version}" for part in ("", "Backprop") for version in ("", "V2", "V3")),
)
_CUSOLVER = ("SelfAdjointEigV2", "Svd", "TridiagonalSolve")

ASKED_OPS = TRYING_OPS | {*_CUDNN, *_CUSOLVER}
"""Ops whose kernels on a GPU are asked."""

_OF_A_CPU = {
    **dict.fromkeys(("Conv2D", "_FusedConv2D", "_MklNativeFusedConv2D"), "Conv2D"),
    **dict.fromkeys(("DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative"), _DEPTHWISE[0]),
    **dict.fromkeys(("Conv3D", "_FusedConv3D"), "Conv3D"),
}
"""Ops whose kernels on a CPU are asked, and those that are run for it. Those of gradients hold
nothing."""

ENDING_OPS = frozenset(_OF_A_CPU.values())
"""Ops whose kernels on a CPU, oneDNN's, end the process in which they find no room."""


@dataclass(frozen=True)
class Question:
    """A call of a kernel.

    Attributes:
      op: TensorFlow's op type.
      attrs: what the node says, serialised: a NodeDef without name, inputs and device.
      inputs: type and shape of each input.
      values: of the inputs that the kernel reads in the memory of the host, by index, flattened.
      outputs: likewise of each output; None where only the kernel knows its shape.
      device: full name.
      most: bytes that are free for what it tries, where the device has all its memory: algorithms
        that want more are not chosen. A kernel keeps to its first choice, whatever is free later.
    """

    op: str
    attrs: bytes
    inputs: tuple[tuple[tf.DType, Shape], ...]
    values: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[tuple[tf.DType, Shape | None], ...]
    device: str
    most: int = field(default=0, compare=False)

    @property
    def nbytes(self) -> int:
        """Of all inputs and outputs, as far as they are known."""
        known = ((dtype, shape) for dtype, shape in (*self.inputs, *self.outputs) if shape)
        return sum(dtype.size * prod(shape) for dtype, shape in known)


@dataclass(frozen=True)
class Answer:
    """What a kernel held.

    Attributes:
      shapes: of its outputs.
      scratch: bytes of the buffers that it held only while it ran, with a 0 where it made outputs.
    """

    shapes: tuple[Shape, ...]
    scratch: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Iterable[Iterable[int]], scratch: Iterable[int]) -> Answer:
        """One of any sequences."""
        return cls(tuple(map(tuple, shapes)), tuple(scratch))


Ask = Callable[[Question], Answer | None]


def may_be_asked(node_def: NodeDef) -> bool:
    """Whether there may be something to ask about a node on its device."""
    on_gpu = device_names.is_gpu(node_def.device)
    return node_def.op in (ASKED_OPS if on_gpu else _OF_A_CPU)


def question(
    node_def: NodeDef, inputs: Sequence[tuple[tf.DType, Shape | None]],
    constants: Mapping[int, tuple[int, ...]], outputs: Sequence[tuple[tf.DType, Shape | None]],
) -> Question | None:  # fmt: skip
    """What to ask about a node; None if what it is given is not known.

    Args:
      node_def: the node, on its device.
      inputs: type and shape of each; None where that is not known.
      constants: values of inputs that are known.
      outputs: likewise of the outputs.
    """
    op, on_gpu = node_def.op, device_names.is_gpu(node_def.device)
    if not on_gpu:
        if not _holds_scratch(node_def, *inputs[0]):
            return None
        op, inputs = _OF_A_CPU[op], inputs[:2]
    on_host = kernels.host_inputs(node_def, "GPU") if on_gpu else ()
    values = {index: constants.get(index) or _usual(node_def, inputs, index) for index in on_host}
    known = tuple((dtype, shape) for dtype, shape in inputs if shape is not None)
    if len(known) < len(inputs) or None in values.values():
        return None
    bare = type(node_def)(op=op)
    for one in op_def_registry.get(op).attr:
        if one.name in node_def.attr:
            bare.attr[one.name].CopyFrom(node_def.attr[one.name])
    return Question(
        op,
        bare.SerializeToString(deterministic=True),
        known,
        tuple(sorted((index, value) for index, value in values.items() if value is not None)),
        tuple(outputs),
        node_def.device,
    )


def _holds_scratch(node_def: NodeDef, dtype: tf.DType, shape: Shape | None) -> bool:
    """Whether oneDNN's convolution may hold more than some 10 kB in each thread."""
    if shape is None or not kernels.computes(dtype.name):
        return False
    if node_def.attr["data_format"].s in (b"NCHW", b"NCDHW"):
        return True
    is_depthwise = _OF_A_CPU[node_def.op] == _DEPTHWISE[0]
    return not is_depthwise and (shape[-1] == 1 or dtype == tf.bfloat16)


def _usual(
    node_def: NodeDef, inputs: Sequence[tuple[tf.DType, Shape | None]], index: int
) -> tuple[int, ...] | None:
    """Lengths of sequences that are all as long as they can be; None for anything else."""
    shape, given = inputs[index][1], inputs[0][1]
    if not node_def.op.startswith("CudnnRNN") or shape is None or given is None:
        return None
    is_time_first = node_def.attr["time_major"].b or "time_major" not in node_def.attr
    return (given[0 if is_time_first else 1],) * shape[0] if len(shape) == 1 else None


def run(asked: Question) -> list[tf.Tensor]:
    """Runs a kernel on zeros; returns what it gives.

    Raises:
      tf.errors.OpError: it cannot, or has no room.
    """
    node_def = tf.compat.v1.NodeDef.FromString(asked.attrs)
    attrs = [part for name, value in node_def.attr.items() for part in (name, _plain(value))]
    values = dict(asked.values)
    with tf.init_scope():
        given = []
        for index, (dtype, shape) in enumerate(asked.inputs):
            with tf.device("CPU:0" if index in values else asked.device):
                value = values.get(index)
                given.append(tf.constant(value, dtype, shape) if value else tf.zeros(shape, dtype))
        with tf.device(asked.device):
            found = execute.execute(
                asked.op.encode(), len(asked.outputs), given, tuple(attrs), context.context()
            )
    return list(found)


def _plain(value: Any) -> Any:
    """An AttrValue as ops that run at once are given it."""
    kind = value.WhichOneof("value")
    if kind == "shape":
        return tf.TensorShape(value.shape)
    if kind != "list":
        return getattr(value, kind)
    return list(value.list.s or value.list.i or value.list.f or value.list.type or value.list.b)
