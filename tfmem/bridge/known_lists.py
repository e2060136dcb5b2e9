"""Lists taken apart while a graph is written down: elements are plain values, indices are known.

What sets, pushes or pops an element, and what gets it, leave no node; a list that was made of a
tensor has its rows, and what stacks a list is a node that packs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef, NodeDef
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import MAX_CONSTANT

MOST_NODES = 10_000
"""Nodes that a graph may have whose loops became graphs. More reach longer loops, and plan for
longer."""

_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Minimum": np.minimum,
    "Maximum": np.maximum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.remainder,
    "Identity": np.asarray,
    "Squeeze": np.squeeze,
}
"""What ops that loops count by make of whole numbers."""

ShapeOf = Callable[[str], Shape | None]
"""The shape of a value of the graph, named as inputs of nodes name it, if it is known."""


class CannotBe(Exception):
    """A loop, or what takes its lists, stays as it is."""


@dataclass(frozen=True)
class Listed:
    """A list that is known.

    Attributes:
      elements: of each the value, which may be a list itself; None for zeros.
      dtype: of them.
      row: their shape, if that is known; open dimensions are -1.
    """

    elements: tuple[Thing | None, ...]
    dtype: int
    row: Shape | None = None


Thing = str | Listed
"""A value of the new graph, by its name, or a list."""


class ListWriter:
    """Writes nodes down, and knows what lists hold and what whole numbers are.

    Args:
      like: a graph, which has the same versions.
      shape_of: of values of that graph.

    Attributes:
      made: what was written.
      numbers: whole numbers that are known, by value.
      shapes: rows of them, likewise.
      written: names of the nodes that were written since it was emptied; None if nobody asks.
    """

    def __init__(self, like: GraphDef, shape_of: ShapeOf) -> None:
        self._shape_of = shape_of
        self.made = type(like)(versions=like.versions)
        self.numbers: dict[str, np.ndarray] = {}
        self.shapes: dict[str, Shape] = {}
        self.written: list[str] | None = None
        self._rows: dict[str, list[str]] = {}

    def add(self, name: str, op: str, inputs: Iterable[str]) -> NodeDef:
        """A new node.

        Raises:
          CannotBe: there are too many.
        """
        if len(self.made.node) > MOST_NODES:
            raise CannotBe
        if self.written is not None:
            self.written.append(name)
        return self.made.node.add(name=name, op=op, input=inputs)

    def count(self, node: NodeDef, data: Sequence[str], name: str) -> None:
        """Notes the numbers that a node makes, if they are known."""
        made = number_made(node, [self.numbers.get(one) for one in data])
        if made is None or made.dtype.kind not in "biu":
            return
        if made.size == 1:
            self.numbers[name] = made
        if node.op == "Const" and made.ndim == 1:
            self.shapes[name] = tuple(map(int, made))

    def number(self, thing: Thing) -> int:
        """A whole number that is known.

        Raises:
          CannotBe: it is not.
        """
        found = self.numbers.get(thing) if isinstance(thing, str) else None
        if found is None or found.size != 1:
            raise CannotBe
        return int(found.reshape(()))

    def of_lists(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing] | None:
        """What a node makes that makes or takes lists; None if it is another.

        Args:
          node: as it was.
          data: its inputs.
          name: its name in the new graph.

        Raises:
          CannotBe: a list, or an index, is not known.
        """
        if rule := _RULES.get(node.op):
            return rule(self, node, data, name)
        if data and all(isinstance(one, Listed) for one in data):
            lists = [one for one in data if isinstance(one, Listed)]
            if node.op == "Identity":
                return list(data)
            if node.op == "ZerosLike":
                return [replace(lists[0], elements=(None,) * len(lists[0].elements))]
            if node.op in ("AddN", "AddV2", "Add"):
                return [self._sum(lists, node, name)]
        return None

    def _reserved(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        count = self.number(data[1]) if node.op == "TensorListReserve" else 0
        row = self.shapes.get(data[0]) if isinstance(data[0], str) else None
        return [Listed((None,) * count, node.attr["element_dtype"].type, row)]

    def _from_tensor(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        (source, _), dtype = data, node.attr["element_dtype"].type
        shape = self._shape_of(source) if isinstance(source, str) else None
        if not shape or not isinstance(source, str):
            raise CannotBe
        if source not in self._rows:
            made = self.add(f"{name}/rows", "Unpack", [source])
            made.attr["T"].type, made.attr["num"].i, made.device = dtype, shape[0], node.device
            made.attr["axis"].i = 0
            self._rows[source] = [value_name(made.name, i) for i in range(shape[0])]
        return [Listed(tuple(self._rows[source]), dtype, shape[1:])]

    def _get(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed, index = listed_of(data[0]), self.number(data[1])
        if not 0 <= index < len(listed.elements):
            raise CannotBe
        return [listed.elements[index] or self._zeros(data[2], listed, node, name)]

    def _set(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed, index, item = listed_of(data[0]), self.number(data[1]), data[2]
        elements = list(listed.elements)
        if not 0 <= index < len(elements):
            raise CannotBe
        elements[index] = item
        return [replace(listed, elements=tuple(elements))]

    def _push(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed = listed_of(data[0])
        return [replace(listed, elements=(*listed.elements, data[1]))]

    def _pop(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed = listed_of(data[0])
        if not listed.elements:
            raise CannotBe
        *rest, last = listed.elements
        popped = last or self._zeros(data[1], listed, node, name)
        return [replace(listed, elements=tuple(rest)), popped]

    def _stack(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed = listed_of(data[0])
        known = [one for one in listed.elements if isinstance(one, str)]
        if not known or listed.dtype == tf.variant.as_datatype_enum:
            raise CannotBe
        if len(known) < len(listed.elements):
            like = self.add(f"{name}/zeros", "ZerosLike", known[:1])
            like.attr["T"].type, like.device = listed.dtype, node.device
        elements = [one if isinstance(one, str) else f"{name}/zeros" for one in listed.elements]
        made = self.add(name, "Pack", elements)
        made.attr["T"].type, made.attr["N"].i = listed.dtype, len(elements)
        made.attr["axis"].i, made.device = 0, node.device
        return [name]

    def _length(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        numbers = np.array(len(listed_of(data[0]).elements), np.int32)
        self._constant(name, numbers, node)
        self.numbers[name] = numbers
        return [name]

    def _row(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        row = listed_of(data[0]).row
        if row is None:
            raise CannotBe
        dtype = tf.as_dtype(node.attr["shape_type"].type).as_numpy_dtype
        self._constant(name, np.array(row, dtype), node)
        self.shapes[name] = row
        return [name]

    def _sum(self, lists: Sequence[Listed], node: NodeDef, name: str) -> Listed:
        """Lists added element by element."""
        if lists[0].dtype == tf.variant.as_datatype_enum:
            raise CannotBe
        found: list[Thing | None] = []
        for i, parts in enumerate(zip(*(one.elements for one in lists), strict=True)):
            some = [str(one) for one in parts if one is not None]
            if len(some) < 2:
                found.append(some[0] if some else None)
                continue
            made = self.add(f"{name}/{i}", "AddN", some)
            made.attr["T"].type, made.attr["N"].i = lists[0].dtype, len(some)
            made.device = node.device
            found.append(f"{name}/{i}")
        return replace(lists[0], elements=tuple(found))

    def _zeros(self, shape: Thing, listed: Listed, node: NodeDef, name: str) -> str:
        """What a list gives where nothing was set, if it or the node says of which shape."""
        told = self.shapes.get(shape) if isinstance(shape, str) else None
        dims = next(
            (d for d in (told, listed.row) if d is not None and min(d, default=0) >= 0), None
        )
        if dims is None or listed.dtype == tf.variant.as_datatype_enum:
            raise CannotBe
        zero = np.zeros((), tf.as_dtype(listed.dtype).as_numpy_dtype)
        self._constant(f"{name}/zero", zero, node)
        self._constant(f"{name}/shape", np.array(dims, np.int32), node)
        made = self.add(f"{name}/zeros", "Fill", [f"{name}/shape", f"{name}/zero"])
        made.attr["T"].type = listed.dtype
        made.attr["index_type"].type = tf.int32.as_datatype_enum
        made.device = node.device
        return f"{name}/zeros"

    def _constant(self, name: str, value: np.ndarray, node: NodeDef) -> None:
        made = self.add(name, "Const", [])
        tensor = tf.make_tensor_proto(value)
        made.attr["dtype"].type = tensor.dtype
        made.attr["value"].tensor.CopyFrom(tensor)
        made.device = node.device


_RULES: Mapping[str, Callable[..., list[Thing]]] = {
    "TensorListReserve": ListWriter._reserved,
    "EmptyTensorList": ListWriter._reserved,
    "TensorListFromTensor": ListWriter._from_tensor,
    "TensorListGetItem": ListWriter._get,
    "TensorListSetItem": ListWriter._set,
    "TensorListPushBack": ListWriter._push,
    "TensorListPopBack": ListWriter._pop,
    "TensorListStack": ListWriter._stack,
    "TensorListLength": ListWriter._length,
    "TensorListElementShape": ListWriter._row,
}
"""What is made of nodes of lists."""


def number_made(node: NodeDef, given: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The few numbers that a constant is, or that a node makes of others, if they are known."""
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        count = tf.TensorShape(tensor.tensor_shape).num_elements()
        return tf.make_ndarray(tensor) if count <= MAX_CONSTANT else None
    known = [one for one in given if one is not None]
    if not known or len(known) < len(given):
        return None
    if node.op == "Cast":
        return known[0].astype(tf.as_dtype(node.attr["DstT"].type).as_numpy_dtype)
    return np.asarray(_NUMBERS[node.op](*known)) if node.op in _NUMBERS else None


def listed_of(thing: Thing) -> Listed:
    """A list.

    Raises:
      CannotBe: it is a value.
    """
    if not isinstance(thing, Listed):
        raise CannotBe
    return thing


def value_name(name: str, index: int) -> str:
    """An output of a node, as inputs of nodes name it."""
    return f"{name}:{index}" if index else name
