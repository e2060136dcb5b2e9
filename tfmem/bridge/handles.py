"""Handles of variables: which may be exchanged, and how it is done."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

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


def exchange(variable: Any, twin: Any) -> Any:
    """Gives a variable its twin's handle; returns the one that it had."""
    old, handle = variable._handle, twin._handle
    handle._parent_trackable = weakref.ref(variable)
    handle._name, handle._unique_id = variable._handle_name, variable._unique_id
    variable._handle = handle
    return old


def rebind(exchanged: Iterable[tuple[Any, Any]]) -> None:
    """Lets every live function that captured an old handle use the new one instead.

    A function keeps what it captured in its graph, by the identity of the tensor, and once more as
    what is passed at each call. Within it nodes go where their variables are, unless the user
    put them on a device.

    Args:
      exchanged: pairs of an old handle and the new one.
    """
    new = {id(old): handle for old, handle in exchanged}
    for graph in instances(FuncGraph):
        captures = graph.captures
        if any(id(tensor) in new for tensor, _ in captures):
            outer, inner = zip(*captures, strict=True)
            graph._function_captures.reset_captures([new.get(id(t), t) for t in outer], inner)
    for function in instances(ConcreteFunction):
        passed = function._captured_inputs
        if any(id(tensor) in new for tensor in passed):
            function.set_external_captures([new.get(id(t), t) for t in passed])
