"""What earlier readings of a function have seen, which shape inference does not know.

Of a loop's variable inference knows what the trace told; where no turn changes its shape, that is
the shape of what the loop is given.

Of a list inference knows no length. It has as many elements as were reserved, or as the tensor had
rows that it was made of, unless some node may write behind the last one
(`tf.TensorArray(dynamic_size=True)`): how many there are then is seen by running what was read of
the function. What they are like is known if the list was made for that, else by the nodes that
write into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef
from tfmem.bridge.inputs import UNSIZED, Input
from tfmem.bridge.looped import RELEASED, as_long
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import constant, full
from tfmem.graph.bodies import BRANCHES, LOOPS
from tfmem.graph.ir import Value

_RESIZES = "resize_if_index_out_of_bounds"  # an attribute of TensorListSetItem

Path = tuple[str, ...]
"""What tells a function from others: who runs it, as the machine names it that runs them all."""

Place = tuple[Path, str]
"""A node: the path of its function, and its name."""


@dataclass(frozen=True)
class Seen:
    """What earlier readings have seen of a function.

    Attributes:
      grows: whether some list may get more elements than were reserved.
      counts: how many elements lists have of which nodes make tensors, by node.
      rows: what shape all of these have, by node, where the graph itself does not tell.
      passed: shapes of loops' variables that no turn changes, where the trace left them open.
      path: of the function.
    """

    grows: bool = False
    counts: Mapping[Place, int] = field(default_factory=dict)
    rows: Mapping[Place, Shape] = field(default_factory=dict)
    passed: Mapping[tuple[Path, Value], Shape] = field(default_factory=dict)
    path: Path = ()

    def within(self, caller: str, op: str, index: int) -> Seen:
        """The same of one of the functions that a node of this function runs."""
        number = (str(index),) if op in BRANCHES or op in LOOPS else ()
        return replace(self, path=(*self.path, caller, *number))


NOTHING_SEEN = Seen()
"""Where no list may grow, and nothing was seen."""


def may_grow(graph_def: GraphDef) -> bool:
    """Whether a list may get more elements than were reserved, by a function or those it runs."""
    functions = (function.node_def for function in graph_def.library.function)
    nodes = chain(graph_def.node, *functions)
    return any(_RESIZES in node.attr and node.attr[_RESIZES].b for node in nodes)


def unchanged(
    op: tf.Operation,
    inputs: Sequence[Input],
    returns: Sequence[Value],
    shape_of: Callable[[Value], Shape | None],
) -> Iterator[tuple[Value, Shape]]:
    """A loop's outputs of which inference knows no size, where each turn leaves that as it was.

    Args:
      op: the loop.
      inputs: of its function.
      returns: what that returns.
      shape_of: gives the shape of a value of that function that is no input.
    """
    given = {Value(one.name): one.shape for one in inputs}
    for i, (one, value) in enumerate(zip(inputs, returns, strict=True)):
        if one.dtype in UNSIZED or full(op.outputs[i].shape) is not None:
            continue
        after = given[value] if value in given else shape_of(value)
        known = full(tf.TensorShape(after))
        if known is not None and known == one.shape:
            yield Value(op.name, i), known


def stacked(
    op: tf.Operation,
    seen: Seen,
    standing: Callable[[tf.Tensor], tf.Tensor] = lambda tensor: tensor,
) -> list[Shape | None]:
    """Shapes of what one of `STACKING_OPS` makes of a list, as far as they are known.

    Args:
      op: the node.
      seen: of its function.
      standing: gives the tensor that stands for another.
    """
    result: list[Shape | None] = [None] * len(op.outputs)
    place = seen.path, op.name
    count = seen.counts.get(place) if seen.grows else _length(op.inputs[0], standing)
    if count is None:
        return result
    element = seen.rows.get(place)
    if op.type == "TensorListStack":
        row = full(op.outputs[0].shape[1:]) if element is None else element
        result[0] = None if row is None else (count, *row)
        return result
    result[1] = (count,)
    row = full(op.outputs[0].shape[1:]) if element is None else element[1:]
    first = (constant(standing(op.inputs[1])) or (-1,)) if element is None else element
    if row is not None and first[0] >= 0:
        result[0] = (count * first[0], *row)
    return result


def _length(listed: tf.Tensor, standing: Callable[[tf.Tensor], tf.Tensor]) -> int | None:
    """How many elements a list has that no node makes longer, if that is known.

    So many as were reserved, or as the tensor had rows that was taken apart; what is read in the
    place of a loop's output is as long as that (see `looped`).
    """
    source = listed.op
    if source.name.startswith(RELEASED):
        return None
    if alike := as_long(source.type, len(source.inputs)):
        found = (_length(source.inputs[i], standing) for i in alike)
        return next((one for one in found if one is not None), None)
    if source.type == "TensorListFromTensor":
        shape = standing(source.inputs[0]).shape
        return int(shape[0]) if shape.rank and shape[0] is not None else None
    if source.type == "TensorListSplit":
        sizes = full(standing(source.inputs[2]).shape)
        return sizes[0] if sizes else None
    if source.type in ("TensorListReserve", "TensorListResize"):
        size = constant(standing(source.inputs[1]))
        return size[0] if size and size[0] >= 0 else None
    return None
