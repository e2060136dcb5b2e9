"""Shape inference: from GraphDefs to `Node`s with sizes, operations and shared buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with 2.21.
from tensorflow.python.framework import func_graph as func_graph_lib
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import handle_data_util

from tfmem.bridge import kernels, shapes
from tfmem.bridge.graphdefs import (
    FunctionDef,
    GraphDef,
    NodeDef,
    body_graph_def,
    parse_value,
    topological,
)
from tfmem.bridge.shapes import Shape
from tfmem.bridge.workspace import WORKSPACE_OPS, workspace
from tfmem.graph import device_names
from tfmem.graph.bodies import Body
from tfmem.graph.ir import ARG, VARIABLE, Graph, Node, Value

FuncGraph = Any

BODIES = {
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}
"""Ops that run function bodies, and the attributes that name these."""

_FIRST_ARGUMENT = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
_STRING_BYTES = 24  # of one element; the text itself, where longer, is not the allocator's
_MAX_CONSTANT = 64  # elements of a constant that `shapes` may want to see
_UNSIZED = (tf.resource, tf.variant)


@dataclass(frozen=True)
class Input:
    """One input of the function, in the order in which the runtime passes them.

    Attributes:
      name: of its node.
      dtype: of the tensor or handle.
      handle: what a handle or variant refers to (TensorFlow's HandleData); None for a tensor.
      shape: as traced, with None where the trace left it open; None if even the rank is open.
      variable: the captured variable; its handle is looked up when the function is rebuilt.
      external: the captured tensor, or the closure that yields it, if it is no variable.
    """

    name: str
    dtype: tf.DType
    handle: Any
    shape: tuple[int | None, ...] | None
    variable: tf.Variable | None = None
    external: Any = None


def is_variable(item: Input) -> bool:
    """Whether an input is the handle of a variable."""
    return item.dtype == tf.resource and bool(item.handle and item.handle.is_set)


def as_shape(shape: tf.TensorShape | None) -> tuple[int | None, ...] | None:
    """A shape as a tuple, with None for an open dimension; None for an open rank."""
    return None if shape is None or shape.rank is None else tuple(shape)


def import_graph(graph: FuncGraph, graph_def: GraphDef, inputs: Sequence[Input]) -> list[tf.Tensor]:
    """Adds nodes to `graph`, in which `inputs` become placeholders, which are returned.

    The placeholders come first, since shape inference wants to know what their handles refer to.
    """
    with graph.as_default():
        placeholders = [_placeholder(i, item) for i, item in enumerate(inputs)]
        mapped = {f"{i.name}:0": t for i, t in zip(inputs, placeholders, strict=True)}
        mapped |= {f"^{i.name}": t for i, t in zip(inputs, placeholders, strict=True)}
        used = {_key(text) for node in graph_def.node for text in node.input}
        tf.graph_util.import_graph_def(
            graph_def, input_map={k: t for k, t in mapped.items() if k in used}, name=""
        )
    return placeholders


def _key(text: str) -> str:
    return text if ":" in text or text.startswith("^") else f"{text}:0"


def _placeholder(index: int, item: Input) -> tf.Tensor:
    # Not under its own name: the import would rename node "a" where "a/b" is there already.
    tensor = tf.compat.v1.placeholder(item.dtype, item.shape, f"tfmem_input_{index}")
    if item.handle is not None:
        handle_data_util.set_handle_data(tensor, item.handle)
    return tensor


def import_sized(
    graph_def: GraphDef,
    inputs: Iterable[Input],
    actual: Mapping[str, tf.Tensor],
    known: Mapping[Value, Shape],
    traced: FuncGraph | None = None,
) -> tuple[FuncGraph, dict[Value, Shape]]:
    """The graph with inferred shapes, where open dimensions take their actual sizes.

    A value that is `known`, or bounded although it depends on data, or whose shape TensorFlow's
    Python code told the trace, is fed to its readers as if it were an input of that shape. Axes
    that follow from shapes are constants to their readers. All such shapes are returned with the
    graph.
    """
    sized = [_with_actual_shape(item, actual.get(item.name)) for item in inputs]
    names = {item.name for item in sized}
    nodes = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
    nodes.node.extend(n for n in graph_def.node if n.name not in names)
    for node in nodes.node:
        node.device = ""  # the import spends half its time on devices
    _bypass_loops(nodes)
    graph = func_graph_lib.FuncGraph("tfmem_sizes")
    import_graph(graph, nodes, sized)
    fixed: dict[Value, Shape] = {}
    axes = _axes(graph)
    wanted = {**_bounds(graph), **_told(graph, traced), **known, **_shapes_of(axes)}
    while wanted.keys() - fixed.keys():
        fixed = wanted
        extra = [
            Input(_fixed_name(v), graph.get_tensor_by_name(str(v)).dtype, None, shape)
            for v, shape in fixed.items()
            if v not in axes
        ]
        graph = func_graph_lib.FuncGraph("tfmem_sizes")
        import_graph(graph, _reading_inputs(nodes, fixed, axes), [*sized, *extra])
        axes |= _axes(graph)
        wanted = {**_bounds(graph), **_shapes_of(axes), **fixed}
    return graph, fixed


def _axes(graph: FuncGraph) -> dict[Value, tuple[int, ...]]:
    """Axes over which gradients of broadcasts are summed, where both shapes are known."""
    result = {}
    for op in graph.get_operations():
        if op.type != "BroadcastGradientArgs":
            continue
        before, other = (_constant(t) for t in op.inputs)
        if before is not None and other is not None:
            for i, found in enumerate(shapes.broadcast_axes(before, other)):
                result[Value(op.name, i)] = found
    return result


def _shapes_of(constants: Mapping[Value, tuple[int, ...]]) -> dict[Value, Shape]:
    return {value: (len(found),) for value, found in constants.items()}


def _bounds(graph: FuncGraph) -> dict[Value, Shape]:
    """Largest shapes of values of open shape that `shapes` can tell."""
    result = {}
    for op in graph.get_operations():
        if op.type not in shapes.BOUNDED_OPS:
            continue
        inputs = [_full(t.shape) for t in op.inputs]
        for i, tensor in enumerate(op.outputs):
            bound = shapes.most_elements(op.type, inputs, i)
            if bound is not None and not tensor.shape.is_fully_defined():
                result[Value(op.name, i)] = bound
    return result


def _told(graph: FuncGraph, traced: FuncGraph | None) -> dict[Value, Shape]:
    """Shapes that are open in `graph` and were not while the function was traced (`set_shape`)."""
    if traced is None:
        return {}
    result = {}
    before = {op.name: op for op in traced.get_operations()}
    for op in graph.get_operations():
        outputs = [] if op.name not in before else before[op.name].outputs
        for i, (tensor, then) in enumerate(zip(op.outputs, outputs, strict=False)):
            if not tensor.shape.is_fully_defined() and (shape := _full(then.shape)) is not None:
                result[Value(op.name, i)] = shape
    return result


def _reading_inputs(
    graph_def: GraphDef, fixed: Mapping[Value, Shape], constants: Mapping[Value, tuple[int, ...]]
) -> GraphDef:
    """A copy in which readers of `fixed` values read inputs, and constants, named for them."""
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    holders = {value.node for value in constants}
    types = {node.name: node.attr["T"].type for node in graph_def.node if node.name in holders}
    for value, numbers in constants.items():
        made = result.node.add(name=_fixed_name(value), op="Const")
        made.attr["dtype"].type = types[value.node]
        dtype = tf.as_dtype(types[value.node])
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(numbers, dtype, [len(numbers)]))
    for node in result.node:
        for i, text in enumerate(node.input):
            if text[0] != "^" and (value := parse_value(text)) in fixed:
                node.input[i] = _fixed_name(value)
    return result


def _bypass_loops(graph_def: GraphDef) -> None:
    """Lets readers of a handle or a list that went through a loop read what went in.

    A loop changes neither what a handle refers to nor the shape of a list's elements, but
    TensorFlow's inference forgets both at its output.
    """
    kinds = [dtype.as_datatype_enum for dtype in _UNSIZED]
    entered = {
        Value(node.name, i): text
        for node in graph_def.node
        if node.op in ("While", "StatelessWhile")
        for i, (kind, text) in enumerate(zip(node.attr["T"].list.type, node.input, strict=False))
        if kind in kinds
    }
    for node in graph_def.node if entered else ():
        for i, text in enumerate(node.input):
            while text[0] != "^" and parse_value(text) in entered:
                text = entered[parse_value(text)]
            node.input[i] = text


def _fixed_name(value: Value) -> str:
    return f"tfmem_fixed/{value.node}/{value.index}"


def _with_actual_shape(item: Input, actual: Any) -> Input:
    tensor = item.external if item.external is not None else actual
    shape = as_shape(getattr(tensor, "shape", None))
    if item.dtype in _UNSIZED or shape is None:
        return item
    return Input(item.name, item.dtype, item.handle, shape)


def dtypes_of(graph: FuncGraph, inputs: Iterable[Input]) -> dict[str, tuple[tf.DType, ...]]:
    """Types of each node's outputs."""
    result = {op.name: tuple(t.dtype for t in op.outputs) for op in graph.get_operations()}
    return result | {item.name: (item.dtype,) for item in inputs}


class Reader:
    """Reads nodes out of a graph with inferred shapes; collects what it meets on the way.

    Attributes:
      flops: operations of each node that has many.
      unknown: values whose size cannot be known, with their op, first causes only.
    """

    def __init__(self, graph: FuncGraph, library: Any, known: Mapping[Value, Shape]) -> None:
        self.flops: dict[str, float] = {}
        self.workspace: dict[str, int] = {}
        self.unknown: list[tuple[Value, str]] = []
        self._graph = graph
        self._functions = {f.signature.name: f for f in library.function}
        self._known = known
        self._ops = {op.name: op for op in graph.get_operations()}
        self._unknown_nodes: set[str] = set()

    def node(self, node_def: NodeDef) -> Node:
        """The node of a NodeDef."""
        op = self._ops[node_def.name]
        inputs, after = [], []
        for text in node_def.input:
            if text[0] == "^":
                after.append(text[1:])
            else:
                inputs.append(parse_value(text))
        sizes = []
        for i, tensor in enumerate(op.outputs):
            value = Value(node_def.name, i)
            shape = self._known.get(value, as_shape(tensor.shape))
            sizes.append(self._nbytes(value, node_def.op, tensor.dtype, shape, inputs))
        if node_def.op in shapes.OPAQUE_OPS:
            outputs = [_full(t.shape) for t in op.outputs]
            opaque = (shapes.opaque_nbytes(node_def.op, i, outputs) for i in range(len(sizes)))
            sizes = [size if o is None else o for size, o in zip(sizes, opaque, strict=True)]
        if device_names.is_gpu(node_def.device):
            for i in kernels.host_outputs(node_def, "GPU"):
                sizes[i] = 0
        return Node(
            name=node_def.name,
            op=node_def.op,
            inputs=tuple(inputs),
            after=tuple(dict.fromkeys(after)),
            nbytes=tuple(sizes),
            device=node_def.device,
            shares=self._study(node_def, op),
        )

    def is_bounded(self, value: Value) -> bool:
        """Whether the size of a value depends on data, and the largest is counted."""
        return value in self._known and self._ops[value.node].type in shapes.BOUNDED_OPS

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
            nbytes = 0
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
        if dtype in _UNSIZED or is_opaque:
            return 0
        if shape is None or None in shape:
            if dtype != tf.string:
                if not any(i.node in self._unknown_nodes for i in inputs):
                    self.unknown.append((value, op))
                self._unknown_nodes.add(value.node)
            return 0
        itemsize = _STRING_BYTES if dtype == tf.string else dtype.size
        return prod(n for n in shape if n is not None) * int(itemsize)

    def _study(self, node_def: NodeDef, op: tf.Operation) -> int | None:
        """Notes the operations of a node; returns the input whose buffer its outputs share."""
        has_flops = node_def.op in shapes.FLOP_OPS
        known = has_flops or node_def.op in shapes.SHARING_OPS or node_def.op in WORKSPACE_OPS
        if not known:
            return None
        tensors = list(op.inputs)
        constants = (
            {} if has_flops else {i: c for i, t in enumerate(tensors) if (c := _constant(t))}
        )
        dtype = op.outputs[0].dtype
        call = shapes.Call(
            node_def.op,
            [_full(t.shape) for t in tensors],
            [_full(t.shape) for t in op.outputs],
            _STRING_BYTES if dtype == tf.string else int(dtype.size),
            {key: _plain(value) for key, value in node_def.attr.items()},
            constants,
        )
        if count := shapes.flops(call):
            self.flops[node_def.name] = count
        if scratch := workspace(call, device_names.is_gpu(node_def.device)):
            self.workspace[node_def.name] = scratch
        return shapes.shared_input(call)

    def bodies(self, node_def: NodeDef) -> tuple[Body, ...]:
        """The functions that a While, If, Case or call runs."""
        op = self._ops[node_def.name]
        arguments = list(op.inputs)[_FIRST_ARGUMENT.get(node_def.op, 0) :]
        result = []
        for attr in BODIES[node_def.op]:
            value = node_def.attr[attr]
            for function in value.list.func or (value.func,):
                if function.name in self._functions:
                    definition = self._functions[function.name]
                    result.append(self._body(definition, arguments, node_def))
        return tuple(result)

    def _body(self, function: FunctionDef, arguments: list[tf.Tensor], caller: NodeDef) -> Body:
        graph_def, outputs = body_graph_def(function)
        inputs = [
            _argument(arg.name, tensor)
            for arg, tensor in zip(function.signature.input_arg, arguments, strict=True)
        ]
        places = {node.name: node.device or caller.device for node in graph_def.node}
        graph, fixed = import_sized(graph_def, inputs, {}, {})
        for node in graph_def.node:
            node.device = places[node.name]
        reader = Reader(graph, _Library(self._functions.values()), fixed)
        arg_nodes = (reader.input_node(i, i.dtype, i.shape, caller.device) for i in inputs)
        nodes = topological(graph_def.node)
        body = Graph(
            (*arg_nodes, *map(reader.node, nodes)),
            tuple(map(parse_value, outputs)),
        )
        bodies = {node.name: reader.bodies(node) for node in nodes if node.op in BODIES}
        name = caller.name
        self.unknown += [(Value(f"{name}/{v.node}", v.index), op) for v, op in reader.unknown]
        self.flops[name] = self.flops.get(name, 0.0) + sum(reader.flops.values())
        return Body(body, function.signature.name, reader.flops, reader.workspace, bodies)


@dataclass(frozen=True)
class _Library:
    function: Iterable[FunctionDef]


def _argument(name: str, tensor: tf.Tensor) -> Input:
    handle = handle_data_util.get_resource_handle_data(tensor) if tensor.dtype in _UNSIZED else None
    return Input(name, tensor.dtype, handle, as_shape(tensor.shape))


def _full(shape: tf.TensorShape) -> Shape | None:
    return tuple(shape) if shape.is_fully_defined() else None


def _constant(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """Value of a small integer tensor that TensorFlow can tell before the step runs."""
    if not tensor.dtype.is_integer or not tensor.shape.is_fully_defined():
        return None
    if tensor.shape.num_elements() > _MAX_CONSTANT:
        return None
    value = tensor_util.constant_value(tensor)
    return None if value is None else tuple(int(n) for n in value.reshape(-1))


def _plain(value: Any) -> object:
    """An AttrValue as a number, text or truth; None for what `shapes` does not ask for."""
    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode(errors="replace")
    return getattr(value, kind) if kind in ("i", "f", "b", "type") else None
