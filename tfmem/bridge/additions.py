"""Assignments of a variable's own value and something more, made additions to it.

Keras 3 updates weights and slots so::

    r = Read(w)      s = AddV2(r, x)      a = Assign(w, s)

which makes a buffer for `s` where others read `x`, too, and a copy of it where the variable lies
(`in_place`). The same numbers, bitwise, without either::

    r = Read(w)      a/added = AssignAdd(w, x, ^r)      a = NoOp(^a/added)

and likewise of a difference. A read that nobody else reads is gone. What the original does can be
told by the names (`simulation.original`).

Source: `DenseUpdate` in `tensorflow/core/kernels/dense_update_functor.h`, TensorFlow 2.21.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef, NodeDef, drop, parse_value
from tfmem.bridge.inputs import Input, is_variable
from tfmem.bridge.reads import READ, users_in_order
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import full
from tfmem.graph.ir import Value
from tfmem.graph.ops import facts_of

_ASSIGN = "AssignVariableOp"

_UPDATES = {"AddV2": "AssignAddVariableOp", "Sub": "AssignSubVariableOp"}
"""What updates a variable in the place of what makes the value that it would be assigned."""


def make(
    graph_def: GraphDef, concrete: Any, inputs: Sequence[Input], types: Container[int]
) -> frozenset[str]:
    """Changes the assignments of a GraphDef that add, in place.

    Args:
      graph_def: of the function; control inputs order the reads and updates of each variable.
      concrete: the function, whose trace tells shapes.
      inputs: of the function.
      types: of what values, as TensorFlow numbers types.

    Returns:
      The names of the sums and reads that are gone.
    """
    by_name = {node.name: node for node in graph_def.node}
    sources = (text.removeprefix("^") for node in graph_def.node for text in node.input)
    readers = Counter(parse_value(text).node for text in sources)
    readers.update(parse_value(tensor.name).node for tensor in concrete.outputs)
    shapes = _Shapes(concrete, inputs)
    gone = set[str]()
    for one in list(_additions(graph_def, shapes.held, by_name)):
        shape = shapes.held[one.assignment.input[0]]
        has_shape = shape is not None and shapes.of(parse_value(one.added)) == shape
        has_type = one.assignment.attr["dtype"].type in types
        is_free = readers[one.total.name] == 1 and one.name not in by_name
        if has_shape and has_type and is_free:
            gone.add(one.total.name)
            is_read = readers[one.read.name] > 1
            if not is_read:
                gone.add(one.read.name)
            one.carry_out(graph_def, is_read=is_read)
    drop(graph_def, gone)
    return frozenset(gone)


class _Shapes:
    """Shapes as a trace tells them: of what variables hold, by the names of their inputs.

    Grappler's layouts move dimensions, but a sum with a variable has those of the variable.
    """

    def __init__(self, concrete: Any, inputs: Iterable[Input]) -> None:
        variables = (one for one in inputs if is_variable(one))
        self.held = {
            one.name: full(tf.TensorShape(one.handle.shape_and_type[0].shape)) for one in variables
        }
        self._outputs = {op.name: op.outputs for op in concrete.graph.get_operations()}

    def of(self, value: Value) -> Shape | None:
        """The shape of a value; None where it is not known."""
        outputs = self._outputs.get(value.node, ())
        return full(outputs[value.index].shape) if value.index < len(outputs) else None


@dataclass(frozen=True)
class _Addition:
    """An assignment, the sum that it assigns, the read in that, and the value that is added."""

    assignment: NodeDef
    total: NodeDef
    read: NodeDef
    added: str

    @property
    def name(self) -> str:
        """That of the node which adds."""
        return f"{self.assignment.name}/added"

    def carry_out(self, graph_def: GraphDef, *, is_read: bool) -> None:
        """Adds, behind the read or what that waits for, in the place of the assignment."""
        waiting = [self.assignment, self.total, *([] if is_read else [self.read])]
        after = [text for node in waiting for text in node.input if text[0] == "^"]
        after += [f"^{self.read.name}"] * is_read
        made = graph_def.node.add(name=self.name, op=_UPDATES[self.total.op])
        made.device = self.assignment.device
        made.attr["dtype"].CopyFrom(self.assignment.attr["dtype"])
        made.input.extend([self.assignment.input[0], self.added, *dict.fromkeys(after)])
        self.assignment.op = "NoOp"
        self.assignment.attr.clear()
        self.assignment.input[:] = [f"^{self.name}"]


def _additions(
    graph_def: GraphDef, handles: Container[str], by_name: dict[str, NodeDef]
) -> Iterator[_Addition]:
    """The assignments of sums of a variable's own value and another.

    The variable is not updated between the read of its value and the assignment.
    """
    for users in users_in_order(graph_def, handles).values():
        if not all(facts_of(node.op).uses_variable for node in users):
            continue
        reads: dict[str, NodeDef] = {}
        for node in users:
            if node.op == READ:
                reads[node.name] = node
            elif node.op == _ASSIGN:
                total = by_name.get(parse_value(node.input[1]).node)
                if total is not None and (found := _parts(total, reads)):
                    yield _Addition(node, total, *found)
            if facts_of(node.op).writes:
                reads.clear()


def _parts(total: NodeDef, reads: Mapping[str, NodeDef]) -> tuple[NodeDef, str] | None:
    """The read in a sum, or difference, and what is added to it; None if it has no such parts."""
    if total.op not in _UPDATES:
        return None
    first, second = total.input[:2]
    read, other = reads.get(parse_value(first).node), reads.get(parse_value(second).node)
    if read is not None and other is None:
        return read, str(second)
    if other is not None and read is None and total.op == "AddV2":
        return other, str(first)
    return None
