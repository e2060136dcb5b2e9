"""Updates of variables that leave them where they lie.

A variable that lies elsewhere after each step leaves another hole each time, until what is free is
shattered. Two kinds of update move one.

*Assignment* adopts the buffer of what is assigned. Everything is written instead; for that its old
contents are not needed any more, or it is copied first, as for any update::

    Assign(w, x, ^a)            w=/update = ResourceStridedSliceAssign(w[...], x, ^a)
                                w= = DisableCopyOnRead(w, ^w=/update)

*Dense updates of variables whose rows are accessed*: such an op (`Facts.is_sparse`) sets a variable
to copy-on-read mode, in which a dense update first copies it to a new buffer. Out of the mode it
happens in place, since all reads were copies; a gather of no rows sets the mode again::

    AssignAdd(w, x, ^a)         w+/dense = DisableCopyOnRead(w, ^x, ^a)
                                w+/update = AssignAdd(w, x, ^a, ^w+/dense)
                                w+ = ResourceGather(w, [], ^w+/update)

The same numbers, and no more memory. Source: ``EnsureSparseVariableAccess`` and
``PrepareToUpdateVariable`` in ``training_op_helpers.h`` of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

import tensorflow as tf

from tfmem.bridge.graphdefs import NodeDef
from tfmem.bridge.kernels import runs_on
from tfmem.graph import device_names
from tfmem.graph.compact import ASSIGN, UPDATE
from tfmem.graph.ir import Graph
from tfmem.graph.ops import facts_of

_MARK = "/tfmem_"
_DENSE, _ROWS, _UPDATE = (f"{_MARK}{part}" for part in ("dense", "rows", "update"))


def update_in_place(
    nodes: Iterable[NodeDef],
    graph: Graph,
    *,
    resizable: Container[str] = (),
    in_function: bool = False,
) -> list[NodeDef]:
    """Changes NodeDefs so that updates leave the variables of a graph where they are.

    Args:
      nodes: of the graph, with their inputs and control inputs.
      graph: what they were made of.
      resizable: names of the variables that may be assigned another shape.
      in_function: whether they are a function's, which names outputs by argument.

    Returns:
      The nodes to be added; the part of their names up to the last "/" is a node of the graph.
    """
    added: list[NodeDef] = []
    for node in nodes:
        number = graph.form.number.get(node.name, -1)
        kind = graph.form.kind[number] if number >= 0 else None
        if kind not in (UPDATE, ASSIGN):
            continue
        update = _Update(node, graph, in_function)
        if kind == UPDATE:
            added += update.without_copy()
        elif node.input[0] not in resizable:
            added += update.of_everything()
    return added


def owner(name: str) -> str:
    """The node of a graph for which one of a name runs: itself, or that which it is a part of."""
    return name.partition(_MARK)[0]


class _Update:
    """One update; what stands in its place ends with a node of its name, which others wait for."""

    def __init__(self, node: NodeDef, graph: Graph, in_function: bool) -> None:
        self.node, self.graph, self.in_function = node, graph, in_function
        self.device = graph.by_name[node.name].device
        form = graph.form
        self.form, self.variables = form, form.variables[form.number[node.name]]

    def without_copy(self) -> list[NodeDef]:
        """A dense update of variables in copy-on-read mode, outside of that mode."""
        writes = facts_of(self.node.op).writes
        if len(writes) != len(self.variables):
            return []
        pairs = zip(writes, self.variables, strict=True)
        handles = [self.node.input[i] for i, v in pairs if v in self.form.copied]
        rows, update = self._constant([], tf.int64), self._renamed(self.node)
        dtype = self.node.attr["dtype" if "dtype" in self.node.attr else "T"].type
        waits = [f"^{name}" for name in self._sources()]
        made, after = [rows, update], f"^{update.name}"
        for serial, handle in enumerate(handles):
            dense = self._new(f"{_DENSE}{serial}", "DisableCopyOnRead", [handle, *waits])
            update.input.append(f"^{dense.name}")
            gather = self._new(
                f"{_ROWS}{serial}", "ResourceGather", [handle, self._output(rows), after]
            )
            gather.attr["dtype"].type = dtype
            gather.attr["Tindices"].type = tf.int64.as_datatype_enum
            after = f"^{gather.name}"
            made += [dense, gather]
        return self._replaced(made) if handles else []

    def of_everything(self) -> list[NodeDef]:
        """An assignment as one of all that an ellipsis stands for, whatever its bounds say."""
        (variable,) = self.variables
        bounds = self._constant([1], tf.int32)
        handle, value, *waits = self.node.input
        inputs = [handle, *[self._output(bounds)] * 3, value, *waits]
        update = self._new(_UPDATE, "ResourceStridedSliceAssign", inputs)
        update.attr["T"].type = self.node.attr["dtype"].type
        update.attr["Index"].type = tf.int32.as_datatype_enum
        update.attr["ellipsis_mask"].i = 1
        made = [bounds, update]
        if variable not in self.form.copied:
            made.append(self._new(_DENSE, "DisableCopyOnRead", [handle, f"^{update.name}"]))
        return self._replaced(made)

    def _replaced(self, made: list[NodeDef]) -> list[NodeDef]:
        """Gives the last node the update's name; all others, or none where a kernel is missing."""
        kind = device_names.kind(self.device)
        if not all(runs_on(one, kind) for one in made):
            return []
        last = made.pop()
        last.name = self.node.name
        self.node.CopyFrom(last)
        return made

    def _new(self, name: str, op: str, inputs: Iterable[str]) -> NodeDef:
        made = tf.compat.v1.NodeDef(name=f"{self.node.name}{name}", op=op)
        made.input.extend(inputs)
        return made

    def _renamed(self, node: NodeDef) -> NodeDef:
        made = tf.compat.v1.NodeDef()
        made.CopyFrom(node)
        made.name = f"{node.name}{_UPDATE}"
        return made

    def _constant(self, values: Sequence[int], dtype: tf.DType) -> NodeDef:
        made = self._new(_ROWS, "Const", ())
        made.attr["dtype"].type = dtype.as_datatype_enum
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, dtype, [len(values)]))
        return made

    def _output(self, node: NodeDef) -> str:
        return f"{node.name}:output:0" if self.in_function else str(node.name)

    def _sources(self) -> Iterator[str]:
        """What the update waits for; a function's arguments are there before it."""
        names = (text.removeprefix("^").partition(":")[0] for text in self.node.input)
        for name in dict.fromkeys(names):
            source = self.graph.by_name.get(name)
            if source is None or not source.is_input:
                yield name
