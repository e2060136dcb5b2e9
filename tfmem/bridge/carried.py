"""What loops carry from turn to turn, and nobody reads.

A loop's gradient asks for more than it uses: of ``x / 0.1`` it keeps each ``x`` on a list, for the
gradient of the constant. TensorFlow takes loops apart into nodes, and drops those that lead
nowhere; a loop that stays one node would make and carry all of it::

    there = While(zero, x, list)                  the body pushes each y on the list
    back = StatelessWhile(zero, loss, there:2)    the body pops it, and nobody reads back:2

Here each turn of either gives the list on as it was given, and what it made for it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.bridge.graphdefs import (
    BODIES,
    FunctionDef,
    GraphDef,
    NodeDef,
    body_graph_def,
    functions_of,
    parse_value,
    topological,
)
from tfmem.bridge.unread import count_runs
from tfmem.graph.bodies import LOOPS
from tfmem.graph.ir import Value


def drop_unread(graph_def: GraphDef, outputs: Iterable[Value]) -> None:
    """Lets loops give on as they were given what no one reads when they end.

    Functions that others run as well stay as they are.

    Args:
      graph_def: the nodes, all of which run, and functions, which are changed.
      outputs: what is returned.
    """
    if any(node.op in BODIES for node in graph_def.node):
        _drop(graph_def.node, outputs, _Loops(graph_def))


def _drop(nodes: Iterable[NodeDef], outputs: Iterable[Value], loops: _Loops) -> None:
    """The same of the nodes of one function, readers before what they read."""
    read = set(outputs)
    for node in reversed(topological(nodes)):
        texts = list(node.input)
        if loop := loops.of(node):
            live = loop.carried(value.index for value in read if value.node == node.name)
            loop.give_on(live)
            body = loop.body
            _drop(body.nodes.values(), [body.returned[i] for i in live], loops)
            texts = [texts[i] for i in live]
        for function in loops.others(node):
            _drop(function.nodes.values(), function.returned, loops)
        read.update(parse_value(text) for text in texts if text[0] != "^")


class _Loops:
    """Loops, branches and calls, as far as nobody else runs their functions."""

    def __init__(self, graph_def: GraphDef) -> None:
        functions = graph_def.library.function
        runs = count_runs([graph_def.node, *(one.node_def for one in functions)])
        self._functions = {
            one.signature.name: one for one in functions if runs[one.signature.name] == 1
        }
        self._known: dict[str, _Function] = {}

    def of(self, node: NodeDef) -> _Loop | None:
        """That of a node, if it is one."""
        found = self._run_once(node) if node.op in LOOPS else []
        return _Loop(*found) if len(found) == 2 else None

    def others(self, node: NodeDef) -> list[_Function]:
        """The functions of a branch or a call, in which there may be loops."""
        return self._run_once(node) if node.op in BODIES and node.op not in LOOPS else []

    def _run_once(self, node: NodeDef) -> list[_Function]:
        found = []
        for name in functions_of(node):
            if name in self._functions:
                if name not in self._known:
                    self._known[name] = _Function(self._functions[name], self)
                found.append(self._known[name])
        return found


@dataclass(frozen=True)
class _Loop:
    """A loop's functions."""

    condition: _Function
    body: _Function

    def carried(self, read: Iterable[int]) -> list[int]:
        """Which variables matter: those that are read, and those that these are made of."""
        found: set[int] = set()
        live = {*read, *self.condition.inputs_of([0]), *self.body.inputs_of([])}
        while len(found) < len(live):
            found = live
            live = found | self.body.inputs_of(found)
        return sorted(found)

    def give_on(self, live: Collection[int]) -> None:
        """Gives all other variables on as they are."""
        others = range(len(self.body.returned))
        self.body.give_on([i for i in others if i not in live])


class _Function:
    """A function of a loop, a branch or a call.

    Attributes:
      nodes: by name, with inputs as in a graph.
      returned: the values that it returns.
    """

    def __init__(self, function: FunctionDef, loops: _Loops) -> None:
        self._function, self._loops = function, loops
        graph_def, outputs = body_graph_def(function)
        self.nodes = {node.name: node for node in graph_def.node}
        self.returned = list(map(parse_value, outputs))
        self._inputs = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
        effects = (node.name for node in graph_def.node if _has_effect(node))
        self._must_run = {*effects, *function.control_ret.values()}

    def inputs_of(self, returned: Iterable[int]) -> set[int]:
        """Which inputs outputs are made of, and what runs for its effect."""
        names = {value.node for value in self._before(returned, self._live)}
        return {self._inputs[name] for name in names if name in self._inputs}

    def give_on(self, variables: Iterable[int]) -> None:
        """Returns some inputs as they are, and drops the nodes that are not needed then."""
        signature = self._function.signature
        for i in variables:
            name = signature.input_arg[i].name
            self._function.ret[signature.output_arg[i].name] = name
            self.returned[i] = Value(name)
        every = range(len(self.returned))
        needed = {value.node for value in self._before(every, lambda node, _: node.input)}
        self.nodes = {name: node for name, node in self.nodes.items() if name in needed}
        for place in reversed(range(len(self._function.node_def))):
            if self._function.node_def[place].name not in needed:
                del self._function.node_def[place]

    def _before(
        self, returned: Iterable[int], texts: Callable[[NodeDef, int], Iterable[str]]
    ) -> set[Value]:
        """What outputs and effects need, of nodes and inputs; `texts` gives it for an output."""
        todo = [self.returned[i] for i in returned]
        todo += [Value(name, _NO_OUTPUT) for name in sorted(self._must_run)]
        found: set[Value] = set()
        while todo:
            value = todo.pop()
            if value not in found and value.node in self.nodes:
                todo += map(_needed, texts(self.nodes[value.node], value.index))
            found.add(value)
        return found

    def _live(self, node: NodeDef, index: int) -> Iterator[str]:
        """The inputs that matter for an output."""
        loop = self._loops.of(node)
        live = loop.carried([] if index == _NO_OUTPUT else [index]) if loop else None
        for i, text in enumerate(node.input):
            if live is None or i in live or text[0] == "^":
                yield text


_NO_OUTPUT = -1
"""In the place of an output's number: that a node runs."""


def _needed(text: str) -> Value:
    return Value(text[1:], _NO_OUTPUT) if text[0] == "^" else parse_value(text)


def _has_effect(node: NodeDef) -> bool:
    definition = op_def_registry.get(node.op)
    return definition is None or bool(definition.is_stateful)
