"""What is known of a tensor in a graph before a step runs: its shape, and few whole numbers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import tensor_util

from tfmem.bridge.inputs import Input, as_shape, handle_of
from tfmem.bridge.shapes import Shape

MAX_CONSTANT = 64
"""Most elements of `whole_numbers`."""


def argument(name: str, tensor: tf.Tensor, *, is_same: bool = True) -> Input:
    """What a function is given: with its value where that is known and each run has the same."""
    value = whole_numbers(tensor) if is_same else None
    return Input(name, tensor.dtype, handle_of(tensor), as_shape(tensor.shape), value=value)


def full(shape: tf.TensorShape) -> Shape | None:
    """A shape without open dimensions; None if it has some."""
    return tuple(shape) if shape.is_fully_defined() else None


def constant(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """`whole_numbers`, flattened."""
    value = whole_numbers(tensor)
    return None if value is None else tuple(int(n) for n in value.reshape(-1))


def whole_numbers(tensor: tf.Tensor) -> np.ndarray | None:
    """Value of a small tensor of integers or truths that is known before the step runs."""
    if not (tensor.dtype.is_integer or tensor.dtype.is_bool) or not tensor.shape.is_fully_defined():
        return None
    if tensor.shape.num_elements() > MAX_CONSTANT:
        return None
    value = tensor_util.constant_value(tensor)
    found = tensor_util.try_evaluate_constant(tensor) if value is None else value
    return None if found is None else np.asarray(found)


def counted(tensor: tf.Tensor) -> int | None:
    """How many numbers a tensor has, if they are 0, 1, 2 and so on."""
    while tensor.op.type in ("Reshape", "Identity"):
        tensor = tensor.op.inputs[0]
    count = tensor.shape.num_elements()
    if tensor.op.type == "Range":
        begin, _, step = map(constant, tensor.op.inputs)
        is_counted = (begin, step) == ((0,), (1,))
    else:
        found = tensor_util.constant_value(tensor)
        is_counted = found is not None and np.array_equal(found.ravel(), np.arange(count))
    return count if is_counted else None
