"""From NodeDefs to `Node`s with sizes, operations, scratch and shared buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tensorflow as tf

from tfmem.bridge import compiled, datasets, kernels, nesting, shapes
from tfmem.bridge.asked import Answer, Ask, may_be_asked, question
from tfmem.bridge.bounds import bounded
from tfmem.bridge.by_rows import by_rows
from tfmem.bridge.ends import NO_LIMITS, Limits
from tfmem.bridge.graphdefs import (
    BODIES,
    FuncGraph,
    FunctionDef,
    NodeDef,
    body_graph_def,
    functions_of,
    merged_device,
    parse_value,
    plain,
    runs_at_once,
    topological,
    value_of,
)
from tfmem.bridge.inference import import_sized
from tfmem.bridge.inputs import UNSIZED, Input, as_shape, is_variable, resizable
from tfmem.bridge.looped import unchanging
from tfmem.bridge.seen import NOTHING_SEEN, Path, Place, Seen, unchanged
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import argument, constant, full
from tfmem.bridge.workspace import WORKSPACE_OPS, of_kernel, workspace
from tfmem.costs.types import HANDLE_BYTES
from tfmem.graph import device_names
from tfmem.graph.bodies import BRANCHES, LOOPS, STACKING_OPS, Body
from tfmem.graph.ir import ARG, VARIABLE, Graph, Node, Value

_MOST_DIMENSIONS = 8  # of tensors that kernels take
_STRING_BYTES = 24  # of one element; the text itself, where longer, is not the allocator's


class Reader:
    """Reads nodes out of a graph with inferred shapes; collects what it meets on the way.

    Attributes:
      flops: operations of each node that has many.
      workspace: scratch of each node that takes some.
      numbers: as of `Body`.
      copied: as of `Captured`.
      bounds: as of `Captured`.
      rows: as of `Seen`.
      passed: as of `Seen`.
      unknown: values whose size cannot be known, with their op, first causes only.
    """

    def __init__(
        self,
        graph: FuncGraph,
        functions: Mapping[str, FunctionDef],
        known: Mapping[Value, Shape],
        ask: Ask | None,
        seen: Seen = NOTHING_SEEN,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._ask, self._seen = ask, seen
        self.flops: dict[str, float] = {}
        self.workspace: dict[str, int] = {}
        self.buffers: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[str, int] = {}
        self.copied: dict[tuple[Value, str], int] = {}
        self.rows: dict[Place, Shape] = {}
        self.passed: dict[tuple[Path, Value], Shape] = {}
        self.unknown: list[tuple[Value, str]] = []
        self._functions = functions
        self._ops = {op.name: op for op in graph.get_operations()}
        self._standing = bounded(graph, functions, seen, limits)
        self.late = self._standing.late  # of a tensor
        late = {value: tuple(tensor.shape) for value, tensor in self._standing.most.items()}
        self._known = {**late, **known}
        outputs = {v: self._ops[v.node].outputs[v.index] for v in late}
        self.bounds = {v: shape for v, shape in late.items() if full(outputs[v].shape) is None}
        self._unknown_nodes: set[str] = set()
        self._held = nesting.Known()
        self._made_on_host: dict[Value, int] = {}  # by kernels of a GPU, or its arguments: bytes
        self._inputs: list[str] = []  # those that the host has
        self._most: dict[Value, int] = {}  # bytes of values of unknown shape that have a bound

    def node(self, node_def: NodeDef) -> Node:
        """The node of a NodeDef."""
        op = self._ops[node_def.name]
        inputs, after = [], []
        for text in node_def.input:
            if text[0] == "^":
                after.append(text[1:])
            else:
                inputs.append(parse_value(text))
        sizes, answer = [], self._answer(node_def, op)
        for i, tensor in enumerate(op.outputs):
            value = Value(node_def.name, i)
            shape = self._known.get(value, as_shape(tensor.shape))
            sizes.append(self._nbytes(value, node_def.op, tensor.dtype, shape, inputs))
        if node_def.op in shapes.OPAQUE_OPS and answer is None:
            outputs, dtype = [full(t.shape) for t in op.outputs], op.outputs[0].dtype.name
            on_gpu = device_names.is_gpu(node_def.device)
            is_own = not on_gpu and not kernels.computes(dtype)
            for i in range(len(sizes)):
                found = shapes.opaque_nbytes(node_def.op, i, outputs, dtype, is_own=is_own)
                if found is not None:
                    sizes[i] = self._most[Value(node_def.name, i)] = found
        on_host: tuple[int, ...] = ()
        if device_names.is_gpu(node_def.device):
            there = kernels.host_inputs(node_def, "GPU")
            on_host = tuple(i for i in sorted(there) if op.inputs[i].dtype != tf.resource)
            sizes = self._on_gpu(node_def, op, sizes)
        if compiled.is_compiled(node_def):
            given = list(map(self.late, op.inputs))
            self.workspace[node_def.name] = compiled.scratch(node_def, given, self._functions)
        if (number := self._standing.number(op)) is not None:
            self.numbers[node_def.name] = number
        return Node(
            name=node_def.name,
            op=node_def.op,
            inputs=tuple(inputs),
            after=tuple(dict.fromkeys(after)),
            nbytes=tuple(sizes),
            device=node_def.device,
            rows=by_rows(node_def, self._functions),
            on_host=on_host,
            **self._study(node_def, op, answer),
        )

    def nodes(self, node_defs: Iterable[NodeDef]) -> tuple[Node, ...]:
        """The nodes of NodeDefs; what the host makes takes as much as its copies on the device."""
        made = tuple(map(self.node, node_defs))
        copied: dict[str, set[int]] = {}
        for node in made:
            if device_names.is_gpu(node.device) and node.op not in BODIES:
                for i, value in enumerate(node.inputs):
                    if i not in node.on_host and self._made_on_host.get(value):
                        copied.setdefault(value.node, set()).add(value.index)
                        self._copy(value, node.device)
        return tuple(
            self._with_copies(node, copied[node.name]) if node.name in copied else node
            for node in made
        )

    def _copy(self, value: Value, device: str) -> None:
        """Notes that a device reads a copy of a value, if that is an input that the host has."""
        if value.node in self._inputs:
            self.copied[value, device] = self._made_on_host[value]

    def _on_gpu(self, node_def: NodeDef, op: tf.Operation, sizes: Iterable[int]) -> list[int]:
        """Sizes of outputs as far as they lie on the device; notes those that the host makes."""
        made_there, result = kernels.host_outputs(node_def, "GPU"), []
        for i, (tensor, nbytes) in enumerate(zip(op.outputs, sizes, strict=True)):
            if i in made_there:
                self._made_on_host[Value(node_def.name, i)] = nbytes
            result.append(0 if i in made_there or tensor.dtype == tf.variant else nbytes)
        return result

    def _with_copies(self, node: Node, indices: Collection[int]) -> Node:
        nbytes = list(node.nbytes)
        for i in indices:
            nbytes[i] = self._made_on_host[Value(node.name, i)]
        return replace(node, nbytes=tuple(nbytes), from_host=tuple(sorted(indices)))

    def input_node(
        self,
        item: Input,
        dtype: tf.DType,
        shape: tuple[int | None, ...] | None,
        device: str,
    ) -> Node:
        """The node of an input that has this type and shape and lies on a device.

        It takes no bytes where it is a handle, and where the shape leaves its size open, which is
        noted.
        """
        op = VARIABLE if is_variable(item) else ARG
        nbytes = self._nbytes(Value(item.name), op, dtype, shape, ())
        if op == ARG and device_names.is_gpu(device) and kernels.keeps_arguments_on_host(dtype):
            self._made_on_host[Value(item.name)], nbytes = nbytes, 0
            self._inputs.append(item.name)
        return Node(item.name, op, nbytes=(nbytes,), device=device)

    def _nbytes(
        self,
        value: Value,
        op: str,
        dtype: tf.DType,
        shape: tuple[int | None, ...] | None,
        inputs: Iterable[Value],
    ) -> int:
        is_opaque = op in shapes.OPAQUE_OPS and value.index == 5
        if dtype in UNSIZED or is_opaque:
            return HANDLE_BYTES if dtype == tf.variant else 0
        if shape is None or None in shape:
            if op == "TensorListElementShape":
                self._most[value] = _MOST_DIMENSIONS * int(dtype.size)
            if value in self._most:
                return self._most[value]
            if dtype != tf.string:
                if not any(i.node in self._unknown_nodes for i in inputs):
                    self.unknown.append((value, op))
                self._unknown_nodes.add(value.node)
            return 0
        itemsize = _STRING_BYTES if dtype == tf.string else dtype.size
        return prod(n for n in shape if n is not None) * int(itemsize)

    def _answer(self, node_def: NodeDef, op: tf.Operation) -> Answer | None:
        """What a kernel that is asked held; shapes that only it knows are known then."""
        if self._ask is None or not may_be_asked(node_def):
            return None
        tensors = enumerate(map(self.late, op.inputs))
        constants = {i: c for i, tensor in tensors if (c := constant(tensor))}
        given, made = ([(t.dtype, self._shape(t)) for t in ts] for ts in (op.inputs, op.outputs))
        asked = question(node_def, given, constants, made)
        answer = self._ask(asked) if asked else None
        for i, shape in enumerate(answer.shapes if answer else ()):
            self._known[Value(node_def.name, i)] = shape
        return answer

    def _shape(self, tensor: tf.Tensor) -> Shape | None:
        found = full(self.late(tensor).shape)
        return self._known.get(value_of(tensor)) if found is None else found

    def _study(self, node_def: NodeDef, op: tf.Operation, answer: Answer | None) -> dict[str, Any]:
        """Notes the operations of a node; what its kernel does to buffers, as fields of `Node`."""
        has_flops = node_def.op in shapes.FLOP_OPS
        known = has_flops or node_def.op in shapes.SHARING_OPS or node_def.op in WORKSPACE_OPS
        if not known and answer is None:
            return {}
        tensors = list(map(self.late, op.inputs))
        constants = {} if has_flops else {i: c for i, t in enumerate(tensors) if (c := constant(t))}
        dtype = op.outputs[0].dtype
        first, *others, made = (
            value_of(t) in self._standing.most for t in (*op.inputs, op.outputs[0])
        )
        call = shapes.Call(
            node_def.op,
            [full(t.shape) for t in tensors],
            [full(self.late(t).shape) for t in op.outputs],
            _STRING_BYTES if dtype == tf.string else int(dtype.size),
            {key: plain(value) for key, value in node_def.attr.items()},
            constants,
            dtype.name,
            tuple("" if t.value_index else t.op.type for t in op.inputs),
            first == made and not any(others),
        )
        if count := shapes.flops(call):
            self.flops[node_def.name] = count
        on_gpu = device_names.is_gpu(node_def.device)
        if scratch := answer.scratch if answer else workspace(call, on_gpu):
            self.workspace[node_def.name] = sum(scratch)
            if len(scratch) > 1:
                self.buffers[node_def.name] = scratch
        return {"shares": shapes.shared_input(call), **of_kernel(call, on_gpu)}

    def body(
        self, given: Iterable[Node], nodes: Sequence[NodeDef], outputs: Iterable[Value]
    ) -> Body:
        """The function of its input nodes and its NodeDefs, these in a topological order."""
        graph = Graph((*given, *self.nodes(nodes)), tuple(outputs))
        return Body(
            graph=graph,
            flops=self.flops,
            workspace=self.workspace,
            buffers=self.buffers,
            bodies=self._all_bodies(nodes),
            numbers=self.numbers,
            returns=graph.outputs,
        )

    def _all_bodies(self, nodes: Iterable[NodeDef]) -> dict[str, tuple[Body, ...]]:
        """The functions that nodes run, by the node's name.

        Args:
          nodes: of the graph, in a topological order.
        """
        found, by_name = {}, {}
        for node_def in nodes:
            by_name[node_def.name] = node_def
            if node_def.op in BODIES and not compiled.is_compiled(node_def):
                found[node_def.name] = self._bodies(node_def)
                continue
            if node_def.op in datasets.PULLING:
                self.workspace[node_def.name] = datasets.most_pulled(
                    node_def, by_name, self._ops, self._functions, lambda *one: self._body(*one)[0]
                )
            op, values = self._ops[node_def.name], self._values(node_def)
            for value, element in nesting.taken(node_def, self._held):
                self._held.add(value, element.held)
            held = nesting.made(
                op, self._held, values, self._known, self._most, self._standing.span
            )
            self._held.add(Value(op.name), held or nesting.passed_on(node_def, self._held))
            if op.type in STACKING_OPS and full(op.outputs[0].shape) is None:
                row = next((one.shape for one in self._held.get(values[0]) or ()), None)
                if row is not None:
                    self.rows[self._seen.path, op.name] = row
        return found

    def _values(self, node_def: NodeDef) -> list[Value]:
        return [parse_value(text) for text in node_def.input if text[0] != "^"]

    def _bodies(self, node_def: NodeDef) -> tuple[Body, ...]:
        """The functions that a While, If, Case or call runs."""
        first = int(node_def.op in BRANCHES)
        arguments = list(map(self.late, self._ops[node_def.name].inputs))[first:]
        values, same = self._values(node_def)[first:], unchanging(node_def, self._functions)
        given = list(map(value_of, self._ops[node_def.name].inputs))[first:]
        late = {i for i, value in enumerate(given) if value in self._standing.most}
        limits = self._standing.given(given, same)
        result: list[Body] = []
        for function in functions_of(node_def):
            if function in self._functions:
                definition = self._functions[function]
                names = [arg.name for arg in definition.signature.input_arg]
                inputs = [
                    argument(name, tensor, is_same=i in same and i not in late)
                    for i, (name, tensor) in enumerate(zip(names, arguments, strict=True))
                ]
                held = [self._held.get(one, len(result)) for one in values]
                body, reader = self._body(definition, inputs, node_def, len(result), held, limits)
                if node_def.op in LOOPS and result:
                    op, path = self._ops[node_def.name], self._seen.path
                    for value, shape in unchanged(op, inputs, body.returns, reader._shape_of):
                        self.passed[path, value] = shape
                for index, value in enumerate(body.returns):
                    one = reader._held.get(value)
                    self._held.add(Value(node_def.name, index), one, len(result))
                for argument_of, place in reader.copied:
                    self._copy(values[names.index(argument_of.node)], place)
                result.append(body)
        return tuple(result)

    def _shape_of(self, value: Value) -> Shape | None:
        tensor = self._ops[value.node].outputs[value.index]
        return self._known.get(value, full(tensor.shape))

    def _body(
        self,
        function: FunctionDef,
        inputs: Sequence[Input],
        caller: NodeDef,
        number: int,
        held: Sequence[nesting.Held | None] = (),
        limits: Limits = NO_LIMITS,
    ) -> tuple[Body, Reader]:
        """One of a node's functions, for inputs that hold something, and what has read it.

        Where not all that depends on the sizes of inputs is bounded, they have their largest.
        """
        body, reader = self._read(function, inputs, caller, number, held, limits)
        if reader.unknown and limits.sizes:
            limits = replace(limits, sizes={})
            body, reader = self._read(function, inputs, caller, number, held, limits)
        self.rows |= reader.rows
        self.passed |= reader.passed
        name = caller.name
        self.unknown += [(Value(f"{name}/{v.node}", v.index), op) for v, op in reader.unknown]
        self.flops[name] = self.flops.get(name, 0.0) + sum(reader.flops.values())
        return body, reader

    def _read(
        self,
        function: FunctionDef,
        inputs: Sequence[Input],
        caller: NodeDef,
        number: int,
        held: Sequence[nesting.Held | None],
        limits: Limits,
    ) -> tuple[Body, Reader]:
        graph_def, outputs = body_graph_def(function)
        known = nesting.Known()
        for given, one in zip(inputs, held or [None] * len(inputs), strict=True):
            known.add(Value(given.name), one)
        places = {n.name: merged_device(n.device, caller.device) for n in graph_def.node}
        nodes = topological(graph_def.node)
        taken = nesting.popped(nodes, known)
        seen = self._seen.within(caller.name, caller.op, number)
        graph, fixed = import_sized(
            graph_def, limits.opened(inputs), self._functions, {}, taken=taken, seen=seen
        )
        for node in graph_def.node:
            node.device = places[node.name]
        spans = {v: one.span for v, one in taken.items() if one.span is not None}
        limits = replace(limits, numbers={**limits.numbers, **spans})
        reader = Reader(graph, self._functions, fixed, self._ask, seen, limits)
        reader._held = known
        reader._most |= {v: one.nbytes for v, one in taken.items() if one.nbytes is not None}
        arg_nodes = (reader.input_node(i, i.dtype, i.shape, caller.device) for i in inputs)
        body = reader.body(arg_nodes, nodes, map(parse_value, outputs))
        name, turns = function.signature.name, runs_at_once(caller)
        return replace(body, function=name, resizable=resizable(inputs), turns=turns), reader
