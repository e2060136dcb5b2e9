"""Loops whose number of turns is known, as graphs: each turn's nodes beside those of the others.

    While(n, list, state) -> turn 0's nodes, turn 1's nodes, ...; elements of lists are plain edges

So order, recomputation and transfers reach what the turns keep for a gradient, which lies in lists
otherwise. Lists are taken apart while the nodes are written down: what sets, pushes or pops an
element, and what gets it, leave no node. The kernels are the loop's own, in its order; a variable
that no turn changes is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.bridge.graphdefs import (
    BODIES,
    GraphDef,
    NodeDef,
    body_graph_def,
    functions_of,
    output_count,
    topological,
)
from tfmem.graph.bodies import LOOPS
from tfmem.graph.ops import facts_of

MOST_NODES = 20_000
"""Nodes that the turns of all loops may be. More reach longer loops, and are planned for longer."""

_READ = "ReadVariableOp"

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
    "Cast": np.asarray,
}
"""What ops that loops count by make of whole numbers."""

Shape = tuple[int, ...]
ShapeOf = Callable[[str], Shape | None]
"""The shape of a value of the graph, named as inputs of nodes name it, if it is known."""


class _CannotBe(Exception):
    """A loop, or what takes its lists, stays as it is."""


@dataclass(frozen=True)
class _Listed:
    """A list that is known.

    Attributes:
      elements: of each the value; None for zeros.
      dtype: of them.
      row: their shape, if that is known; open dimensions are -1.
    """

    elements: tuple[str | None, ...]
    dtype: int
    row: Shape | None = None


@dataclass(frozen=True)
class _Function:
    """A function of a loop: arguments, their types, nodes in a topological order, outputs."""

    args: Sequence[str]
    types: Sequence[int]
    nodes: Sequence[NodeDef]
    outputs: Sequence[str]


Thing = str | _Listed
"""A value of the new graph, by its name, or a list."""


@dataclass
class Unrolled:
    """A graph without loops.

    Attributes:
      graph_def: its nodes.
      turns: the nodes in the place of each loop, in their order.
    """

    graph_def: GraphDef
    turns: dict[str, list[str]] = field(default_factory=dict)


def unrolled(
    graph_def: GraphDef, inputs: Iterable[str], outputs: Iterable[str], shape_of: ShapeOf
) -> Unrolled | None:
    """The same graph in which no loop is left; None if there is none, or one has to stay.

    Args:
      graph_def: the nodes.
      inputs: names of its inputs.
      outputs: names of the nodes that it returns values of.
      shape_of: of values of the graph.
    """
    loops = [node.name for node in graph_def.node if node.op in LOOPS]
    if not loops or set(loops) & set(outputs):
        return None
    writer = _Writer(graph_def, shape_of)
    try:
        writer.write(topological(graph_def.node), {}, "")
        return writer.finished([*inputs, *outputs])
    except _CannotBe:
        return None


class _Writer:
    """Writes nodes down, loops turn by turn, and knows what lists hold and what counters are."""

    def __init__(self, graph_def: GraphDef, shape_of: ShapeOf) -> None:
        self._library = {one.signature.name: one for one in graph_def.library.function}
        self._shape_of = shape_of
        self._made = type(graph_def)(library=graph_def.library)
        self._made.versions.CopyFrom(graph_def.versions)
        self._numbers: dict[str, np.ndarray] = {}
        self._shapes: dict[str, Shape] = {}
        self._rows: dict[str, list[str]] = {}
        self._turns: dict[str, list[str]] = {}
        self._loop: list[str] | None = None  # the names of the nodes of the outermost loop
        self._after: tuple[str, ...] = ()  # what nodes of a loop wait for that read variables
        self._controls: dict[str, tuple[str, ...]] = {}  # of nodes that are gone

    def finished(self, wanted: Iterable[str]) -> Unrolled:
        """What was written, as far as it is needed for some nodes, or has an effect."""
        by_name = {node.name: node for node in self._made.node}
        todo = [name for name in wanted if name in by_name]
        todo += [node.name for node in self._made.node if facts_of(node.op).is_stateful]
        needed = set(todo)
        while todo:
            sources = {_name(text) for text in by_name[todo.pop()].input} - needed
            needed |= sources
            todo += (name for name in sources if name in by_name)
        kept = [node for node in self._made.node if node.name in needed]
        result = type(self._made)(versions=self._made.versions)
        result.node.extend(kept)
        result.library.function.extend(self._functions_of(kept))
        names = {node.name for node in kept}
        turns = {loop: [n for n in found if n in names] for loop, found in self._turns.items()}
        return Unrolled(result, turns)

    def _functions_of(self, nodes: Iterable[NodeDef]) -> list[Any]:
        """The functions that nodes run, and those that these do."""
        todo, found = list(nodes), dict[str, Any]()
        while todo:
            for name in functions_of(todo.pop()):
                if name in self._library and name not in found:
                    found[name] = self._library[name]
                    todo += self._library[name].node_def
        return list(found.values())

    def write(self, nodes: Sequence[NodeDef], env: dict[str, list[Thing]], prefix: str) -> None:
        """Writes nodes of a function down, as `prefix` and their name.

        Args:
          nodes: in a topological order.
          env: what inputs are, by name; gets what nodes make.
          prefix: of the names.
        """
        for node in nodes:
            if node.name in env:
                continue
            data = [_look_up(env, text) for text in node.input if text[0] != "^"]
            controls = [
                found for text in node.input if text[0] == "^" for found in self._wait(text, prefix)
            ]
            env[node.name] = self._write(node, data, controls, prefix)

    def _wait(self, text: str, prefix: str) -> Sequence[str]:
        name = f"{prefix}{text[1:]}"
        return self._controls.get(name, (f"^{name}",))

    def _write(
        self, node: NodeDef, data: list[Thing], controls: list[str], prefix: str
    ) -> list[Thing]:
        name = f"{prefix}{node.name}"
        if node.op in LOOPS:
            return self._unroll(node, data, controls, name)
        made = self._of_lists(node, data, name)
        if made is not None:
            self._controls[name] = tuple(controls)
            return made
        if any(isinstance(one, _Listed) for one in data):
            raise _CannotBe
        if self._is_in_loop and node.op in BODIES:
            raise _CannotBe
        if self._is_in_loop and facts_of(node.op).is_stateful and node.op != _READ:
            raise _CannotBe
        return self._copy(node, [str(one) for one in data], controls, name)

    @property
    def _is_in_loop(self) -> bool:
        return self._loop is not None

    def _copy(
        self, node: NodeDef, data: Sequence[str], controls: Sequence[str], name: str
    ) -> list[Thing]:
        """The node itself, under another name."""
        if node.op == _READ:
            controls = [*controls, *self._after]
        copy = self._add(name, node.op, [*data, *dict.fromkeys(controls)])
        for key, value in node.attr.items():
            copy.attr[key].CopyFrom(value)
        copy.device = node.device
        outputs = op_def_registry.get(node.op).output_arg
        count = sum(output_count(one, node) for one in outputs)
        self._count(node, data, name)
        return [_value(name, i) for i in range(count)]

    def _add(self, name: str, op: str, inputs: Iterable[str]) -> NodeDef:
        if len(self._made.node) > MOST_NODES:
            raise _CannotBe
        if self._loop is not None:
            self._loop.append(name)
        return self._made.node.add(name=name, op=op, input=inputs)

    def _count(self, node: NodeDef, data: Sequence[str], name: str) -> None:
        """Notes the numbers that a node makes, if they are known."""
        if node.op == "Const":
            tensor = node.attr["value"].tensor
            if tf.as_dtype(tensor.dtype).is_integer or tensor.dtype == tf.bool.as_datatype_enum:
                numbers = tf.make_ndarray(tensor)
                if numbers.size == 1:
                    self._numbers[name] = numbers
                if numbers.ndim == 1:
                    self._shapes[name] = tuple(map(int, numbers))
        elif node.op in _NUMBERS and data and all(one in self._numbers for one in data):
            self._numbers[name] = _NUMBERS[node.op](*(self._numbers[one] for one in data))

    def _number(self, thing: Thing) -> int:
        """A whole number that is known."""
        found = self._numbers.get(thing) if isinstance(thing, str) else None
        if found is None or found.size != 1:
            raise _CannotBe
        return int(found.reshape(()))

    # Loops.

    def _unroll(
        self, node: NodeDef, data: list[Thing], controls: list[str], name: str
    ) -> list[Thing]:
        """Writes the turns of a loop down; what it gives."""
        is_outermost, before = self._loop is None, self._after
        self._loop = [] if self._loop is None else self._loop
        self._after = (*before, *controls)
        condition, body = (self._function(node, key) for key in ("cond", "body"))
        hoisted = self._hoisted(body, data, f"{name}/")
        handles = [i for i, one in enumerate(body.types) if one == tf.resource.as_datatype_enum]
        for turn in range(MOST_NODES):
            if not self._goes_on(condition, data):
                break
            made = self._turn(body, data, f"{name}/turn{turn}/", hoisted)
            if any(made[i] != data[i] for i in handles):
                raise _CannotBe
            data = made
        else:
            raise _CannotBe
        reads = (_value(f"{name}/{one.name}", 0) for one in body.nodes if one.name in hoisted)
        ends = (_name(one) for one in data if isinstance(one, str))
        waited = (f"^{one}" for one in (*reads, *ends))
        self._controls[name] = tuple(dict.fromkeys((*controls, *waited)))
        self._after = before
        if is_outermost:
            self._turns[name], self._loop = self._loop, None
        return data

    def _function(self, node: NodeDef, key: str) -> _Function:
        function = self._library[node.attr[key].func.name]
        graph_def, outputs = body_graph_def(function)
        args = function.signature.input_arg
        names, types = [arg.name for arg in args], [arg.type for arg in args]
        return _Function(names, types, topological(graph_def.node), outputs)

    def _hoisted(
        self, body: _Function, data: Sequence[Thing], prefix: str
    ) -> dict[str, list[Thing]]:
        """Writes down, once for all turns, constants and reads of variables."""
        env = {name: [one] for name, one in zip(body.args, data, strict=True)}
        found: dict[str, list[Thing]] = {}
        for node in body.nodes:
            sources = [text for text in node.input if text[0] != "^"]
            if node.op == "Const" or (node.op == _READ and _name(sources[0]) in env):
                given = [str(_look_up(env, text)) for text in sources]
                found[node.name] = self._copy(node, given, (), f"{prefix}{node.name}")
        return found

    def _turn(
        self,
        body: _Function,
        data: Sequence[Thing],
        prefix: str,
        hoisted: Mapping[str, list[Thing]],
    ) -> list[Thing]:
        """Writes one turn down; what it passes on."""
        env = {name: [one] for name, one in zip(body.args, data, strict=True)}
        self._controls |= {f"{prefix}{name}": () for name in (*hoisted, *body.args)}
        env.update(hoisted)
        self.write(body.nodes, env, prefix)
        return [_look_up(env, text) for text in body.outputs]

    def _goes_on(self, condition: _Function, data: Sequence[Thing]) -> bool:
        """Whether there is another turn."""
        known = dict[str, np.ndarray]()
        for name, one in zip(condition.args, data, strict=True):
            if isinstance(one, str) and one in self._numbers:
                known[name] = self._numbers[one]
        for node in condition.nodes:
            sources = [_name(text) for text in node.input if text[0] != "^"]
            if node.op == "Const":
                known[node.name] = tf.make_ndarray(node.attr["value"].tensor)
            elif node.op in _NUMBERS and all(one in known for one in sources):
                known[node.name] = _NUMBERS[node.op](*(known[one] for one in sources))
        found = known.get(_name(condition.outputs[0]))
        if found is None or found.size != 1:
            raise _CannotBe
        return bool(found.reshape(()))

    # Lists.

    def _of_lists(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing] | None:
        """What a node makes that makes or takes lists; None if it is another."""
        if rule := _RULES.get(node.op):
            return rule(self, node, data, name)
        if data and all(isinstance(one, _Listed) for one in data):
            lists = [one for one in data if isinstance(one, _Listed)]
            if node.op == "Identity":
                return list(data)
            if node.op == "ZerosLike":
                return [replace(lists[0], elements=(None,) * len(lists[0].elements))]
            if node.op in ("AddN", "AddV2", "Add"):
                return [self._sum(lists, node, name)]
        return None

    def _reserved(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        count = self._number(data[1]) if node.op == "TensorListReserve" else 0
        row = self._shapes.get(data[0]) if isinstance(data[0], str) else None
        return [_Listed((None,) * count, node.attr["element_dtype"].type, row)]

    def _from_tensor(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        (source, _), dtype = data, node.attr["element_dtype"].type
        shape = self._shape_of(source) if isinstance(source, str) else None
        if not shape or not isinstance(source, str):
            raise _CannotBe
        if source not in self._rows:
            made = self._add(f"{name}/rows", "Unpack", [source])
            made.attr["T"].type, made.attr["num"].i, made.device = dtype, shape[0], node.device
            made.attr["axis"].i = 0
            self._rows[source] = [_value(made.name, i) for i in range(shape[0])]
        return [_Listed(tuple(self._rows[source]), dtype, shape[1:])]

    def _get(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed, index = _listed(data[0]), self._number(data[1])
        if not 0 <= index < len(listed.elements):
            raise _CannotBe
        return [listed.elements[index] or self._zeros(data[2], listed, node, name)]

    def _set(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed, index, item = _listed(data[0]), self._number(data[1]), data[2]
        elements = list(listed.elements)
        if not 0 <= index < len(elements) or not isinstance(item, str):
            raise _CannotBe
        elements[index] = item
        return [replace(listed, elements=tuple(elements))]

    def _push(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed, item = _listed(data[0]), data[1]
        if not isinstance(item, str):
            raise _CannotBe
        return [replace(listed, elements=(*listed.elements, item))]

    def _pop(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed = _listed(data[0])
        if not listed.elements:
            raise _CannotBe
        *rest, last = listed.elements
        popped = last or self._zeros(data[1], listed, node, name)
        return [replace(listed, elements=tuple(rest)), popped]

    def _stack(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        listed = _listed(data[0])
        some = next((one for one in listed.elements if one is not None), None)
        if some is None:
            raise _CannotBe
        if None in listed.elements:
            like = self._add(f"{name}/zeros", "ZerosLike", [some])
            like.attr["T"].type, like.device = listed.dtype, node.device
        elements = [f"{name}/zeros" if one is None else one for one in listed.elements]
        made = self._add(name, "Pack", elements)
        made.attr["T"].type, made.attr["N"].i = listed.dtype, len(elements)
        made.attr["axis"].i, made.device = 0, node.device
        return [name]

    def _length(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        numbers = np.array(len(_listed(data[0]).elements), np.int32)
        self._constant(name, numbers, node)
        self._numbers[name] = numbers
        return [name]

    def _row(self, node: NodeDef, data: list[Thing], name: str) -> list[Thing]:
        row = _listed(data[0]).row
        if row is None:
            raise _CannotBe
        dtype = tf.as_dtype(node.attr["shape_type"].type).as_numpy_dtype
        self._constant(name, np.array(row, dtype), node)
        self._shapes[name] = row
        return [name]

    def _sum(self, lists: Sequence[_Listed], node: NodeDef, name: str) -> _Listed:
        """Lists added element by element."""
        found: list[str | None] = []
        for i, parts in enumerate(zip(*(one.elements for one in lists), strict=True)):
            some = [one for one in parts if one is not None]
            if len(some) < 2:
                found.append(some[0] if some else None)
                continue
            made = self._add(f"{name}/{i}", "AddN", some)
            made.attr["T"].type, made.attr["N"].i = lists[0].dtype, len(some)
            made.device = node.device
            found.append(made.name)
        return replace(lists[0], elements=tuple(found))

    def _zeros(self, shape: Thing, listed: _Listed, node: NodeDef, name: str) -> str:
        """What a list gives where nothing was set, if it or the node says of which shape."""
        told = self._shapes.get(shape) if isinstance(shape, str) else None
        dims = next(
            (d for d in (told, listed.row) if d is not None and min(d, default=0) >= 0), None
        )
        if dims is None:
            raise _CannotBe
        zero = np.zeros((), tf.as_dtype(listed.dtype).as_numpy_dtype)
        self._constant(f"{name}/zero", zero, node)
        self._constant(f"{name}/shape", np.array(dims, np.int32), node)
        made = self._add(f"{name}/zeros", "Fill", [f"{name}/shape", f"{name}/zero"])
        made.attr["T"].type = listed.dtype
        made.attr["index_type"].type = tf.int32.as_datatype_enum
        made.device = node.device
        return f"{name}/zeros"

    def _constant(self, name: str, value: np.ndarray, node: NodeDef) -> None:
        made = self._add(name, "Const", [])
        tensor = tf.make_tensor_proto(value)
        made.attr["dtype"].type = tensor.dtype
        made.attr["value"].tensor.CopyFrom(tensor)
        made.device = node.device


_RULES: Mapping[str, Callable[..., list[Thing]]] = {
    "TensorListReserve": _Writer._reserved,
    "EmptyTensorList": _Writer._reserved,
    "TensorListFromTensor": _Writer._from_tensor,
    "TensorListGetItem": _Writer._get,
    "TensorListSetItem": _Writer._set,
    "TensorListPushBack": _Writer._push,
    "TensorListPopBack": _Writer._pop,
    "TensorListStack": _Writer._stack,
    "TensorListLength": _Writer._length,
    "TensorListElementShape": _Writer._row,
}
"""What is made of nodes of lists."""


def _listed(thing: Thing) -> _Listed:
    if not isinstance(thing, _Listed):
        raise _CannotBe
    return thing


def _look_up(env: Mapping[str, Sequence[Thing]], text: str) -> Thing:
    name, _, index = text.partition(":")
    found: Thing = env[name][int(index or 0)]
    return found


def _value(name: str, index: int) -> str:
    return f"{name}:{index}" if index else name


def _name(text: str) -> str:
    return text.lstrip("^").partition(":")[0]
