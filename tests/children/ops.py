"""What tests/graph/test_ops.py asks of a process with statistics: what kernels do to buffers.

A kernel is run on inputs that only it reads, then on inputs that others read after it. If its
output takes no memory in either, it shares its input's buffer; if only in the first, it takes over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfmem.bridge import kernels
from tfmem.graph import ops

ROWS, COLUMNS = 1024, 1024
REAL = np.random.default_rng(0).uniform(0.1, 0.9, (ROWS, COLUMNS)).astype("float32")
WHOLE = (REAL * 100).astype("int32")
TRUTH = np.tile(REAL > 0.5, (4, 1))
COMPLEX = REAL.astype("complex64")
IMAGE = REAL.reshape(2, 128, 128, 32)
KERNEL = REAL.reshape(-1)[: 3 * 3 * 32 * 32].reshape(3, 3, 32, 32)
CHANNELS = np.ones(32, "float32")
MATRICES = np.stack([np.eye(512, dtype="float32")] * 4)


@dataclass(frozen=True)
class Case:
    """How an op is called: the inputs, the attributes without defaults, lengths of list inputs."""

    inputs: Sequence[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


def _int(*values: int) -> Any:
    return np.array(values, "int32")


def _scalar(value: float) -> Any:
    return np.float32(value)


def _windows(inputs: Sequence[Any]) -> Case:
    return Case(inputs, {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"})


_POOLED = IMAGE[:, ::2, ::2]
_SAME = {"strides": [1, 1, 1, 1], "padding": "SAME"}
_SUM = {"merge_op": "Add", "final_op": "Id"}
_OF_ONE = {"group_size": 1, "group_key": 1, "instance_key": 1, "subdiv_offsets": [0]}

CASES: dict[str, Case] = {
    **{op: Case([WHOLE, WHOLE]) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **{op: Case([WHOLE, WHOLE]) for op in ("LeftShift", "RightShift")},
    **{op: Case([WHOLE, WHOLE]) for op in ("TruncateDiv", "TruncateMod")},
    **{op: Case([TRUTH, TRUTH]) for op in ("LogicalAnd", "LogicalOr")},
    "LogicalNot": Case([TRUTH]),
    "Invert": Case([WHOLE]),
    "Conj": Case([COMPLEX]),
    "ClipByValue": Case([REAL, _scalar(0), _scalar(1)]),
    "Reshape": Case([REAL, _int(-1)]),
    "ExpandDims": Case([REAL, np.int32(0)]),
    "Bitcast": Case([REAL], {"type": "int32"}),
    "EnsureShape": Case([REAL], {"shape": [ROWS, COLUMNS]}),
    "PlaceholderWithDefault": Case([REAL], {"shape": None}),
    "CheckNumerics": Case([REAL], {"message": ""}),
    "CheckNumericsV2": Case([REAL], {"message": ""}),
    "BiasAdd": Case([REAL, REAL[0]]),
    "CollectiveReduce": Case([REAL], {**_SUM, **_OF_ONE}),
    "CollectiveReduceV2": Case(
        [REAL, np.int32(1), np.int32(2), np.int32(2)], _SUM, {"ordering_token": 0}
    ),
    "AddN": Case([REAL, REAL, REAL]),
    "Select": Case([TRUTH[:ROWS], REAL, REAL]),
    "SelectV2": Case([TRUTH[:ROWS], REAL, REAL]),
    "_UnaryOpsComposition": Case([REAL], {"op_names": ["Exp", "Log"]}),
    "MatrixBandPart": Case([REAL, np.int32(0), np.int32(-1)]),
    "MatrixSetDiag": Case([MATRICES, MATRICES[:, 0]]),
    "MatrixSetDiagV2": Case([MATRICES, MATRICES[:, 0], np.int32(0)]),
    "MatrixSetDiagV3": Case([MATRICES, MATRICES[:, 0], np.int32(0)]),
    "Cholesky": Case([MATRICES]),
    "CholeskyGrad": Case([MATRICES, MATRICES]),
    "TensorStridedSliceUpdate": Case([REAL, _int(0), _int(1), _int(1), REAL[:1]]),
    "SoftmaxCrossEntropyWithLogits": Case([REAL, REAL]),
    "SparseSoftmaxCrossEntropyWithLogits": Case([REAL, np.zeros(ROWS, "int64")]),
    "_MklLayerNorm": Case([REAL, REAL[0], REAL[0]]),
    "_FusedMatMul": Case(
        [REAL[:, :ROWS], REAL, REAL[0], REAL], {"fused_ops": ["BiasAdd", "Add"]}, {"args": 2}
    ),
    "_FusedConv2D": Case(
        [IMAGE, KERNEL, CHANNELS, IMAGE],
        {"fused_ops": ["BiasAdd", "Add", "Relu"], "num_args": 2, **_SAME},
        {"args": 2, "host_args": 0},
    ),
    "_MklNativeFusedConv2D": Case(
        [IMAGE, KERNEL, CHANNELS, IMAGE],
        {"fused_ops": ["BiasAdd", "Add", "Relu"], "num_args": 2, **_SAME},
        {"args": 2, "host_args": 0},
    ),
    # With an output of their own.
    **{op: Case([REAL, REAL]) for op in ("Equal", "Less")},
    "MatMul": Case([REAL, REAL], {"transpose_b": True}),
    "Conv2D": Case([IMAGE, KERNEL], _SAME),
    "Conv2DBackpropInput": Case([_int(*IMAGE.shape), KERNEL, IMAGE], _SAME),
    "FusedBatchNormV3": Case([IMAGE, *[CHANNELS] * 4]),
    "FusedBatchNormGradV3": Case([IMAGE, IMAGE, *[CHANNELS] * 3, np.zeros(0, "float32")]),
    "_FusedBatchNormEx": Case(
        [IMAGE, *[CHANNELS] * 4], {"activation_mode": "Relu"}, {"side_input": 0}
    ),
    "_MklSwish": Case([REAL]),
    "_MklFusedMish": Case([REAL]),
    "AvgPoolGrad": _windows([_int(*IMAGE.shape), _POOLED]),
    "MaxPoolGradGrad": _windows([IMAGE, _POOLED, IMAGE]),
    "LRN": Case([IMAGE]),
    "ResizeBilinear": Case([IMAGE, _int(128, 128)]),
    "ResizeBicubic": Case([IMAGE, _int(128, 128)]),
    "AdjustContrastv2": Case([IMAGE[..., :3], _scalar(2)]),
    "Cumsum": Case([REAL, np.int32(0)]),
    "ReverseV2": Case([REAL, _int(0)]),
    "Roll": Case([REAL, _int(1), _int(0)]),
    "GatherV2": Case([REAL, np.arange(ROWS), np.int32(0)]),
    "TensorScatterAdd": Case([REAL, _int(0)[:, None], REAL[:1]]),
    "UnsortedSegmentSum": Case([REAL, np.arange(ROWS), np.int32(ROWS)]),
    "StatelessShuffle": Case([REAL, np.uint64([1]), np.uint64([1, 2]), np.int32(1)]),
    "Complex": Case([REAL, REAL]),
    "Real": Case([COMPLEX]),
    "Angle": Case([COMPLEX]),
    "FFT": Case([COMPLEX]),
    "Bucketize": Case([REAL], {"boundaries": [0.2, 0.5]}),
    "TopKV2": Case([REAL, np.int32(COLUMNS)]),
    "MatrixTriangularSolve": Case([MATRICES, MATRICES]),
}


OF_ONEDNN = ("_FusedBatchNormEx", "_FusedConv2D", "_FusedMatMul")
"""Ops that have no kernel of these types and attributes on a CPU but oneDNN's."""


LABELLED = ("_MklNativeFusedConv2D",)
"""Ops whose kernels are found by their label alone."""


def case_of(op: str) -> Case:
    """The case of an op; by default each input is REAL."""
    from tensorflow.python.framework import op_def_registry

    return CASES.get(op) or Case([REAL] * len(op_def_registry.get(op).input_arg))


def buffers() -> dict[str, tuple[bool, list[int]]]:
    """Whether each op shares its input's buffer, and which inputs it takes over."""
    stated = {op for op, facts in ops.TABLE.items() if facts.inplace or facts.shares is not None}
    stated -= {"ReadVariableOp"}  # shares a variable's
    return {op: _behaviour(op, case_of(op)) for op in _with_kernels(stated | set(CASES))}


def repeats() -> list[str]:
    """The ops whose second run gives other values than the first."""
    found = []
    for op in _with_kernels(CASES):
        function = _function(op, CASES[op], large=(), shared=())
        first, second = ([t.numpy().tobytes() for t in function()] for _ in range(2))
        if first != second:
            found.append(op)
    return found


def _with_kernels(names: Iterable[str]) -> list[str]:
    """The ops, but those for which this process has no kernel."""
    is_whole = bool(kernels.onednn_types())
    return [op for op in sorted(names) if is_whole or not op.startswith(("_Mkl", *OF_ONEDNN))]


def _behaviour(op: str, case: Case) -> tuple[bool, list[int]]:
    large = [i for i, value in enumerate(case.inputs) if value.nbytes >= 2**22]
    total = sum(case.inputs[i].nbytes for i in large)
    output = max(t.numpy().nbytes for t in _function(op, case, (), ())())
    alone = _peak(op, case, large, large) - total
    takes = []
    for free in large:
        others = [i for i in large if i != free]
        if alone - (_peak(op, case, large, others) - total) > output / 2:
            takes.append(free)
    return alone < output / 2, takes


def _peak(op: str, case: Case, large: list[int], shared: list[int]) -> int:
    """Most bytes that a run takes; `shared` inputs are read by others afterwards."""
    import tensorflow as tf

    function = _function(op, case, large, shared)
    function()  # the first call allocates what stays
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    function()
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]) - before


def _function(op: str, case: Case, large: Sequence[int], shared: Sequence[int]) -> Any:
    """A function that runs the op, with Grappler off and shapes that no constant tells.

    The `large` inputs are copied first, for what the caller holds cannot be taken over; then only
    shapes are returned.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    inputs = [tf.constant(value) for value in case.inputs]

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec(None if i in large else t.shape, t.dtype) for i, t in enumerate(inputs)
        ],
    )
    def run(*args: Any) -> list[Any]:
        own = [tf.raw_ops.DeepCopy(x=t) if i in large else t for i, t in enumerate(args)]
        outputs = _apply(op, case, own)
        if not large:
            return outputs
        with tf.control_dependencies(outputs):
            after = [tf.raw_ops.Shape(input=own[i]) for i in shared]
        return after + [tf.raw_ops.Shape(input=t) for t in outputs]

    return lambda: run(*inputs)


def _apply(op: str, case: Case, inputs: list[Any]) -> list[Any]:
    """Adds a node of the op, also of one that Grappler alone makes; its outputs."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library, op_def_registry

    definition = op_def_registry.get(op)
    rest = iter(inputs)
    given: dict[str, Any] = {}
    for argument in definition.input_arg:
        is_list = argument.number_attr or argument.type_list_attr
        count = case.lengths.get(argument.name, len(inputs))
        given[argument.name] = list(itertools.islice(rest, count)) if is_list else next(rest)
    implied = {a.type_attr for a in definition.input_arg}
    implied |= {a.number_attr or a.type_list_attr for a in definition.input_arg}
    for attr in definition.attr:
        if attr.HasField("default_value") and attr.name not in implied:
            given[attr.name] = _default(attr.default_value)
    given |= case.attrs
    label = {"_kernel": tf.compat.v1.AttrValue(s=b"MklNameChangeOp")} if op in LABELLED else {}
    with tf.compat.v1.get_default_graph()._attr_scope(label):
        outputs = op_def_library.apply_op(op, name="checked", **given)
    return [t for t in tf.nest.flatten(outputs) if isinstance(t, tf.Tensor)]


def _default(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        return list(value.list.i or value.list.f or value.list.s)
    return getattr(value, kind)
