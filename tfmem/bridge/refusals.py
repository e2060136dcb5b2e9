"""What is not captured, and what its author can do: errors that name the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfmem.bridge import datasets, lines
from tfmem.bridge.compiled import is_compiled
from tfmem.bridge.graphdefs import GraphDef
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph import device_names
from tfmem.graph.compact import SMALL
from tfmem.graph.ir import Graph, Value

_OF_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
"""Ops that run functions of Python."""

_OF_NUMBERS = {"Range", "Fill", "LinSpace", "RandomUniform", "RandomStandardNormal", "Tile"}
"""Ops that make as much as numbers say that they read."""

_MENDS = {
    ("Segment", "SparseSegment"): (
        "how many segments there are follows from their numbers: take tf.math.unsorted_segment_sum "
        "and the like, with num_segments of Python"
    ),
    ("UnsortedSegment",): "pass num_segments of Python that is never too small",
    ("RaggedTensorToTensor",): "say how many a row has at most: to_tensor(shape=[None, n, ...])",
    ("IteratorGetNext", "OptionalGetValue"): (
        "take the batch by next(iterator) in a straight line, outside of loops, branches and "
        "functions of the function, the iterator being an argument; or fix the shapes, for example "
        "with dataset.batch(n, drop_remainder=True)"
    ),
    ("DenseBincount", "Bincount"): "pass maxlength: tf.math.bincount(numbers, maxlength=n)",
}
"""What makes outputs of ops known, by how the ops' names begin."""

_LOOP_OPS = frozenset(("Enter", "Exit", "NextIteration", "RefNextIteration", "LoopCond"))


def refuse_compiled(concrete: Any) -> None:
    """Raises UnsupportedFunctionError if XLA compiles the function as a whole."""
    if is_compiled(concrete.function_def):
        raise UnsupportedFunctionError(
            f"{plain_name(concrete.name)} is compiled by XLA (jit_compile=True), whose memory "
            "TensorFlow's executor does not manage; use tf.function(jit_compile=False), "
            "for Keras model.compile(..., jit_compile=False)"
        )


def refuse_old_loops(graph_def: GraphDef, concrete: Any) -> None:
    """Raises UnsupportedFunctionError if a function has loops of TensorFlow 1."""
    if loops := sorted({n.op for n in graph_def.node} & _LOOP_OPS):
        raise UnsupportedFunctionError(
            f"{plain_name(concrete.name)} has loops of TensorFlow 1 ({', '.join(loops)}); "
            "call tf.compat.v1.enable_control_flow_v2() before it is traced"
        )


def plain_name(name: str | bytes) -> str:
    """The name that its author gave a ConcreteFunction."""
    text = name.decode() if isinstance(name, bytes) else name
    return text.removeprefix("__inference_").rpartition("_")[0] or text


def refuse_pulled(graph: Graph, workspace: Mapping[str, int], device: str) -> None:
    """Raises UnsupportedFunctionError where functions of data sets take much of a GPU.

    Their nodes run there, the data sets on the CPU beside it.
    """
    if not device_names.is_gpu(device):
        return
    for node in graph.nodes:
        if node.op in datasets.PULLING and (nbytes := workspace.get(node.name, 0)) > SMALL:
            raise UnsupportedFunctionError(
                f"{node.name} ({node.op}) runs functions of data sets, whose {nbytes / 2**20:.1f} "
                f"MiB on {device} cannot be planned; loop over iter(dataset) instead, or over the "
                "data set outside of the function",
                node.name,
            )


def refuse_unknown(unknown: Sequence[tuple[Value, str]], concrete: Any) -> None:
    """Raises UnsupportedFunctionError if the sizes of some values are not known.

    Args:
      unknown: the values, with their op.
      concrete: the function.
    """
    if not unknown:
        return
    found = lines.lines_of((value.node for value, _ in unknown[:5]), concrete.graph)
    named = []
    for value, op in unknown[:5]:
        line = found.get(value.node)
        named.append(f"{value} ({op}{', ' + line if line else ''})")
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    raise UnsupportedFunctionError(
        f"{plain_name(concrete.name)}: the size of {', '.join(named)}{more} is not known before "
        f"the step runs; {_advice(unknown[0][1])}"
    )


def _advice(op: str) -> str:
    """What makes the size of an op's output known."""
    for begins, mend in _MENDS.items():
        if op.startswith(begins):
            return mend
    if op in _OF_PYTHON:
        return "TensorFlow cannot look into Python: give its result a shape by tf.ensure_shape"
    if op in _OF_NUMBERS:
        return (
            "how much it makes follows from data: make it of numbers of Python, of shapes that "
            "are fixed (dataset.batch(n, drop_remainder=True)), or give it a maxlen where there is "
            "one, and mask what is too much"
        )
    return (
        "fix the shapes, for example with dataset.batch(n, drop_remainder=True), tf.ensure_shape, "
        "or an input_signature without None"
    )
