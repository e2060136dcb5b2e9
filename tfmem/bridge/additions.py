"""Assignments of a variable's own value and something more, made additions to it.

Keras 3 updates weights and slots so::

    r = Read(w)      s = AddV2(r, x)      a = Assign(w, s)

which makes a buffer for `s` where others read `x`, too, and a copy of it where the variable lies
(`in_place`). The same numbers, bitwise, without either::

    a/added = AssignAdd(w, x)             a = NoOp(^a/added)

and likewise of a difference. What the original does can be told by the names
(`simulation.original`).

Source: `DenseUpdate` in `tensorflow/core/kernels/dense_update_functor.h`, TensorFlow 2.21.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef, NodeDef, parse_value
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
) -> None:
    """Changes the assignments of a GraphDef that add, in place.

    Args:
      graph_def: of the function; control inputs order the reads and updates of each variable.
      concrete: the function, whose trace tells shapes.
      inputs: of the function.
      types: of what values, as TensorFlow numbers types.
    """
    by_name = {node.name: node for node in graph_def.node}
    sources = (text.removeprefix("^") for node in graph_def.node for text in node.input)
    readers = Counter(parse_value(text).node for text in sources)
    readers.update(parse_value(tensor.name).node for tensor in concrete.outputs)
    shapes = _Shapes(concrete, inputs)
    gone = set()
    for assignment, total, added in list(_additions(graph_def, shapes.held, by_name)):
        shape = shapes.held[assignment.input[0]]
        has_type = assignment.attr["dtype"].type in types
        is_free = readers[total.name] == 1 and f"{assignment.name}/added" not in by_name
        if has_type and is_free and shape is not None and shapes.of(parse_value(added)) == shape:
            _add(graph_def, assignment, total, added)
            gone.add(total.name)
    for place in reversed(range(len(graph_def.node))):
        if graph_def.node[place].name in gone:
            del graph_def.node[place]


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


def _additions(
    graph_def: GraphDef, handles: Container[str], by_name: dict[str, NodeDef]
) -> Iterator[tuple[NodeDef, NodeDef, str]]:
    """Each assignment of a variable's own value and another: itself, their sum, the other.

    The variable is not updated between the read of its value and the assignment.
    """
    for users in users_in_order(graph_def, handles).values():
        if not all(facts_of(node.op).uses_variable for node in users):
            continue
        reads: set[str] = set()
        for node in users:
            if node.op == READ:
                reads.add(node.name)
            elif node.op == _ASSIGN:
                total = by_name.get(parse_value(node.input[1]).node)
                if total is not None and (added := _added(total, reads)):
                    yield node, total, added
            if facts_of(node.op).writes:
                reads.clear()


def _added(total: NodeDef, reads: Container[str]) -> str:
    """What a sum, or difference, adds to one of the reads; "" if it does not."""
    if total.op not in _UPDATES:
        return ""
    first, second = total.input[:2]
    is_first, is_second = (parse_value(text).node in reads for text in (first, second))
    if is_first and not is_second:
        return str(second)
    return str(first) if is_second and not is_first and total.op == "AddV2" else ""


def _add(graph_def: GraphDef, assignment: NodeDef, total: NodeDef, added: str) -> None:
    """Makes an assignment of a sum an addition, and a node of its name that waits for that."""
    after = [text for node in (assignment, total) for text in node.input if text[0] == "^"]
    made = graph_def.node.add(name=f"{assignment.name}/added", op=_UPDATES[total.op])
    made.device = assignment.device
    made.attr["dtype"].CopyFrom(assignment.attr["dtype"])
    made.input.extend([assignment.input[0], added, *dict.fromkeys(after)])
    assignment.op = "NoOp"
    assignment.attr.clear()
    assignment.input[:] = [f"^{made.name}"]
