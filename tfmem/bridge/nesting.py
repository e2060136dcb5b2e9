"""What lists and optionals hold that are themselves in lists and optionals.

TensorFlow's inference knows the shape of a list's elements (`HandleData`), but of a list of lists
only that these are lists: the gradient of a loop within a loop, or of a branch with a loop in it,
then has tensors of unknown size. Here what is pushed is remembered until it is popped again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfmem.bridge.graphdefs import NodeDef, parse_value
from tfmem.bridge.inputs import handle_of
from tfmem.graph.ir import Value

_SAME = ("Identity", "Snapshot", "TensorListResize", "ZerosLike")
_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_POPS = {"TensorListPopBack": 1, "TensorListGetItem": 0}


@dataclass(frozen=True)
class Held:
    """What the elements of a list or an optional refer to.

    Attributes:
      handles: of each component of an optional, or of a list's elements, TensorFlow's HandleData.
      inner: what these hold in turn.
    """

    handles: tuple[Any, ...]
    inner: tuple[Held | None, ...]


def of_tensors(tensors: Sequence[tf.Tensor], held: Sequence[Held | None]) -> Held | None:
    """What holds these tensors, some of which may be lists or optionals; None if none is."""
    handles = tuple(handle_of(tensor) for tensor in tensors)
    is_known = any(handle is not None for handle in handles) or any(held)
    return Held(handles, tuple(held)) if is_known else None


def popped(nodes: Iterable[NodeDef], given: Mapping[Value, Held]) -> dict[Value, Any]:
    """HandleData of lists and optionals that nodes take out of those that a function is given.

    Args:
      nodes: the function's, in a topological order.
      given: what its inputs hold.
    """
    known, handles = dict(given), {}
    for node in nodes:
        for value, handle, inner in taken(node, known):
            if handle is not None:
                handles[value] = handle
            if inner is not None:
                known[value] = inner
        if (kept := passed_on(node, known)) is not None:
            known[Value(node.name)] = kept
    return handles


def taken(
    node: NodeDef, known: Mapping[Value, Held]
) -> list[tuple[Value, Any, Held | None]]:
    """What a node takes out of a list or an optional: value, HandleData, what it holds."""
    held = known.get(parse_value(node.input[0])) if node.input else None
    if held is None:
        return []
    first, types = 0, list(node.attr["output_types"].list.type)
    if node.op in _POPS:
        first, types = _POPS[node.op], [node.attr["element_dtype"].type]
    elif node.op != "OptionalGetValue":
        return []
    parts = enumerate(zip(types, held.handles, held.inner, strict=False), first)
    return [
        (Value(node.name, index), handle, inner)
        for index, (dtype, handle, inner) in parts
        if dtype == tf.variant.as_datatype_enum
    ]


def passed_on(node: NodeDef, known: Mapping[Value, Held]) -> Held | None:
    """What a node's first output holds because its first input does."""
    is_one = node.op in _SAME or node.op in _PUSHES or node.op == "TensorListPopBack"
    return known.get(parse_value(node.input[0])) if is_one and node.input else None


def made(op: tf.Operation, known: Mapping[Value, Held], values: Sequence[Value]) -> Held | None:
    """What a node's first output holds.

    Args:
      op: the node.
      known: what other values hold.
      values: the node's inputs.
    """
    if (index := _PUSHES.get(op.type)) is not None:
        return of_tensors([op.inputs[index]], [known.get(values[index])]) or known.get(values[0])
    if op.type == "OptionalFromValue":
        return of_tensors(list(op.inputs), [known.get(value) for value in values])
    return None
