"""Handles of variables: which may be exchanged, and how it is done."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, UninitializedVariable

from tfmem.bridge.instances import instances
from tfmem.errors import Error


def movable(variable: Any) -> Any:
    """The `tf.Variable` itself, with a handle that may be exchanged.

    Args:
      variable: a `tf.Variable`, or one of Keras or tf-keras that wraps one.

    Raises:
      tfmem.Error: it has no such handle, or a function is being traced.
    """
    name = getattr(variable, "name", type(variable).__name__)
    for wrapped in ("_variable", "_value"):  # tf-keras's AutoCastVariable, Keras 3's Variable
        inner = getattr(variable, wrapped, None)
        variable = inner if isinstance(inner, tf.Variable) else variable
    if not tf.executing_eagerly():
        raise Error(f"variable {name!r} cannot be moved while a function is traced; move it before")
    if not isinstance(variable, tf.Variable) or not hasattr(variable, "_handle"):
        raise Error(
            f"{name!r} ({type(variable).__name__}) cannot be moved: only variables with one "
            "resource handle can (no variables of a distribution strategy, no sharded ones)"
        )
    if not hasattr(variable._handle, "numpy") or variable._cached_value is not None:
        raise Error(
            f"variable {name!r} cannot be moved: it was made in graph mode or has a "
            "caching_device; make it eagerly, without one"
        )
    return variable


def living_on(device: str) -> list[Any]:
    """The variables with a handle on a device, by its full name, that anybody holds."""
    with_handle = (one for one in instances(BaseResourceVariable) if hasattr(one, "_handle"))
    return [
        one for one in with_handle if hasattr(one._handle, "numpy") and one._handle.device == device
    ]


def abandon(variables: Sequence[Any]) -> None:
    """Leaves variables without a value, on this process's CPU, for their device is about to go.

    Once it is gone, to ask such a variable for its device is a segmentation fault (TensorFlow
    2.21). Without a value, to read it is an error that says so, and it can be assigned one.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        _bind(variables, [_nothing(variable) for variable in variables])


def _nothing(variable: Any) -> Any:
    """The handle of a resource that is not there; that of a new one reads as an empty tensor."""
    told = f"{variable.name} (lost with the process that it was in, {identity(variable)})"
    handle = tf.raw_ops.VarHandleOp(
        dtype=variable.dtype, shape=variable.shape, shared_name=told.replace(":", " ")
    )
    handle._handle_data = variable._handle._handle_data
    return handle


def without_value(variable: Any) -> Any:
    """A new variable of the same kind, on the device that is in scope: a handle and no value."""
    return UninitializedVariable(
        shape=variable.shape, dtype=variable.dtype, trainable=variable.trainable
    )


def identity(variable: Any) -> str:
    """What tells a variable from all others, wherever it is."""
    return str(variable._unique_id)


def nbytes(variable: Any) -> int:
    """Bytes of a variable's value; 0 if its shape is not known."""
    return int((variable.shape.num_elements() or 0) * variable.dtype.size)


def renew(devices: Iterable[str]) -> None:
    """Gives variables resources on devices that took the places of others, by their full names.

    Their buffers stay, but for those whose reads are copies.
    """
    found = [one for device in devices for one in living_on(device) if one.is_initialized()]
    twins = []
    for variable in found:
        with tf.init_scope(), tf.device(variable.device):
            twins.append(without_value(variable))
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=twins[-1].handle, value=value)
    bind(found, twins)


def bind(variables: Sequence[Any], twins: Sequence[Any]) -> list[Any]:
    """Gives each variable, and what uses it, its twin's handle; returns those that they had."""
    return _bind(variables, [twin._handle for twin in twins])


def _bind(variables: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    old = [variable._handle for variable in variables]
    for variable, handle in zip(variables, new, strict=True):
        handle._parent_trackable = weakref.ref(variable)
        handle._name, handle._unique_id = variable._handle_name, variable._unique_id
        variable._handle = handle
    _rebind({id(before): handle for before, handle in zip(old, new, strict=True)})
    return old


def _rebind(new: Mapping[int, Any]) -> None:
    """Lets every live function that captured an old handle use the new one instead.

    A function keeps what it captured in its graph, by the identity of the tensor, and once more as
    what is passed at each call. Within it nodes go where their variables are, unless the user
    put them on a device.

    Args:
      new: handles by the identities of the old ones, which must be alive.
    """
    for graph in instances(FuncGraph):
        captures = graph.captures
        if any(id(tensor) in new for tensor, _ in captures):
            outer, inner = zip(*captures, strict=True)
            graph._function_captures.reset_captures([new.get(id(t), t) for t in outer], inner)
            list(graph.captures)  # a list of them is kept, and made anew when it is asked for
    for function in instances(ConcreteFunction):
        passed = getattr(function, "_captured_inputs", ())  # a copy that failed half-way has none
        if any(id(tensor) in new for tensor in passed):
            function.set_external_captures([new.get(id(t), t) for t in passed])
