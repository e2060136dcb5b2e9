"""Functions that a step calls and XLA compiles (`jit_compile=True`): what they hold.

Keras compiles grouped convolutions so on a CPU, whose kernels TensorFlow does not have. Such a call
runs as one node: XLA plans the memory between its arguments and its results when it compiles, for
one buffer that is taken and given back with the call. Here it is compiled ahead and asked.

On a GPU nobody can be asked, and tf-keras compiles there what each of its optimizers does with each
variable. Such calls are opened: TensorFlow's own kernels run them, which round otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager import context

from tfmem.bridge import kernels
from tfmem.bridge.graphdefs import FunctionDef, GraphDef, NodeDef, functions_of
from tfmem.bridge.inputs import handle_of
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph import device_names

_MUST_COMPILE = "_XlaMustCompile"
_MARKS = {_MUST_COMPILE, "_noinline"}
"""Of what XLA compiles: Grappler leaves it as it is."""

_STAGE = "optimized_hlo_proto_serialized"
_MOST_KNOWN = 1024  # functions; to compile one takes a tenth of a second


def is_compiled(node: NodeDef | FunctionDef) -> bool:
    """Whether XLA compiles what a node calls, or a function."""
    return _MUST_COMPILE in node.attr and node.attr[_MUST_COMPILE].b  # to look up would add it


def open_calls(graph_def: GraphDef, device: str) -> tuple[str, ...]:
    """Makes usual calls of those whose memory XLA does not tell, for Grappler to inline.

    Those are all on a GPU, and elsewhere those that do more with a variable than to read it. What
    they call must have kernels without XLA.

    Args:
      graph_def: with its nodes placed; changed.
      device: full name of where nodes of functions run that are placed nowhere.

    Returns:
      The names of the calls.
    """
    functions = {one.signature.name: one for one in graph_def.library.function}
    bodies = (one.node_def for one in functions.values() if not is_compiled(one))
    opened = [
        (node, within)
        for node in itertools.chain(graph_def.node, *bodies)
        if is_compiled(node) and _opens(node.device or device, within := _within(node, functions))
    ]
    for node, within in opened:
        for one in (node, *within, *(inner for called in within for inner in called.node_def)):
            if is_compiled(one):
                for mark in _MARKS & one.attr.keys():
                    del one.attr[mark]
    return tuple(node.name for node, _ in opened)


def _within(node: NodeDef | FunctionDef, functions: Mapping[str, FunctionDef]) -> list[FunctionDef]:
    """What a call or a function calls, and what that calls."""
    called = _called(node) if hasattr(node, "node_def") else functions_of(node)
    found = [functions[name] for name in called]
    return [*found, *(one for function in found for one in _within(function, functions))]


def _opens(device: str, within: Sequence[FunctionDef]) -> bool:
    if not (device_names.is_gpu(device) or any(map(_changes_variables, within))):
        return False
    kinds = (device_names.kind(device), "CPU")
    inside = [inner for function in within for inner in function.node_def]
    return all(any(kernels.runs_on(inner, kind) for kind in kinds) for inner in inside)


def _changes_variables(function: FunctionDef) -> bool:
    resource = tf.resource.as_datatype_enum
    given = {one.name for one in function.signature.input_arg if one.type == resource}
    others = (node for node in function.node_def if node.op != "ReadVariableOp")
    return any(not given.isdisjoint(node.input) for node in others)


def scratch(node: NodeDef, given: Sequence[tf.Tensor], functions: Mapping[str, FunctionDef]) -> int:
    """Bytes that a compiled call holds beside its arguments and results while it runs.

    Args:
      node: the call.
      given: its arguments.
      functions: that nodes run, by name.

    Raises:
      UnsupportedFunctionError: that cannot be known ahead.
    """
    (name,) = functions_of(node)
    try:
        if device_names.is_gpu(node.device):
            raise ValueError("it runs on a GPU")
        function, specs = _reading_values(functions[name], given)
        for called in _called(function):
            _register(functions[called], functions)
        function.signature.name = ""
        return _scratch(function.SerializeToString(deterministic=True), node.device, specs)
    except (ValueError, ImportError, tf.errors.OpError) as error:
        raise UnsupportedFunctionError(
            f"{node.name} calls a function that XLA compiles (jit_compile=True), whose memory "
            f"cannot be told before it runs ({error}); use tf.function(jit_compile=False) there",
            node.name,
        ) from error


def _reading_values(
    function: FunctionDef, given: Sequence[tf.Tensor]
) -> tuple[FunctionDef, tuple[tf.TensorSpec, ...]]:
    """A copy that is given the values of variables instead of their handles, and what it is given.

    Raises:
      ValueError: it does more with a variable than to read it.
    """
    copy, specs, types, renamed = type(function)(), [], {}, {}
    copy.CopyFrom(function)
    for argument, tensor in zip(copy.signature.input_arg, given, strict=True):
        shape, dtype = tensor.shape, tensor.dtype
        if (handle := handle_of(tensor)) is not None and handle.is_set:
            held = handle.shape_and_type[0]
            shape, dtype = tf.TensorShape(held.shape), tf.as_dtype(held.dtype)
            argument.type = types[argument.name] = held.dtype
        specs.append(tf.TensorSpec(shape, dtype))
    for node in copy.node_def:
        if types.keys().isdisjoint(node.input):
            continue
        if node.op != "ReadVariableOp":
            raise ValueError(f"it gives a variable to {node.op}")
        node.op = "Identity"
        node.attr.clear()
        node.attr["T"].type = types[node.input[0]]
        renamed[f"{node.name}:value:0"] = f"{node.name}:output:0"
    for node in copy.node_def:
        node.input[:] = [renamed.get(text, text) for text in node.input]
    for output, text in tuple(copy.ret.items()):
        copy.ret[output] = renamed.get(text, text)
    return copy, tuple(specs)


def _called(function: FunctionDef) -> list[str]:
    return [name for node in function.node_def for name in functions_of(node)]


def _register(function: FunctionDef, functions: Mapping[str, FunctionDef]) -> None:
    """Makes a function, and those that it calls, known to the runtime if they are not."""
    eager = context.context()
    if not eager.has_function(function.signature.name):
        eager.add_function_def(function)
        for called in _called(function):
            _register(functions[called], functions)


@functools.lru_cache(maxsize=_MOST_KNOWN)
def _scratch(text: bytes, device: str, specs: tuple[tf.TensorSpec, ...]) -> int:
    """Bytes of the buffers of a function, serialised without a name, that are XLA's alone."""
    from tensorflow.compiler.xla.service import hlo_pb2

    function = tf.compat.v1.GraphDef().library.function.add()
    function.ParseFromString(text)
    function.signature.name = f"tfmem_compiled_{hashlib.sha256(text).hexdigest()[:16]}"
    if not context.context().has_function(function.signature.name):
        context.context().add_function_def(function)
    serialized = context.context().get_compiler_ir(
        device_name=device,
        platform_name=None,
        function_name=function.signature.name,
        flat_args=list(specs),
        captured_inputs=[],
        stage=_STAGE,
    )
    buffers = hlo_pb2.HloProto.FromString(serialized).buffer_assignment.buffer_allocations
    return sum(
        one.size
        for one in buffers
        if not (one.is_entry_computation_parameter or one.maybe_live_out)
        and not (one.is_thread_local or one.is_constant)
    )
