"""Tell calls apart that a tf.function would trace apart, in microseconds."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.bridge import handles
from tfmem.bridge.calls import trace_type_of
from tfmem.runtime import chunks
from tfmem.runtime.heap import LEAST_CHUNK


def signature_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """A key that is equal for calls of one input signature.

    Tensors and arrays count by dtype and shape, ragged and sparse ones by those of their parts,
    variables and objects by identity, other values by value, as tf.function has it; large tensors
    also by whether a GPU has them.
    """
    return _key(args), _key(kwargs) if kwargs else ()


def _key(item: Any) -> Hashable:
    if isinstance(item, tf.Tensor):
        shape = item.shape
        return item.dtype, tuple(shape) if shape.rank is not None else None, _is_on_gpu(item)
    if isinstance(item, (str, bytes)):  # np.str_ is an array besides
        return type(item), item
    if isinstance(item, (np.ndarray, np.generic)):  # np.float64 is a float besides
        return "array", item.dtype.str, item.shape
    if item is None or isinstance(item, (bool, int, float, complex)):
        return type(item), item if item == item else "NaN"  # which equals nothing, not even itself
    if isinstance(item, (tuple, list)):
        return (type(item), *map(_key, item))
    if isinstance(item, Mapping):
        return (type(item), *((name, _key(value)) for name, value in item.items()))
    return _object_key(item)


def _is_on_gpu(tensor: Any) -> bool:
    """Whether a GPU's memory has a large tensor, of which a step then holds no copy of its own."""
    return chunks.kind_of(tensor) == "GPU" and chunks.nbytes_of(tensor) >= LEAST_CHUNK


def _object_key(item: Any) -> Hashable:
    if isinstance(item, tf.Variable):
        return "variable", handles.identity(item)  # an id may be used again
    if isinstance(item, tf.TensorShape):
        return "shape", None if item.rank is None else tuple(item)
    if hasattr(item, "__tf_flatten__"):  # a class of which some fields are traced
        static, traced = item.__tf_flatten__()
        return type(item), _key(static), _key(traced)
    parts = tf.nest.flatten(item, expand_composites=True)
    if len(parts) != 1 or parts[0] is not item:
        return _spec_of(item), *map(_key, parts)
    if hasattr(item, "__array__"):  # a variable of Keras 3, a column of a table: a tensor is made
        found = item if hasattr(item, "dtype") and hasattr(item, "shape") else np.asarray(item)
        return "array", str(found.dtype), tuple(found.shape)
    if type(item).__hash__ is None:  # it says itself what it is traced as, or TensorFlow refuses it
        return trace_type_of(item)
    try:
        return weakref.ref(item)
    except TypeError:
        return type(item), item


def _spec_of(item: Any) -> Hashable:
    """What a value of several parts is, beside these."""
    try:
        spec: Hashable = tf.type_spec_from_value(item)
    except TypeError:  # a class whose fields tf.function takes apart
        spec = type(item).__qualname__
    return spec
