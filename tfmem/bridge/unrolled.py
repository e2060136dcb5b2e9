"""Loops whose number of turns is known, as graphs: each turn's nodes beside those of the others.

    While(n, list, state) -> turn 0's nodes, turn 1's nodes, ...; elements of lists are plain edges

So order, recomputation and transfers reach what the turns keep for a gradient, which lies in lists
otherwise. Lists are taken apart while the nodes are written down: what sets, pushes or pops an
element, and what gets it, leave no node. The kernels are the loop's own, in its order; a variable
that no turn changes is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from tfmem.bridge.known_lists import (
    MOST_NODES,
    CannotBe,
    Listed,
    ListWriter,
    ShapeOf,
    Thing,
    number_made,
    value_name,
)
from tfmem.graph.bodies import LOOPS
from tfmem.graph.ops import facts_of

_READ = "ReadVariableOp"


@dataclass(frozen=True)
class _Function:
    """A function of a loop: arguments, their types, nodes in a topological order, outputs."""

    args: Sequence[str]
    types: Sequence[int]
    nodes: Sequence[NodeDef]
    outputs: Sequence[str]


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
    graph_def: GraphDef,
    inputs: Iterable[str],
    outputs: Iterable[str],
    effects: Iterable[str],
    shape_of: ShapeOf,
) -> Unrolled | None:
    """The same graph in which no loop is left; None if there is none, or one has to stay.

    Args:
      graph_def: the nodes.
      inputs: names of its inputs.
      outputs: names of the nodes that it returns values of.
      effects: names of nodes that must run whether their values are needed or not.
      shape_of: of values of the graph.
    """
    loops = [node.name for node in graph_def.node if node.op in LOOPS]
    if not loops or set(loops) & set(outputs):
        return None
    writer = _Writer(graph_def, shape_of)
    try:
        writer.write(topological(graph_def.node), {}, "")
        return writer.finished([*inputs, *outputs, *(set(effects) - set(loops))])
    except CannotBe:
        return None


class _Writer(ListWriter):
    """Writes nodes down, loops turn by turn."""

    def __init__(self, graph_def: GraphDef, shape_of: ShapeOf) -> None:
        super().__init__(graph_def, shape_of)
        self._library = {one.signature.name: one for one in graph_def.library.function}
        self._turns: dict[str, list[str]] = {}
        self._after: tuple[str, ...] = ()  # what nodes of a loop wait for that read variables
        self._controls: dict[str, tuple[str, ...]] = {}  # of nodes that are gone

    def finished(self, wanted: Iterable[str]) -> Unrolled:
        """What was written, as far as it is needed for some nodes, or has an effect.

        Raises:
          CannotBe: one of them gave a list.
        """
        by_name, todo = {node.name: node for node in self.made.node}, list(wanted)
        if any(name not in by_name for name in todo):
            raise CannotBe
        todo += [node.name for node in self.made.node if facts_of(node.op).is_stateful]
        needed = set(todo)
        while todo:
            sources = {_name(text) for text in by_name[todo.pop()].input} - needed
            needed |= sources
            todo += (name for name in sources if name in by_name)
        kept = [node for node in self.made.node if node.name in needed]
        result = type(self.made)(versions=self.made.versions)
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
        made = self.of_lists(node, data, name)
        if made is not None:
            self._controls[name] = tuple(controls)
            return made
        if any(isinstance(one, Listed) for one in data):
            raise CannotBe
        if self._is_in_loop and node.op in BODIES:
            raise CannotBe
        if self._is_in_loop and facts_of(node.op).is_stateful and node.op != _READ:
            raise CannotBe
        return self._copy(node, [str(one) for one in data], controls, name)

    @property
    def _is_in_loop(self) -> bool:
        return self.written is not None

    def _copy(
        self, node: NodeDef, data: Sequence[str], controls: Sequence[str], name: str
    ) -> list[Thing]:
        """The node itself, under another name."""
        if node.op == _READ:
            controls = [*controls, *self._after]
        copy = self.add(name, node.op, [*data, *dict.fromkeys(controls)])
        for key, value in node.attr.items():
            copy.attr[key].CopyFrom(value)
        copy.device = node.device
        outputs = op_def_registry.get(node.op).output_arg
        count = sum(output_count(one, node) for one in outputs)
        self.count(node, data, name)
        return [value_name(name, i) for i in range(count)]

    # Loops.

    def _unroll(
        self, node: NodeDef, data: list[Thing], controls: list[str], name: str
    ) -> list[Thing]:
        """Writes the turns of a loop down; what it gives."""
        is_outermost, before = self.written is None, self._after
        self.written = [] if self.written is None else self.written
        self._after = (*before, *controls)
        condition, body = (self._function(node, key) for key in ("cond", "body"))
        hoisted = self._hoisted(body, data, f"{name}/")
        handles = [i for i, one in enumerate(body.types) if one == tf.resource.as_datatype_enum]
        for turn in range(MOST_NODES):
            if not self._goes_on(condition, data):
                break
            made = self._turn(body, data, f"{name}/turn{turn}/", hoisted)
            if any(made[i] != data[i] for i in handles):
                raise CannotBe
            data = made
        else:
            raise CannotBe
        reads = (value_name(f"{name}/{one.name}", 0) for one in body.nodes if one.name in hoisted)
        # Who waits for the loop need not wait for numbers that are known, which nobody may read.
        ends = (_name(one) for one in data if isinstance(one, str) and one not in self.numbers)
        waited = (f"^{one}" for one in (*reads, *ends))
        self._controls[name] = tuple(dict.fromkeys((*controls, *waited)))
        self._after = before
        if is_outermost:
            self._turns[name], self.written = self.written, None
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
            if isinstance(one, str) and one in self.numbers:
                known[name] = self.numbers[one]
        for node in condition.nodes:
            sources = [_name(text) for text in node.input if text[0] != "^"]
            made = number_made(node, [known.get(one) for one in sources])
            if made is not None:
                known[node.name] = made
        found = known.get(_name(condition.outputs[0]))
        if found is None or found.size != 1:
            raise CannotBe
        return bool(found.reshape(()))


def _look_up(env: Mapping[str, Sequence[Thing]], text: str) -> Thing:
    name, _, index = text.partition(":")
    found: Thing = env[name][int(index or 0)]
    return found


def _name(text: str) -> str:
    return text.lstrip("^").partition(":")[0]
