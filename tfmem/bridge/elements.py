"""Elements of an iterator, taken before a step and handed to it by an iterator made for that.

    iterator --GetNext--> NumPy copies -> data set -> iterator that is passed to the step

The copies lie outside of TensorFlow's allocator. The data set copies them once more as they are
taken, so that in the step they have buffers that end with their last use, as those of the user's
own iterator have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.bridge.effects import Element

_ALIGNED = 64
"""Bytes of TensorFlow's own: tensors begin at multiples of them, others are a fatal error."""


class Supply:
    """What a step takes from an iterator, taken before it, to be handed out as often as needed."""

    def __init__(self, iterator: tf.Tensor, elements: Sequence[Element]) -> None:
        """Takes the next elements of an iterator, fewer if it ends before.

        Args:
          iterator: its handle.
          elements: what the step takes, at least one.
        """
        self._device, self._elements = iterator.device, elements
        self._values: list[list[Any]] = []
        with contextlib.suppress(tf.errors.OutOfRangeError), tf.device(self._device):
            for one in elements:
                components = tf.raw_ops.IteratorGetNext(
                    iterator=iterator, output_types=one.types, output_shapes=one.shapes
                )
                self._values.append([_kept(component) for component in components])

    @property
    def is_empty(self) -> bool:
        """Whether the iterator had ended, and so gives the step what it would."""
        return not self._values

    def iterator(self) -> tf.Tensor:
        """The handle of an iterator over what was taken; there must be something."""
        first = self._elements[0]
        with tf.device(self._device):
            handle = tf.raw_ops.AnonymousIteratorV3(
                output_types=first.types, output_shapes=first.shapes
            )
            one, *others = map(_components, self._values)
            dataset = tf.data.Dataset.from_tensors(one)
            for other in others:
                dataset = dataset.concatenate(tf.data.Dataset.from_tensors(other))
            copies = dataset.map(_copies).with_options(_on_demand())
            variant = tf.data.experimental.to_variant(copies)
            tf.raw_ops.MakeIterator(dataset=variant, iterator=handle)
        return handle


def _on_demand() -> tf.data.Options:
    """Each element is made as it is taken: to other data sets TensorFlow adds a `prefetch`."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return options


def _kept(component: tf.Tensor) -> Any:
    """A component as a NumPy array; as it is, if it is not made of numbers."""
    return component.numpy() if _is_number(component) else component


def _is_number(component: tf.Tensor) -> bool:
    return bool(component.dtype.is_numpy_compatible and component.dtype != tf.string)


def _components(values: Sequence[Any]) -> tuple[tf.Tensor, ...]:
    return tuple(tensor_of(value) if isinstance(value, np.ndarray) else value for value in values)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _copies(*components: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Components in buffers of the allocator."""
    return tuple(tf.raw_ops.DeepCopy(x=one) if _is_number(one) else one for one in components)


def tensor_of(array: np.ndarray[Any, Any]) -> tf.Tensor:
    """An array of numbers as a tensor, outside of TensorFlow's allocator where that can be."""
    buffer = np.empty(array.nbytes + _ALIGNED, np.uint8)
    begin = -buffer.ctypes.data % _ALIGNED
    aligned = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    try:
        return tf.experimental.dlpack.from_dlpack(aligned.__dlpack__())
    except (BufferError, ValueError, tf.errors.OpError):  # a type that has no such form
        return tf.constant(aligned)
