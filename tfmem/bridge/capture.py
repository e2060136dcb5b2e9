"""From a ConcreteFunction to a `Graph`: optimised by Grappler, placed, with exact sizes.

    ConcreteFunction -> GraphDef -> Grappler -> long sums in parts -> devices -> shapes -> Graph

Grappler runs here, ahead of time, because `rebuild` switches it off: it would delete the copies and
the control edges that tfmem inserts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import tensorflow as tf

from tfmem.bridge import by_rows, graphdefs, lines
from tfmem.bridge.asked import Ask
from tfmem.bridge.ends import Limits
from tfmem.bridge.graphdefs import FunctionDef, GraphDef, NodeDef
from tfmem.bridge.inference import import_sized
from tfmem.bridge.inputs import (
    Input,
    OpenShape,
    Passed,
    as_shape,
    dtypes_of,
    inputs_of,
    is_variable,
    place_of,
    tensor_of,
    with_shape,
)
from tfmem.bridge.nodes import Reader
from tfmem.bridge.refusals import (
    plain_name,
    refuse_compiled,
    refuse_pulled,
    refuse_unknown,
)
from tfmem.bridge.rewriting import nodes_of
from tfmem.bridge.room import NO_ROOM, Before, are_equal, are_within, have_sizes
from tfmem.bridge.seen import Place, Seen, may_grow
from tfmem.bridge.sizing import Read, Sizing, computed_first
from tfmem.graph.bodies import LOOPS, Bodies, Body
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.ops import facts_of
from tfmem.runtime import devices

_MAX_SOURCES = 500
_MOST_READ = 8

_SUMMED = {t.as_datatype_enum for t in (tf.float16, tf.bfloat16, tf.float32, tf.float64)}


Count = Callable[[Body], Mapping[Place, int]]
"""Finds the `counts` of `Seen` in a function and in those that it runs."""


@dataclass(frozen=True)
class Signature:
    """What callers see of the function, kept to be given to the rebuilt one."""

    name: str
    function_type: Any
    structured_inputs: Any
    arg_keywords: Sequence[str] | None
    num_positional: int | None
    attrs: Mapping[str, Any]
    deferred: Mapping[Any, tuple[Any, Any]]


@dataclass(frozen=True)
class Captured:
    """A function as tfmem plans it, with what `rebuild` needs to make it callable again.

    The original ConcreteFunction is not kept: its captures would hold the memory of a variable that
    has since moved to another device.

    Attributes:
      graph: the nodes in program order; inputs first, as nodes of op `ARG` or `VARIABLE`.
      bodies: the function bodies of each While, If, Case and remaining call node.
      flops: floating-point operations of the nodes that have many (matmul, conv, einsum).
      variables: each VARIABLE node's variable, if it is a captured one.
      inputs: the function's inputs.
      control_outputs: nodes that must run although nothing reads them.
      node_defs: TensorFlow's NodeDef of each node that is no input, without its inputs.
      dtypes: of each node's outputs.
      library: the functions that nodes refer to, by name.
      signature: what callers see.
      sources: the line of user code that made a node, for the nodes with the largest outputs.
      bounds: values whose size depends on data (`tf.unique`, `tf.where`, branches, what follows
        from them) with the largest shape they can take, which is what is counted.
      handles: each captured variable's handle when it was captured.
      has_sizes: whether all arguments have one.
      shapes: of the arguments, which the sizes hold for.
      has_room: whether these, or what follows from arguments, may be more than in the call that it
        was captured for.
      workspace: bytes that kernels hold only while they run.
      buffers: the same of kernels that hold several buffers, as in `Costs`.
      numbers: as of `Body`.
      copied: of each argument that a GPU's host has and its kernels read a copy of, GPU and bytes.
      passed: the large arguments of the call that it was captured for.
      sizing: what sizes follow from that arguments decide; None if there are none.
    """

    graph: Graph
    bodies: Bodies
    flops: Mapping[str, float]
    variables: Mapping[str, tf.Variable]
    inputs: tuple[Input, ...] = ()
    control_outputs: tuple[str, ...] = ()
    node_defs: Mapping[str, NodeDef] = field(default_factory=dict)
    dtypes: Mapping[str, tuple[tf.DType, ...]] = field(default_factory=dict)
    library: Mapping[str, FunctionDef] = field(default_factory=dict)
    signature: Signature | None = None
    workspace: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[Value, tuple[int, ...]] = field(default_factory=dict)
    handles: Mapping[str, weakref.ref[Any]] = field(default_factory=dict)
    has_sizes: bool = False
    shapes: tuple[OpenShape | None, ...] = ()
    has_room: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)
    copied: tuple[tuple[str, int], ...] = ()
    passed: tuple[Passed, ...] = ()
    sizing: Sizing | None = None

    def holds_for(self, concrete: Any, args: Sequence[tf.Tensor]) -> bool:
        """Whether this is good for a call, flattened, of a ConcreteFunction.

        It is for what was traced for the same, if no dimension of an argument is larger: where
        variables have moved, what was traced before is traced anew.
        """
        if not (self.is_of(concrete) and have_sizes(args)):
            return False
        if not are_within((one.shape for one in args), self.shapes):
            return False
        return self.sizing is None or self.sizing.holds_for(args)

    @cached_property
    def has_loops(self) -> bool:
        """Whether some of its nodes are loops."""
        return any(node.op in LOOPS for node in self.graph.nodes)

    def is_of(self, concrete: Any) -> bool:
        """Whether it was captured, with sizes, for a trace like that of a ConcreteFunction."""
        if self.signature is None or not self.has_sizes:
            return False
        parameters = self.signature.function_type.parameters
        return bool(concrete.function_type.parameters == parameters)

    def has_moved(self) -> bool:
        """Whether a captured variable has another handle now: it lives elsewhere."""
        return any(
            self.handles[name]() is not variable.handle for name, variable in self.variables.items()
        )

    def source(self, node: str) -> str:
        """Which variable a node is, or the line of user code that made it, as ``file:line``.

        Lines are known of large nodes only; "" where nothing is known.
        """
        return self.known_sources.get(node, "")

    @cached_property
    def known_sources(self) -> dict[str, str]:
        """The same of all nodes of which it is known."""
        named = {name: f"variable {one.name}" for name, one in self.variables.items()}
        return {**self.sources, **named}


def capture(
    concrete: Any,
    *,
    device: str,
    args: Sequence[tf.Tensor] | None = None,
    known: Mapping[Value, tuple[int, ...]] | None = None,
    ask: Ask | None = None,
    count: Count | None = None,
    before: Before = NO_ROOM,
    unrolls: bool = False,
) -> Captured:
    """Captures a ConcreteFunction for planning.

    Args:
      concrete: the function.
      device: where nodes run that the user put nowhere; ``CPU:0`` or a full name.
      args: actual arguments, flattened as the function takes them: their shapes stand in where the
        trace left a dimension open. Sizes hold for these; the graph stays good for all.
      known: shapes of values that cannot be inferred (what an iterator yields, for example).
      ask: asks kernels of a GPU whose memory a library decides; without it rules have to do.
      count: counts the elements of lists that grow; without it what is made of these is unknown.
      before: what plans of the same trace were made for; without it sizes are those of `args`.
      unrolls: whether loops become graphs, if all can.

    Raises:
      UnsupportedFunctionError: XLA compiles the function or a part of it, or a size is not known.
      tfmem.Error: there is no such device.
    """
    refuse_compiled(concrete)
    device, inputs = devices.full_name(device), inputs_of(concrete)
    actual = dict(zip((i.name for i in inputs), args or (), strict=False))
    shapes = tuple(before.shapes_for(args or ()))
    with_sizes = [*map(with_shape, inputs, shapes), *inputs[len(shapes) :]]
    places = {i.name: place_of(i, actual.get(i.name), device) for i in inputs}
    to_unroll = (with_sizes, known or {}) if unrolls else None
    graph_def, nodes, gone = nodes_of(concrete, inputs, places, device, to_unroll)
    library = {one.signature.name: one for one in graph_def.library.function}
    own = [node for node in nodes if node.name not in places]
    outputs = tuple(graphdefs.parse_value(t.name) for t in concrete.outputs)

    def read(limits: Limits, seen: Seen) -> Read:
        told = with_sizes, library, known or {}, concrete.graph
        sized, fixed = import_sized(graph_def, *told, seen=seen)
        reader = Reader(sized, library, fixed, ask, seen, limits)
        given = [_input_node(i, actual.get(i.name), places[i.name], reader) for i in with_sizes]
        return sized, reader, reader.body(given, own, outputs)

    fully_read = partial(_with_seen, read, count, graph_def)
    found, sizing = computed_first(fully_read, graph_def, inputs, args, before)
    must_run = {op.name for op in concrete.graph.control_outputs} - gone
    return replace(
        _as_read(found, concrete, inputs, device),
        control_outputs=tuple(sorted(_with_effects(found[2].graph, must_run))),
        node_defs={node.name: graphdefs.bare(node) for node in own},
        library=library,
        has_sizes=have_sizes(args or ()),
        shapes=shapes,
        has_room=not are_equal(args or (), shapes) or bool(sizing and sizing.has_room),
        sizing=sizing,
    )


def _as_read(found: Read, concrete: Any, inputs: Sequence[Input], device: str) -> Captured:
    """What is known of a function when it has been read.

    Raises:
      UnsupportedFunctionError: a size is not known.
    """
    sized, reader, body = found
    refuse_unknown(reader.unknown, concrete)
    refuse_pulled(body.graph, reader.workspace, device)
    variables = {i.name: i.variable for i in inputs if i.variable is not None}
    return Captured(
        graph=body.graph,
        bodies=by_rows.told(body.graph, body.bodies),
        flops=reader.flops,
        workspace=reader.workspace,
        buffers=reader.buffers,
        variables=variables,
        inputs=tuple(inputs),
        dtypes=dtypes_of(sized, inputs),
        signature=_signature_of(concrete),
        sources=_sources(body.graph, concrete),
        bounds=reader.bounds,
        handles={name: weakref.ref(one.handle) for name, one in variables.items()},
        numbers=reader.numbers,
        copied=tuple((place, nbytes) for (_, place), nbytes in reader.copied.items()),
    )


def _with_seen(
    read: Callable[[Limits, Seen], Read], count: Count | None, graph_def: GraphDef, limits: Limits
) -> Read:
    """A function, read again as long as a reading tells more of its lists and loops.

    What follows from one list may decide what another is like; where that has no end, nothing is
    known of any.
    """
    seen = Seen(may_grow(graph_def))
    first = found = read(limits, seen)
    for _ in range(_MOST_READ):
        _, reader, body = found
        counts = count(body) if count is not None and seen.grows else {}
        more = replace(seen, counts=counts, rows=reader.rows, passed=reader.passed)
        if more == seen:
            return found
        seen = more
        found = read(limits, seen)
    return first


def _with_effects(graph: Graph, names: Iterable[str]) -> set[str]:
    """Nodes that must run: for one without an effect those with one that it waits for."""
    found, todo, seen = set(), list(names), set(names)
    while todo:
        node = graph.by_name[todo.pop()]
        if node.is_input:
            continue
        if facts_of(node.op).is_stateful:
            found.add(node.name)
            continue
        todo += (name for name in node.predecessors if name not in seen)
        seen.update(node.predecessors)
    return found


# Nodes of inputs, and what callers see.


def _input_node(item: Input, actual: Any, place: str, reader: Reader) -> Node:
    if not is_variable(item):
        return reader.input_node(item, item.dtype, item.shape, place)
    tensor, held = tensor_of(item, actual), item.handle.shape_and_type[0]
    dtype, shape = tf.as_dtype(held.dtype), as_shape(tf.TensorShape(held.shape))
    if (shape is None or None in shape) and hasattr(tensor, "numpy"):
        shape = tuple(int(n) for n in tf.raw_ops.VariableShape(input=tensor))
    return reader.input_node(item, dtype, shape, place)


def _signature_of(concrete: Any) -> Signature:
    graph = concrete.graph
    by_ref = graph._function_captures
    return Signature(
        name=plain_name(concrete.name),
        function_type=concrete.function_type,
        structured_inputs=graph.structured_input_signature,
        arg_keywords=concrete._arg_keywords,
        num_positional=concrete._num_positional_args,
        attrs={k: v for k, v in concrete._attrs.items() if k != "_construction_context"},
        deferred={
            key: (closure, by_ref._by_ref_tracetype[key])
            for key, closure in by_ref.by_ref_external.items()
        },
    )


def _sources(graph: Graph, concrete: Any) -> dict[str, str]:
    """Lines of user code of the largest nodes; to look up one takes 50 microseconds."""
    largest = sorted(graph.nodes, key=lambda n: max(n.nbytes, default=0), reverse=True)
    return lines.lines_of((node.name for node in largest), concrete.graph, _MAX_SOURCES)
