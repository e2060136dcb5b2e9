"""What lists and optionals hold that are themselves in lists and optionals.

TensorFlow's inference knows the shape of a list's elements (`HandleData`), but of a list of lists
only that these are lists: the gradient of a loop within a loop, or of a branch with a loop in it,
then has tensors of unknown size. Of a list that was made without a shape it knows nothing. Here
what is pushed is remembered until it is popped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.bridge.graphdefs import NodeDef, parse_value
from tfmem.bridge.inputs import UNSIZED, handle_of
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import full, whole_numbers
from tfmem.graph.ir import Value

_SAME = ("Identity", "Snapshot", "TensorListResize", "ZerosLike")
_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_TAKES_APART = ("TensorListFromTensor", "TensorListScatter", "TensorListScatterV2")
_POPS = {"TensorListPopBack": 1, "TensorListGetItem": 0}


Span = tuple[np.ndarray, np.ndarray]
"""The most and the least that whole numbers can be."""


@dataclass(frozen=True)
class Element:
    """What is in a list or an optional.

    Attributes:
      handle: if it is a list or an optional itself, TensorFlow's HandleData.
      shape: of a tensor, if it is known.
      nbytes: most bytes of a tensor of unknown shape, if it has a bound.
      numbers: what a small tensor is, such as the shape of another, if all elements are the same.
      span: the most and the least that its numbers are, where they depend on data.
      held: what it holds in turn.
    """

    handle: Any = None
    shape: Shape | None = None
    nbytes: int | None = None
    numbers: np.ndarray | None = None
    span: Span | None = None
    held: Held | None = None


Held = tuple[Element, ...]
"""The components of an optional; what the elements of a list are like."""


class Known:
    """What values hold; of a branch's outputs, what they do if it is taken."""

    def __init__(self) -> None:
        self._found: dict[Value, dict[int, Held]] = {}

    def get(self, value: Value, branch: int = 0) -> Held | None:
        """What a value holds in a branch, or if it is not known there, in any."""
        found = self._found.get(value, {})
        return found.get(branch) or next(iter(found.values()), None)

    def add(self, value: Value, held: Held | None, branch: int = 0) -> None:
        """Notes what a value holds, if that is known."""
        if held is not None:
            self._found.setdefault(value, {})[branch] = held


def popped(nodes: Iterable[NodeDef], known: Known) -> dict[Value, Element]:
    """What nodes take out of the lists and optionals that a function is given.

    Args:
      nodes: the function's, in a topological order.
      known: what its inputs hold; what the nodes take out and pass on is added.
    """
    result = {}
    for node in nodes:
        for value, element in taken(node, known):
            result[value] = element
            known.add(value, element.held)
        known.add(Value(node.name), passed_on(node, known))
    return result


def taken(node: NodeDef, known: Known) -> list[tuple[Value, Element]]:
    """What a node takes out of a list or an optional."""
    held = known.get(parse_value(node.input[0])) if node.input else None
    if held is None:
        return []
    if node.op in _POPS:
        first, types = _POPS[node.op], [node.attr["element_dtype"].type]
    elif node.op == "OptionalGetValue":
        first, types = 0, list(node.attr["output_types"].list.type)
    else:
        return []
    variant = tf.variant.as_datatype_enum
    return [
        (Value(node.name, index), element)
        for index, (dtype, element) in enumerate(zip(types, held, strict=False), first)
        if (dtype == variant) == (element.handle is not None)
    ]


def passed_on(node: NodeDef, known: Known) -> Held | None:
    """What a node's first output holds because its first input does."""
    is_one = node.op in _SAME or node.op in _PUSHES or node.op == "TensorListPopBack"
    return known.get(parse_value(node.input[0])) if is_one and node.input else None


def made(
    op: tf.Operation,
    known: Known,
    values: Sequence[Value],
    shapes: Mapping[Value, Shape],
    sizes: Mapping[Value, int],
    span_of: Callable[[Value], Span | None],
) -> Held | None:
    """What a node's first output holds.

    Args:
      op: the node, in a graph whose sizes are known.
      known: what other values hold.
      values: the node's inputs.
      shapes: of those that inference does not know.
      sizes: most bytes of those whose shape nobody knows.
      span_of: the ends of numbers that depend on data.
    """
    if op.type in _TAKES_APART:
        whole = shapes.get(values[0], full(op.inputs[0].shape))
        return (Element(None, whole[1:]),) if whole else None
    if (index := _PUSHES.get(op.type)) is not None:
        places = [index]
    elif op.type == "OptionalFromValue":
        places = list(range(len(values)))
    else:
        return None
    found = []
    for place in places:
        tensor, value = op.inputs[place], values[place]
        shape = shapes.get(value, full(tensor.shape))
        if tensor.dtype in UNSIZED:
            found.append(Element(handle_of(tensor), held=known.get(value)))
        else:
            numbers, span = whole_numbers(tensor), span_of(value)
            found.append(Element(None, shape, sizes.get(value), numbers, span))
    before = known.get(values[0]) if op.type in _PUSHES else None
    return (_alike(before[0], found[0]),) if before else tuple(found)


def _alike(before: Element, pushed: Element) -> Element:
    """What elements are like when one more is pushed."""
    if before.shape != pushed.shape:
        return Element()
    pushed = replace(pushed, span=_spanning(before.span, pushed.span))
    if before.numbers is None or pushed.numbers is None:
        return replace(pushed, numbers=None)
    is_same = np.array_equal(before.numbers, pushed.numbers)
    return pushed if is_same else replace(pushed, numbers=None)


def _spanning(first: Span | None, second: Span | None) -> Span | None:
    """The ends of what lies between the ends of either."""
    if first is None or second is None or first[0].shape != second[0].shape:
        return None
    return np.maximum(first[0], second[0]), np.minimum(first[1], second[1])
