"""Functions that compute sizes, or numbers that decide them, of the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef, NodeDef
from tfmem.graph.ir import Value


@dataclass(frozen=True)
class Wanted:
    """What decides a size.

    Attributes:
      value: of the graph, as its GraphDef names it.
      is_shape: whether it is the value's shape, as numbers; else the numbers that are the value.
    """

    value: Value
    is_shape: bool


@dataclass(frozen=True)
class Part:
    """How something wanted is computed.

    Attributes:
      wanted: what it is.
      needed: the values that it is computed of: its own, or those that a rule reads.
      node: of its value; None if that is an argument.
      rank: how many dimensions the value has.
    """

    wanted: Wanted
    needed: Sequence[Value]
    node: NodeDef | None
    rank: int


def computing(
    nodes: GraphDef, parts: Sequence[Part], given: Sequence[str], fixed: Mapping[str, tf.Tensor]
) -> Callable[..., list[tf.Tensor]]:
    """A function that computes parts on the CPU.

    Args:
      nodes: that it runs.
      parts: what it returns: numbers, or shapes as numbers.
      given: names of what it is given.
      fixed: tensors, by name.
    """
    read = {text if ":" in text else f"{text}:0" for node in nodes.node for text in node.input}
    needed = list(dict.fromkeys(str(value) for part in parts for value in part.needed))

    def compute(*args: tf.Tensor) -> list[tf.Tensor]:
        named = {**fixed, **dict(zip(given, args, strict=True))}
        tensors = {f"{name}:0": tensor for name, tensor in named.items()}
        made = [name for name in needed if name not in tensors]
        with tf.device("CPU:0"):
            mapped = {name: tensor for name, tensor in tensors.items() if name in read}
            found = tf.graph_util.import_graph_def(nodes, mapped, made, name="computed")
            tensors |= dict(zip(made, found, strict=True))
            return [_of(part, [tensors[str(value)] for value in part.needed]) for part in parts]

    as_it_is: Callable[..., list[tf.Tensor]] = tf.autograph.experimental.do_not_convert(compute)
    return as_it_is


def _of(part: Part, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Numbers, or a shape; of what a rule tells, with 0 for dimensions that it leaves open."""
    if not part.wanted.is_shape:
        return tf.identity(tensors[0])
    if part.node is None or list(part.needed) == [part.wanted.value]:
        return tf.shape(tensors[0], tf.int64)
    sizes = RULES[part.node.op](part.node, *tensors)
    return tf.pad(sizes, [[0, part.rank - sizes.shape[0]]])


def read_by_rule(op: str, count: int) -> list[int]:
    """Which of so many inputs the rule of an op reads."""
    if op == "RaggedTensorToTensor":
        return [0, *range(3, count)]  # not the rows, nor what fills them up
    return [2] if op.startswith(("Sparse", "Unsorted")) else [1]


def _last_of(_: NodeDef, ids: tf.Tensor) -> tf.Tensor:
    """As many rows as the last of sorted ids says."""
    return tf.reshape(tf.concat([[0], tf.cast(ids, tf.int64) + 1], 0)[-1], [1])


def _as_told(_: NodeDef, count: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.cast(count, tf.int64), [1])


def _as_the_longest(node: NodeDef, shape: tf.Tensor, *rows: tf.Tensor) -> tf.Tensor:
    """The shape of ragged rows that are filled up, without that of what they hold."""
    kinds = [kind.decode() for kind in node.attr["row_partition_types"].list.s]
    rank = 1 + len(kinds) - kinds.count("FIRST_DIM_SIZE")
    count = rows[-1][-1:] if kinds[-1] == "ROW_SPLITS" else tf.shape(rows[-1])
    made = tf.raw_ops.RaggedTensorToTensor(
        shape=shape[:rank] if shape.shape.rank else shape,
        values=tf.zeros(count, tf.int32),
        default_value=0,
        row_partition_tensors=rows,
        row_partition_types=kinds,
    )
    return tf.ensure_shape(tf.shape(made, tf.int64), [rank])


RULES: Mapping[str, Callable[..., tf.Tensor]] = {
    **dict.fromkeys(("SegmentMax", "SegmentMaxV2", "SegmentMin", "SegmentMinV2"), _last_of),
    **dict.fromkeys(("SegmentMean", "SegmentProd", "SegmentProdV2"), _last_of),
    **dict.fromkeys(("SegmentSum", "SegmentSumV2", "SparseSegmentMean"), _last_of),
    **dict.fromkeys(("SparseSegmentSqrtN", "SparseSegmentSum"), _last_of),
    **dict.fromkeys(("UnsortedSegmentMax", "UnsortedSegmentMin"), _as_told),
    **dict.fromkeys(("UnsortedSegmentProd", "UnsortedSegmentSum"), _as_told),
    "RaggedTensorToTensor": _as_the_longest,
}
"""The first sizes that an op gives, of inputs as of `read_by_rule`: not of the rows that it takes,
which a model may have computed."""
