"""Inputs of a function: what they are, where they lie, what stands for them in another graph."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.ops import handle_data_util

from tfmem.bridge.graphdefs import FuncGraph, GraphDef

UNSIZED = (tf.resource, tf.variant)
"""Types of values that refer to something: their own size is none."""

OpenShape = tuple[int | None, ...]
"""A shape, with None for each dimension that is open."""


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
      value: what it is in every run, if that is known and asked for.
    """

    name: str
    dtype: tf.DType
    handle: Any
    shape: OpenShape | None
    variable: tf.Variable | None = None
    external: Any = None
    value: Any = None


@dataclass(frozen=True)
class Passed:
    """A large argument of the call that a function was captured for.

    Attributes:
      name: of its node.
      device: in whose memory it is to be.
      nbytes: of it in the plan.
      tensor: what the caller passed, as long as he holds it; None if it was no tensor.
      is_there: whether it is in that memory.
      spare: bytes by which it is smaller than in the plan.
    """

    name: str
    device: str
    nbytes: int
    tensor: weakref.ref[Any] | None
    is_there: bool
    spare: int = 0


def is_variable(item: Input) -> bool:
    """Whether an input is the handle of a variable."""
    return item.dtype == tf.resource and bool(item.handle and item.handle.is_set)


def dtypes_of(graph: FuncGraph, inputs: Iterable[Input]) -> dict[str, tuple[tf.DType, ...]]:
    """Types of each node's outputs."""
    result = {op.name: tuple(t.dtype for t in op.outputs) for op in graph.get_operations()}
    return result | {item.name: (item.dtype,) for item in inputs}


def resizable(inputs: Iterable[Input]) -> frozenset[str]:
    """Names of the inputs that are variables which may be assigned other shapes than they have."""
    return frozenset(one.name for one in inputs if is_variable(one) and _is_open(one))


def _is_open(variable: Input) -> bool:
    shape = tf.TensorShape(variable.handle.shape_and_type[0].shape)
    return not shape.is_fully_defined()


def as_shape(shape: tf.TensorShape | None) -> OpenShape | None:
    """A shape as a tuple, with None for an open dimension; None for an open rank."""
    return None if shape is None or shape.rank is None else tuple(shape)


def inputs_of(concrete: Any) -> list[Input]:
    """The inputs of a ConcreteFunction: arguments, then what it captured."""
    graph = concrete.graph
    variables = {id(v.handle): v for ref in graph._weak_variables if (v := ref()) is not None}
    captured = concrete._captured_inputs
    externals = {id(internal): external for external, internal in graph.captures}
    deferred = list(graph.deferred_internal_captures)
    closures = dict(zip(map(id, deferred), captured[len(externals) :], strict=False))
    result = []
    for tensor in graph.inputs:
        external = externals.get(id(tensor), closures.get(id(tensor)))
        variable = variables.get(id(external), owner_of(external))
        result.append(
            Input(
                name=tensor.op.name,
                dtype=tensor.dtype,
                handle=handle_of(tensor),
                shape=as_shape(tensor.shape),
                variable=variable,
                external=None if variable is not None else external,
            )
        )
    return result


def owner_of(handle: Any) -> Any:
    """The variable that a handle is of; None if it is none's."""
    reference = getattr(handle, "_parent_trackable", None)
    variable = reference() if reference is not None else None
    is_its = isinstance(variable, tf.Variable) and getattr(variable, "_handle", None) is handle
    return variable if is_its else None


def with_shape(item: Input, passed: OpenShape | None) -> Input:
    """An input with the shape of what it captured, or of what is passed, if that is known."""
    shape = as_shape(getattr(item.external, "shape", None)) or passed
    return item if item.dtype in UNSIZED or shape is None else replace(item, shape=shape)


def tensor_of(item: Input, actual: Any) -> Any:
    """The tensor or handle that is passed for an input; None if it is not known."""
    if item.variable is not None:
        return item.variable.handle
    tensor = actual if item.external is None else item.external
    return getattr(tensor, "handle", tensor)


def place_of(item: Input, actual: Any, device: str) -> str:
    """Where an input lies: with its resource; `device` for a tensor."""
    tensor = tensor_of(item, actual)
    if item.dtype == tf.resource and isinstance(tensor, tf.Tensor) and tensor.device:
        return str(tensor.device)
    return device


def handle_of(tensor: tf.Tensor) -> Any:
    """What a handle or variant refers to (TensorFlow's HandleData); None for a tensor."""
    return handle_data_util.get_resource_handle_data(tensor) if tensor.dtype in UNSIZED else None


def import_graph(graph: FuncGraph, graph_def: GraphDef, inputs: Sequence[Input]) -> list[tf.Tensor]:
    """Adds nodes to `graph`, in which `inputs` become placeholders, which are returned.

    Those whose value is known become constants. They come first, since shape inference wants to
    know what their handles refer to.
    """
    with graph.as_default():
        # Not under their own names: the import would rename node "a" where "a/b" is there already.
        placeholders = [placeholder(item, placeholder_name(i)) for i, item in enumerate(inputs)]
        mapped = {f"{i.name}:0": t for i, t in zip(inputs, placeholders, strict=True)}
        mapped |= {f"^{i.name}": t for i, t in zip(inputs, placeholders, strict=True)}
        used = {_key(text) for node in graph_def.node for text in node.input}
        tf.graph_util.import_graph_def(
            graph_def, input_map={k: t for k, t in mapped.items() if k in used}, name=""
        )
    return placeholders


def placeholder_name(number: int) -> str:
    """What `import_graph` calls that which stands for one of the inputs."""
    return f"tfmem_input_{number}"


def _key(text: str) -> str:
    return text if ":" in text or text.startswith("^") else f"{text}:0"


def placeholder(item: Input, name: str | None = None) -> tf.Tensor:
    """What stands for an input in the graph that is being made: its value, if that is known."""
    if item.value is not None:
        return tf.constant(item.value, item.dtype, item.shape, name)
    tensor = tf.compat.v1.placeholder(item.dtype, item.shape, name)
    if item.handle is not None:
        handle_data_util.set_handle_data(tensor, item.handle)
    return tensor
