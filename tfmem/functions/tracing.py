"""What tfmem asks of tf.functions and tapes before a graph is captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with 2.21.
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


def is_recorded(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], variables: Iterable[tf.Variable]
) -> bool:
    """Whether an active tape watches an argument or one of the variables that a call would read.

    As a tape does when a function is called, it is shown the variables first.
    """
    if not record.could_possibly_record():
        return False
    shown = [variable for variable in variables if variable.trainable]
    for variable in shown:
        resource_variable_ops.variable_accessed(variable)
    tensors = [
        t for t in tf.nest.flatten((args, kwargs), expand_composites=True) if tf.is_tensor(t)
    ]
    return bool(record.should_record_backprop([*tensors, *(v.handle for v in shown)]))
