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

from tfmem.bridge.ends import NO_LIMITS, Limits, is_number, is_open
from tfmem.bridge.graphdefs import FuncGraph, GraphDef, parse_value, value_of
from tfmem.bridge.inputs import UNSIZED, Input, placeholder_name
from tfmem.bridge.nodes import Reader
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import MAX_CONSTANT, full, whole_numbers
from tfmem.graph.bodies import LOOPS, Body
from tfmem.graph.ir import Value

_GROWTH = 1.25
"""How much more than its call needs a plan is made for that takes the place of one which was too
small. More leaves memory unused, less plans more often where sizes rise."""

_MOST_ROUNDS = 8
"""How often a graph is read again with what was computed: some sizes decide others."""

Read = tuple[FuncGraph, Reader, Body]
"""A function with its sizes, what has read it, and as it was read."""


@dataclass(frozen=True)
class Wanted:
    """What decides a size.

    Attributes:
      value: of the graph, as its GraphDef names it.
      is_shape: whether it is the value's shape, as numbers; else the numbers that are the value.
    """

    value: Value
    is_shape: bool


@dataclass(frozen=True)
class Sizing:
    """What decides sizes, computed before a step, and the most that it may be.

    Attributes:
      most: of each, the numbers; they name what is wanted in the order of the function's outputs.
      known: of the shapes, what inference knows, with None for the rest.
      function: a tf.function that computes it of some arguments.
      places: of these among the flat arguments of a call.
    """

    most: Mapping[Wanted, np.ndarray]
    known: Mapping[Wanted, tuple[int | None, ...]]
    function: Any
    places: tuple[int, ...]

    def holds_for(self, args: Sequence[Any]) -> bool:
        """Whether nothing is more for the flat arguments of a call."""
        with contextlib.suppress(tf.errors.OpError):  # which the step will raise
            pairs = zip(self.computed(args), self.most.values(), strict=True)
            return all(bool(np.all(now <= most)) for now, most in pairs)
        return True

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
    before: Sizing | None = None,
) -> tuple[Read, Sizing | None]:
    """A function, read with what arguments decide where sizes are not known otherwise.

    Args:
      read: reads the function within limits.
      graph_def: its nodes.
      inputs: of it, arguments first.
      args: flat arguments of the call.
      before: what a plan was made for that is too small.
    """
    found, sizing = read(NO_LIMITS), None
    made = _Maker(graph_def, inputs, args or ())
    names = {Value(one.name): Value(placeholder_name(i)) for i, one in enumerate(inputs)}
    for _ in range(_MOST_ROUNDS if args else 0):
        graph, reader, _ = found
        if not reader.unknown or not made.wants(graph, reader):
            break
        sizing = made.sizing(graph, reader, before)
        found = read(sizing.limits(names))
    return found, sizing


class _Maker:
    def __init__(self, graph_def: GraphDef, inputs: Sequence[Input], args: Sequence[Any]) -> None:
        self._graph_def, self._args = graph_def, args
        self._nodes = {node.name: node for node in graph_def.node}
        self._inputs = {item.name: item for item in inputs}
        self._places = {item.name: i for i, item in enumerate(inputs[: len(args)])}
        self._by_placeholder = {placeholder_name(i): one.name for i, one in enumerate(inputs)}
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
            if not all(map(_is_small, op.inputs)):
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

        What a loop gives tells nothing of the sizes within it, which may change with each turn.
        """
        if op.op_def.is_stateful or op.type in LOOPS:
            return []
        for tensor in op.inputs:
            is_plain = self._is_plain(self._named(value_of(tensor)).node)
            may_be_zero = tensor.dtype.is_floating and full(reader.late(tensor).shape) is not None
            if not is_plain and not may_be_zero:
                return []
        outputs = enumerate(op.outputs)
        found = [Wanted(Value(op.name, i), is_shape=True) for i, t in outputs if is_open(t)]
        with contextlib.suppress(ValueError, tf.errors.OpError):  # of rows of nothing, perhaps
            self._computed(found, graph, reader)
            return found
        return []

    def _named(self, value: Value) -> Value:
        """A value of the graph with sizes, as the GraphDef names it."""
        return Value(self._by_placeholder.get(value.node, value.node), value.index)

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

    def sizing(self, graph: FuncGraph, reader: Reader, before: Sizing | None) -> Sizing:
        """What is wanted, computed of the arguments."""
        wanted = list(dict.fromkeys(one for way in self._wanted.values() for one in way))
        made = self._computed(wanted, graph, reader)
        return replace(made, most=_grown(made.most, before.most)) if before else made

    def _computed(self, wanted: Sequence[Wanted], graph: FuncGraph, reader: Reader) -> Sizing:
        """Some of what is wanted, computed of the arguments."""
        known = {
            one: tuple(graph.get_tensor_by_name(str(one.value)).shape)
            for one in wanted
            if one.is_shape
        }
        names = self._ancestors([one.value.node for one in wanted])
        given = sorted(names & self._places.keys(), key=self._places.__getitem__)
        fixed = {n: self._inputs[n].external for n in names & self._inputs.keys() - set(given)}
        nodes, zeros = self._nodes_of(names - self._inputs.keys(), graph, reader, known)
        function = _computing(nodes, wanted, given, fixed, zeros)
        items = [self._inputs[name] for name in given]
        specs = [tf.TensorSpec(item.shape, item.dtype) for item in items]
        places = tuple(self._places[name] for name in given)
        made = Sizing({}, known, tf.function(function, input_signature=specs), places)
        return replace(made, most=dict(zip(wanted, made.computed(self._args), strict=True)))

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        """Nodes and inputs that some nodes follow from, as far as arguments decide them."""
        found, todo = set(names), list(names)
        while todo:
            node = self._nodes.get(todo.pop())
            for text in node.input if node else ():
                name = parse_value(text).node if text[0] != "^" else ""
                if name and name not in found and self._is_plain(name):
                    found.add(name)
                    todo.append(name)
        return found

    def _nodes_of(
        self, names: Iterable[str], graph: FuncGraph, reader: Reader, shapes: Iterable[Wanted]
    ) -> tuple[GraphDef, dict[str, tuple[Shape, tf.DType]]]:
        """Nodes as they are run by themselves, and shapes and types of zeros that they read.

        Where arguments do not decide what a node reads whose shape is wanted, it reads as many rows
        of nothing.
        """
        result, zeros = type(self._graph_def)(library=self._graph_def.library), {}
        result.versions.CopyFrom(self._graph_def.versions)
        roots = {one.value.node for one in shapes}
        for name in names:
            node = result.node.add()
            node.CopyFrom(self._nodes[name])
            node.device = ""
            node.attr.pop("_class", None)
            node.input[:] = [text for text in node.input if text[0] != "^"]
            for i, text in enumerate(node.input if name in roots else ()):
                if not self._is_plain(parse_value(text).node):
                    tensor = reader.late(graph.get_operation_by_name(name).inputs[i])
                    node.input[i] = stand_in = f"tfmem_zeros/{name}/{i}"
                    zeros[stand_in] = _rows_of_nothing(tensor), tensor.dtype
        return result, zeros


def _grown(
    now: Mapping[Wanted, np.ndarray], before: Mapping[Wanted, np.ndarray]
) -> dict[Wanted, np.ndarray]:
    """The most that a plan is made for in the place of another: more where there is more now."""
    found = {}
    for one, sizes in now.items():
        known = before.get(one, sizes)
        larger = np.ceil(sizes * _GROWTH).astype(sizes.dtype)
        found[one] = np.where(sizes > known, larger, known)
    return found


def _rows_of_nothing(tensor: tf.Tensor) -> Shape:
    return tuple(size if i == 0 else 0 for i, size in enumerate(tensor.shape))


def _computing(
    nodes: GraphDef,
    wanted: Sequence[Wanted],
    given: Sequence[str],
    fixed: Mapping[str, tf.Tensor],
    zeros: Mapping[str, tuple[Shape, tf.DType]],
) -> Callable[..., list[tf.Tensor]]:
    """A function that computes what is wanted on the CPU.

    Args:
      nodes: that it runs.
      wanted: what it returns.
      given: names of what it is given.
      fixed: tensors, by name.
      zeros: tensors of zeros, by name.
    """

    def compute(*args: tf.Tensor) -> list[tf.Tensor]:
        with tf.device("CPU:0"):
            named = {**fixed, **dict(zip(given, args, strict=True))}
            named |= {name: tf.zeros(*one) for name, one in zeros.items()}
            tensors = {f"{name}:0": tensor for name, tensor in named.items()}
            made = [str(one.value) for one in wanted if str(one.value) not in tensors]
            found = tf.graph_util.import_graph_def(nodes, tensors, made, name="computed")
            tensors |= dict(zip(made, found, strict=True))
            outputs = [tensors[str(one.value)] for one in wanted]
            pairs = zip(wanted, outputs, strict=True)
            return [tf.shape(t, tf.int64) if w.is_shape else tf.identity(t) for w, t in pairs]

    as_it_is: Callable[..., list[tf.Tensor]] = tf.autograph.experimental.do_not_convert(compute)
    return as_it_is


def _is_small(tensor: tf.Tensor) -> bool:
    count = tensor.shape.num_elements()
    return count is not None and count <= MAX_CONSTANT
