"""Sizes without a bound that arguments decide: computed of the arguments at hand, before a step.

    a value of unknown size -> what decides it, up to the arguments -> a function of these that
    computes the size -> the most that it may be under a plan; each call is checked by the function

How many segments or words there are no rule bounds; but what decides it is often made of nothing
but arguments, in few small nodes, which are run by themselves. A call with more is planned anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.bridge.calls import is_traced
from tfmem.bridge.computing import RULES, Part, Wanted, computing, read_by_rule
from tfmem.bridge.ends import NO_LIMITS, Limits, is_number, is_open
from tfmem.bridge.graphdefs import FuncGraph, GraphDef, parse_value, value_of
from tfmem.bridge.inputs import UNSIZED, Input, placeholder_name
from tfmem.bridge.nodes import Reader
from tfmem.bridge.room import Before, filled
from tfmem.bridge.tensors import MAX_CONSTANT, whole_numbers
from tfmem.graph.bodies import LOOPS, Body
from tfmem.graph.ir import Value

_MOST_ROUNDS = 8
"""How often a graph is read again with what was computed: some sizes decide others."""

Read = tuple[FuncGraph, Reader, Body]
"""A function with its sizes, what has read it, and as it was read."""


@dataclass(frozen=True)
class Sizing:
    """What decides sizes, computed before a step, and the most that it may be.

    Attributes:
      most: of each, the numbers; they name what is wanted in the order of the function's outputs.
      known: of the shapes, what inference knows, with None for the rest.
      function: a ConcreteFunction that computes it of some arguments.
      places: of these among the flat arguments of a call.
      has_room: whether a call may have more than that which it was made for.
    """

    most: Mapping[Wanted, np.ndarray]
    known: Mapping[Wanted, tuple[int | None, ...]]
    function: Any
    places: tuple[int, ...]
    has_room: bool = False

    def holds_for(self, args: Sequence[Any]) -> bool:
        """Whether nothing is more for the flat arguments of a call; traced, it is not known.

        Raises:
          tf.errors.OpError: as the step would, of numbers that it cannot take.
        """
        if is_traced():
            return False
        pairs = zip(self.computed(args), self.most.values(), strict=True)
        return all(_is_within(now, most) for now, most in pairs)

    def computed(self, args: Sequence[Any]) -> list[np.ndarray]:
        """What it is for the flat arguments of a call."""
        return [np.asarray(one) for one in self.function(*(args[i] for i in self.places))]

    def limits(self, names: Mapping[Value, Value]) -> Limits:
        """The ends of the values.

        Args:
          names: of values in the graph with sizes, where these are others.
        """
        numbers, sizes = {}, {}
        for wanted, most in self.most.items():
            if wanted.is_shape:
                pairs = list(zip(most, self.known[wanted], strict=True))
                largest = tuple(int(now) if size is None else size for now, size in pairs)
                smallest = tuple(0 if size is None else size for _, size in pairs)
                sizes[wanted.value] = largest, smallest
            else:
                least = np.zeros_like(most) if not most.shape else most
                numbers[names.get(wanted.value, wanted.value)] = most, least
        return Limits(numbers, sizes)


def computed_first(
    read: Callable[[Limits], Read],
    graph_def: GraphDef,
    inputs: Sequence[Input],
    args: Sequence[Any] | None,
    before: Before,
) -> tuple[Read, Sizing | None]:
    """A function, read with what arguments decide where sizes are not known otherwise.

    Args:
      read: reads the function within limits.
      graph_def: its nodes.
      inputs: of it, arguments first.
      args: flat arguments of the call.
      before: what plans were made for before.
    """
    found, sizing = read(NO_LIMITS), None
    if not found[1].unknown or not args or is_traced():
        return found, None
    made = _Maker(graph_def, inputs, args)
    names = {Value(one.name): Value(placeholder_name(i)) for i, one in enumerate(inputs)}
    for _ in range(_MOST_ROUNDS):
        graph, reader, _ = found
        if not reader.unknown or not made.wants(graph, reader):
            break
        sizing = made.sizing(graph, before)
        found = read(sizing.limits(names))
    return found, sizing


class _Maker:
    def __init__(self, graph_def: GraphDef, inputs: Sequence[Input], args: Sequence[Any]) -> None:
        self._graph_def, self._args = graph_def, args
        self._nodes = {node.name: node for node in graph_def.node}
        self._inputs = {item.name: item for item in inputs}
        self._places = {item.name: i for i, item in enumerate(inputs[: len(args)])}
        self._by_placeholder = {placeholder_name(i): one.name for i, one in enumerate(inputs)}
        self._placeholders = {name: one for one, name in self._by_placeholder.items()}
        self._wanted: dict[Value, list[Wanted]] = {}  # by the value of unknown size
        self._tried: dict[Value, int] = {}
        self._plain: dict[str, bool] = {}

    def wants(self, graph: FuncGraph, reader: Reader) -> bool:
        """Whether there is something new that may decide some sizes which are not known.

        Others may follow from these.
        """
        is_new = False
        for value in (one for one, _ in reader.unknown if one.node in self._nodes):
            op = graph.get_operation_by_name(value.node)
            ways = [self._numbers, self._shapes]
            if op.type in RULES or not all(map(_is_small, op.inputs)):
                ways.reverse()
            for way in ways[self._tried.get(value, 0) :]:
                self._tried[value] = self._tried.get(value, 0) + 1
                if found := way(op, graph, reader):
                    self._wanted[value], is_new = found, True
                    break
        return is_new

    def _numbers(self, op: tf.Operation, graph: FuncGraph, reader: Reader) -> list[Wanted]:
        """The numbers that an op reads which are not known, if arguments decide all of them."""
        late = [t for t in op.inputs if is_number(t) and whole_numbers(reader.late(t)) is None]
        found = [Wanted(self._named(value_of(tensor)), is_shape=False) for tensor in late]
        return found if all(self._is_plain(one.value.node) for one in found) else []

    def _shapes(self, op: tf.Operation, graph: FuncGraph, reader: Reader) -> list[Wanted]:
        """The shapes of what an op gives, if it can be run without what arguments do not decide.

        What a loop gives tells nothing of the sizes within it, which may change with each turn, and
        what is made of a list nothing of what the list held before.
        """
        is_of_list = any(tensor.dtype in UNSIZED for tensor in op.inputs)
        if op.op_def.is_stateful or op.type in LOOPS or is_of_list:
            return []
        outputs = enumerate(op.outputs)
        found = [Wanted(Value(op.name, i), is_shape=True) for i, t in outputs if is_open(t)]
        are_plain = all(self._is_plain(v.node) for one in found for v in self._needed(one))
        if not are_plain or any(op.outputs[one.value.index].shape.rank is None for one in found):
            return []
        with contextlib.suppress(tf.errors.OpError):
            self._computed(found, graph)
            return found
        return []

    def _named(self, value: Value) -> Value:
        """A value of the graph with sizes, as the GraphDef names it."""
        return Value(self._by_placeholder.get(value.node, value.node), value.index)

    def _tensor(self, value: Value, graph: FuncGraph) -> tf.Tensor:
        """A value that the GraphDef names, in the graph with sizes."""
        name = self._placeholders.get(value.node, value.node)
        return graph.get_tensor_by_name(str(Value(name, value.index)))

    def _is_plain(self, name: str) -> bool:
        """Whether a node computes something of nothing but arguments, and has no effect."""
        if name not in self._plain:
            self._plain[name] = False
            if item := self._inputs.get(name):
                is_there = name in self._places or tf.is_tensor(item.external)
                self._plain[name] = is_there and item.dtype not in UNSIZED
            elif node := self._nodes.get(name):
                op_def = op_def_registry.get(node.op)
                sources = [parse_value(text).node for text in node.input if text[0] != "^"]
                is_free = op_def is not None and not op_def.is_stateful
                self._plain[name] = is_free and all(map(self._is_plain, sources))
        return self._plain[name]

    def _needed(self, wanted: Wanted) -> list[Value]:
        """The values that something wanted is computed of: itself, or what a rule reads."""
        node = self._nodes.get(wanted.value.node)
        if node is None or node.op not in RULES or self._is_plain(node.name):
            return [wanted.value]
        sources = [parse_value(text) for text in node.input if text[0] != "^"]
        return [sources[i] for i in read_by_rule(node.op, len(sources))]

    def sizing(self, graph: FuncGraph, before: Before) -> Sizing:
        """What is wanted, computed of the arguments, with room beyond it."""
        wanted = list(dict.fromkeys(one for way in self._wanted.values() for one in way))
        made = self._computed(wanted, graph)
        most = {
            one: numbers if one.is_shape else filled(numbers, self._tensor(one.value, graph).shape)
            for one, numbers in before.numbers_for(made.most).items()
        }
        has_room = not all(_is_within(most[one], numbers) for one, numbers in made.most.items())
        return replace(made, most=most, has_room=has_room)

    def _computed(self, wanted: Sequence[Wanted], graph: FuncGraph) -> Sizing:
        """Some of what is wanted, computed of the arguments."""
        shapes = (
            graph.get_tensor_by_name(str(w.value)).shape if w.is_shape else () for w in wanted
        )
        known = {w: tuple(shape) for w, shape in zip(wanted, shapes, strict=True)}
        needed = {one: self._needed(one) for one in wanted}
        names = self._ancestors({value.node for values in needed.values() for value in values})
        given = sorted(names & self._places.keys(), key=self._places.__getitem__)
        items = [self._inputs[name] for name in given]
        function = computing(
            self._nodes_of(names - self._inputs.keys()),
            [Part(w, needed[w], self._nodes.get(w.value.node), len(known[w])) for w in wanted],
            given,
            {n: self._inputs[n].external for n in names & self._inputs.keys() - set(given)},
        )
        specs = [tf.TensorSpec(item.shape, item.dtype) for item in items]
        places = tuple(self._places[name] for name in given)
        made = Sizing({}, known, _concrete(function, specs), places)
        return replace(made, most=dict(zip(wanted, made.computed(self._args), strict=True)))

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        """Nodes and inputs that some nodes, of which arguments decide all, follow from."""
        found, todo = set(names), list(names)
        while todo:
            node = self._nodes.get(todo.pop())
            sources = [parse_value(t).node for t in node.input if t[0] != "^"] if node else []
            todo += (name for name in sources if name not in found)
            found.update(sources)
        return found

    def _nodes_of(self, names: Iterable[str]) -> GraphDef:
        """Nodes as they are run by themselves."""
        result = type(self._graph_def)(library=self._graph_def.library)
        result.versions.CopyFrom(self._graph_def.versions)
        for name in names:
            node = result.node.add()
            node.CopyFrom(self._nodes[name])
            node.device = ""
            node.attr.pop("_class", None)
            node.input[:] = [text for text in node.input if text[0] != "^"]
        return result


def _concrete(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    return tf.function(function, input_signature=specs).get_concrete_function()


def _is_within(now: np.ndarray, most: np.ndarray) -> bool:
    """Whether there are no more numbers, and none is larger."""
    if any(a > b for a, b in zip(now.shape, most.shape, strict=True)):
        return False
    return bool(np.all(now <= most[tuple(map(slice, now.shape))]))


def _is_small(tensor: tf.Tensor) -> bool:
    count = tensor.shape.num_elements()
    return count is not None and count <= MAX_CONSTANT
