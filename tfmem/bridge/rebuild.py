"""From a rewritten `Graph` back to a function that TensorFlow runs as it is written.

    Graph + Captured -> GraphDef -> FuncGraph -> ConcreteFunction -> Rewritten

Grappler is off while the function runs, since it would delete copies and control edges, and the
function is never inlined into a caller, whose Grappler would do the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_type_utils,
)
from tensorflow.python.framework import func_graph as func_graph_lib

from tfmem.bridge import branches, sums
from tfmem.bridge.calls import with_defaults
from tfmem.bridge.capture import Captured
from tfmem.bridge.graphdefs import FuncGraph, FunctionDef, GraphDef, NodeDef
from tfmem.bridge.in_place import update_in_place
from tfmem.bridge.inputs import Input, import_graph, resizable
from tfmem.bridge.unread import count_runs, give_numbers
from tfmem.errors import RewriteError
from tfmem.graph.bodies import Body
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.verify import COPIES, HOLD


class _Serial:
    """How many functions this process has rebuilt, which makes their names differ.

    TensorFlow knows functions by name in one eager context for each process.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def next(self) -> int:
        """A number that was not given out before."""
        return next(self._numbers)


_serial = _Serial()


class Rewritten:
    """A rewritten function, called as the original was.

    Attributes:
      graph: what it runs.
      function: TensorFlow's ConcreteFunction; calls of it run with Grappler off, too.
      has_run: whether this has been called.
    """

    def __init__(self, graph: Graph, function: Any) -> None:
        self.graph = graph
        self.function = function
        self.has_run = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.has_run = True
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tfmem.Rewritten {self.function.name!r}: {len(self.graph)} nodes>"


def rebuild(
    captured: Captured, graph: Graph, bodies: Mapping[str, tuple[Body, Graph]] | None = None
) -> Rewritten:
    """Makes a function of `graph`, which is `captured.graph` as the passes left it.

    `bodies` are the functions of loops and branches that were rewritten too, by name: as captured,
    and as the passes left them.

    Captured variables are taken where they are now. It may be called while another function is
    traced.

    Raises:
      RewriteError: a new node has no origin, or one of another op, or an input is gone.
    """
    # Functions belong to the eager context, whatever is being traced at the moment.
    with tf.init_scope():
        return Rewritten(graph, _build(captured, graph, bodies or {}))


def _build(captured: Captured, graph: Graph, bodies: Mapping[str, tuple[Body, Graph]]) -> Any:
    signature = captured.signature
    if signature is None:
        raise RewriteError("a Captured without signature cannot be rebuilt; make it with capture()")
    serial = _serial.next()
    new_names = {name: f"tfmem_{name}_{serial}" for name in captured.library}
    func_graph = func_graph_lib.FuncGraph(f"tfmem_{signature.name}_{serial}")
    func_graph.structured_input_signature = signature.structured_inputs
    library = {name: _copied(function) for name, function in captured.library.items()}
    for name, (before, after) in bodies.items():
        library[name] = _rewritten_body(captured.library[name], before, after)
    graph_def = _graph_def(captured, graph)
    runs = count_runs((graph_def.node, *(function.node_def for function in library.values())))
    for name in bodies:
        nodes, returned = library[name].node_def, library[name].ret.values()
        unread = give_numbers(nodes, returned, library, runs)
        nodes.extend(branches.hold_together(nodes, unread, in_function=True))
    updates = update_in_place(graph_def.node, graph, resizable=resizable(captured.inputs))
    _add(updates, graph_def, graph)
    returned = [f"{name}:{index}" for name, index in graph.outputs]
    unread = give_numbers(graph_def.node, returned, library, runs)
    _add(branches.hold_together(graph_def.node, unread), graph_def, graph)
    for function in _register_functions(library, new_names):
        func_graph._add_function(function)
    _one_iteration_at_a_time(graph_def.node)
    _rename_functions(graph_def.node, new_names)
    placeholders = import_graph(func_graph, graph_def, captured.inputs)
    tensors = {item.name: t for item, t in zip(captured.inputs, placeholders, strict=True)}
    func_graph.inputs = placeholders
    func_graph.outputs = [_tensor(func_graph, tensors, value) for value in graph.outputs]
    operations = {op.name: op for op in func_graph.get_operations()}
    _set_devices(operations, graph)
    func_graph.control_outputs = [operations[name] for name in captured.control_outputs]
    _add_captures(func_graph, captured, placeholders)
    func_graph.structured_outputs = signature.function_type.pack_output(func_graph.outputs)

    attrs = {**signature.attrs, "_noinline": True}
    function = _SteeredFunction(
        atomic_function.from_func_graph(
            f"__inference_{func_graph.name}", func_graph, attrs, signature.function_type
        ),
        shared_func_graph=False,
    )
    function._lenient_type = with_defaults(signature.function_type)
    function._arg_keywords = signature.arg_keywords
    function._num_positional_args = signature.num_positional
    return function


# Nodes.


def _add(made: Iterable[NodeDef], graph_def: GraphDef, graph: Graph) -> None:
    """Adds nodes, each where the one is that the first part of its name names."""
    for node_def in made:
        node_def.device = graph.by_name[node_def.name.rpartition("/")[0]].device
        graph_def.node.append(node_def)


def _graph_def(captured: Captured, graph: Graph) -> GraphDef:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    dtypes = dict(captured.dtypes)
    inputs = {item.name for item in captured.inputs}
    for serial, node in enumerate(graph.nodes):
        if node.is_input:
            if node.name not in inputs:
                raise RewriteError(f"{node.name} is an input that the captured function lacks")
            continue
        node_def = graph_def.node.add()
        if node.origin:
            _make_new(node_def, node, captured, dtypes)
            node_def.attr["_tfmem_id"].i = serial
        elif node.name in captured.node_defs:
            node_def.CopyFrom(sums.definition(node, captured.node_defs))
        else:
            raise RewriteError(f"{node.name} ({node.op}) is new but names no origin")
        node_def.name, node_def.device = node.name, ""  # see _set_devices
        node_def.input.extend(f"{n}:{i}" if i else n for n, i in node.inputs)
        node_def.input.extend(f"^{name}" for name in node.after)
    _keep_from_folding(graph_def.node)
    return graph_def


def _make_new(
    node_def: NodeDef, node: Node, captured: Captured, dtypes: dict[str, tuple[tf.DType, ...]]
) -> None:
    """Fills in the NodeDef of a node that a pass made: a clone, a copy, a hold or a barrier."""
    origin = captured.node_defs.get(node.origin)
    if origin is not None and origin.op == node.op and node.op not in COPIES:
        node_def.CopyFrom(origin)
        dtypes[node.name] = dtypes[node.origin]
    elif node.op in COPIES:
        read = node.inputs[0]
        dtype = dtypes[read.node][read.index]
        node_def.op = node.op
        node_def.attr["T"].type = dtype.as_datatype_enum
        dtypes[node.name] = (dtype,)
    elif node.op == HOLD:
        node_def.op = HOLD
        held = [dtypes[value.node][value.index] for value in node.inputs]
        node_def.attr["T"].list.type.extend(dtype.as_datatype_enum for dtype in held)
        dtypes[node.name] = tuple(held)
    elif node.op == "NoOp":
        node_def.op = "NoOp"
        dtypes[node.name] = ()
    else:
        raise RewriteError(
            f"{node.name} is a {node.op} made from {node.origin}, "
            f"which is {'no node' if origin is None else f'a {origin.op}'}; a new node is a clone "
            f"of its origin, a copy ({', '.join(sorted(COPIES))}), a {HOLD} or a NoOp"
        )


def _set_devices(operations: Mapping[str, tf.Operation], graph: Graph) -> None:
    """Places nodes after the import, which would spend half its time on that (0.4 s of 0.8)."""
    for node in graph.nodes:
        if not node.is_input:
            operations[node.name]._set_device_from_string(node.device)


def _tensor(graph: FuncGraph, inputs: Mapping[str, tf.Tensor], value: Value) -> tf.Tensor:
    return inputs.get(value.node) or graph.get_tensor_by_name(f"{value.node}:{value.index}")


# Functions that nodes refer to.


def _register_functions(
    library: Mapping[str, FunctionDef], new_names: Mapping[str, str]
) -> list[Any]:
    """Registers functions under new names, which changes them; they live as long as the result.

    Grappler's version of a function may bear the name of the original, which is registered too.
    """
    result = []
    for name, function in library.items():
        function.signature.name = new_names[name]
        _keep_outputs_apart(function)
        _keep_from_folding(function.node_def)
        _one_iteration_at_a_time(function.node_def)
        _rename_functions(function.node_def, new_names)
        no_types = function_type_lib.FunctionType([])
        result.append(atomic_function.from_function_def(function, no_types))
    return result


def _rewritten_body(function: FunctionDef, before: Body, after: Graph) -> FunctionDef:
    """A function with the nodes of a rewritten graph; only clones and barriers may be new."""
    definitions = {node.name: node for node in function.node_def}
    made = _copied(function)
    del made.node_def[:]
    for serial, node in enumerate(node for node in after.nodes if not node.is_input):
        node_def = made.node_def.add()
        if node.op == "NoOp" and node.origin:
            node_def.op = "NoOp"
        else:
            origin = node.origin or node.name
            node_def.CopyFrom(definitions[origin])
            del node_def.input[:]
            texts = [text for text in definitions[origin].input if text[0] != "^"]
            for text, old, new in zip(
                texts, before.graph.by_name[origin].inputs, node.inputs, strict=True
            ):
                node_def.input.append(new.node + text[len(old.node) :])
        if node.origin:
            node_def.attr["_tfmem_id"].i = serial
        node_def.name = node.name
        node_def.input.extend(f"^{name}" for name in node.after)
    variables = before.resizable
    updates = update_in_place(made.node_def, after, resizable=variables, in_function=True)
    made.node_def.extend(updates)
    return made


def _copied(function: FunctionDef) -> FunctionDef:
    made = type(function)()
    made.CopyFrom(function)
    return made


def _keep_outputs_apart(function: FunctionDef) -> None:
    """Lets no output be a constant, but what reads it.

    TensorFlow puts what branches run into the graph around them, with a node for each output that
    may be folded: a constant that several outputs name, as the gradients of what a branch does not
    use do, would be there as often.
    """
    constants = {node.name: node for node in function.node_def if node.op == "Const"}
    for output, text in tuple(function.ret.items()):
        if constant := constants.get(text.partition(":")[0]):
            made = function.node_def.add(name=f"{constant.name}/tfmem_{output}", op="Identity")
            made.input.append(f"{constant.name}:output:0")
            made.attr["T"].CopyFrom(constant.attr["dtype"])
            made.device = constant.device
            function.ret[output] = f"{made.name}:output:0"


def _one_iteration_at_a_time(nodes: Iterable[NodeDef]) -> None:
    """Turns of a loop may not overlap, as was planned for; TensorFlow runs ten or more at once."""
    for node in nodes:
        if node.op in ("While", "StatelessWhile"):
            node.attr["parallel_iterations"].i = 1


def _keep_from_folding(nodes: Iterable[NodeDef]) -> None:
    """Keeps nodes whose inputs are all constants from becoming constants themselves.

    Those would stay on the device for good, one more for each function that is run. TensorFlow
    folds them when it instantiates a function, whatever its config says, but never a node that a
    scoped allocator serves (`IsConstantFoldable` in `constant_folding.cc`). Without a node that is
    such an allocator the attribute does nothing else.
    """
    for node in nodes:
        if node.op != "Const":
            node.attr["_scoped_allocator"].list.SetInParent()


def _rename_functions(nodes: Iterable[NodeDef], new_names: Mapping[str, str]) -> None:
    for node in nodes:
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "func":
                value.func.name = new_names.get(value.func.name, value.func.name)
            elif kind == "list":
                for function in value.list.func:
                    function.name = new_names.get(function.name, function.name)


# Captures.


def _add_captures(graph: FuncGraph, captured: Captured, placeholders: list[tf.Tensor]) -> None:
    variables = []
    for item, placeholder in zip(captured.inputs, placeholders, strict=True):
        if item.variable is not None:
            graph.replace_capture(item.variable.handle, placeholder)
            variables.append(item.variable)
        elif item.external is not None and not callable(item.external):
            graph.replace_capture(item.external, placeholder)
    graph.variables = variables
    _add_deferred_captures(graph, captured, placeholders)


def _add_deferred_captures(
    graph: FuncGraph, captured: Captured, placeholders: list[tf.Tensor]
) -> None:
    """Captures by a closure that is evaluated at each call; their inputs are the last ones."""
    assert captured.signature is not None
    deferred = captured.signature.deferred
    left = placeholders[len(placeholders) - sum(map(_is_deferred, captured.inputs)) :]
    for key, (closure, trace_type) in deferred.items():
        count = len(trace_type.flatten())
        internal, left = left[:count], left[count:]
        graph._function_captures.add_or_replace(
            key=key,
            external=closure,
            internal=internal[0] if count == 1 else internal,
            tracetype=trace_type,
            is_by_ref=True,
        )


def _is_deferred(item: Input) -> bool:
    return callable(item.external)


# Calls.


class _SteeredFunction(concrete_function.ConcreteFunction):  # type: ignore[misc]
    """A ConcreteFunction that runs with Grappler off and on the default executor.

    The single-threaded executor would hang in a function that spans devices.
    """

    _lenient_type: tuple[Any, Mapping[str, Any]]

    def _call_with_structured_signature(self, args: Any, kwargs: Any) -> Any:
        """As TensorFlow's, but parameters that were left out when traced may be left out."""
        bound = function_type_utils.canonicalize_function_inputs(args, kwargs, *self._lenient_type)
        return self._call_flat(self.function_type.unpack_inputs(bound), self.captured_inputs)

    def _call_flat(self, tensor_inputs: Any, captured_inputs: Any) -> Any:
        context = eager_context.context()
        before = context.function_call_options
        context.function_call_options = _without_grappler(before.config_proto_serialized)
        try:
            return super()._call_flat(tensor_inputs, captured_inputs)
        finally:
            context.function_call_options = before


@functools.lru_cache(maxsize=16)
def _without_grappler(serialized: bytes) -> Any:
    """Call options of a serialized ConfigProto with Grappler off."""
    config = config_pb2.ConfigProto.FromString(serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return eager_context.FunctionCallOptions(config_proto=config)
