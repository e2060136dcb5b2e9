"""Calls of TensorFlow's functions: their arguments, whether a tape records them, traced anew."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.core.function import trace_type
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import function_type_utils
from tensorflow.python.ops import resource_variable_ops


def fresh(function: Any) -> Any:
    """A tf.function of the same Python function and options that has not been traced yet."""
    return function._clone(None)


def canonical_arguments(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as a tf.function completes them: defaults filled in, arrays as tensors."""
    bound = function_type_utils.canonicalize_function_inputs(
        args, kwargs, function._function_type, function._default_values
    )
    return bound.args, bound.kwargs


def flat_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors and handles among the arguments, in the order in which the function takes them.

    Args:
      function: a ConcreteFunction.
      args: positional arguments, as the tf.function was called; defaults may be left out.
      kwargs: keyword arguments.
    """
    types = function.function_type
    lenient, defaults = with_defaults(types)
    bound = function_type_utils.canonicalize_function_inputs(args, kwargs, lenient, defaults)
    return list(types.unpack_inputs(bound))


def flat_inputs(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """`flat_arguments`, and then what the function has captured, as the runtime passes them."""
    return [*flat_arguments(function, args, kwargs), *function.captured_inputs]


def call_with(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], instead: Mapping[int, Any]
) -> Any:
    """Calls a ConcreteFunction with other tensors or handles in the place of some of its inputs.

    Args:
      function: a ConcreteFunction.
      args: as of `flat_arguments`.
      kwargs: keyword arguments.
      instead: what is passed, by its place in `flat_inputs`.
    """
    inputs = flat_inputs(function, args, kwargs)
    for place, tensor in instead.items():
        inputs[place] = tensor
    count = len(inputs) - len(function.captured_inputs)
    return function._call_flat(inputs[:count], inputs[count:])


def with_defaults(function_type: Any) -> tuple[Any, dict[str, Any]]:
    """A function type of which Python constants may be left out, and their values in the trace.

    A ConcreteFunction forgets which parameters have defaults, and wants them all.
    """
    context = trace_type.InternalPlaceholderContext()
    parameters: list[Any] = []
    defaults = {}
    may_default = True  # positional parameters with a default are the last ones
    for p in reversed(function_type.parameters.values()):
        is_positional = p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        is_constant = p.type_constraint is not None and not p.type_constraint.flatten()
        is_optional = is_constant and (may_default or not is_positional)
        if is_optional and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            defaults[p.name] = p.type_constraint.placeholder_value(context)
            p = function_type_lib.Parameter(p.name, p.kind, True, p.type_constraint)
        elif is_positional:
            may_default = False
        parameters.append(p)
    return function_type_lib.FunctionType(parameters[::-1], function_type.captures), defaults


def trace_type_of(item: Any) -> Hashable:
    """What a tf.function traces an argument as, and tells calls apart by.

    Raises:
      TypeError: it can be traced as nothing.
    """
    found: Hashable = trace_type.from_value(item)
    return found


def is_traced() -> bool:
    """Whether what is called now is traced into another function, and runs with that."""
    return bool(tf.inside_function())


def is_recorded(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], variables: Iterable[tf.Variable]
) -> bool:
    """Whether an active tape watches an argument or one of the variables that a call would read.

    As a tape does when a function is called, it is shown the variables first.
    """
    if not record.could_possibly_record():
        return False
    parts = tf.nest.flatten((args, kwargs), expand_composites=True)
    shown = [*variables, *(part for part in parts if isinstance(part, tf.Variable))]
    for variable in shown:
        if variable.trainable:
            resource_variable_ops.variable_accessed(variable)
    tensors = [t for t in parts if tf.is_tensor(t) and not isinstance(t, tf.Variable)]
    return bool(record.should_record_backprop([*tensors, *(v.handle for v in shown)]))
