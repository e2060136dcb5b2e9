"""The most and the least that an output can be, as tensors that stand for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfmem.bridge import shapes
from tfmem.bridge.inputs import UNSIZED, Input, handle_of, placeholder, placeholder_name
from tfmem.bridge.nesting import Span
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import MAX_CONSTANT, whole_numbers
from tfmem.graph.ir import Value


class Ends(NamedTuple):
    """What an output can be.

    Attributes:
      most: the most; None where that is not known.
      least: the least; None where that is not known, or the same.
      source: what it follows in a straight line, and falls where that rises, perhaps.
      at: what it is at the two ends of the source.
    """

    most: tf.Tensor | None = None
    least: tf.Tensor | None = None
    source: Value | None = None
    at: tuple[tf.Tensor, tf.Tensor] | None = None


@dataclass(frozen=True)
class Limits:
    """The most and the least of what a graph is given, or takes out of lists.

    Attributes:
      numbers: of whole numbers, by their values.
      sizes: of shapes, by values of graphs that `import_graph` makes: the largest and the smallest.
    """

    numbers: Mapping[Value, Span] = field(default_factory=dict)
    sizes: Mapping[Value, tuple[Shape, Shape]] = field(default_factory=dict)

    def opened(self, inputs: Sequence[Input]) -> list[Input]:
        """A graph's inputs, with open dimensions where their sizes differ."""
        found = [self.sizes.get(Value(placeholder_name(i))) for i in range(len(inputs))]
        return [
            one if ends is None else replace(one, shape=_where_equal(*ends))
            for one, ends in zip(inputs, found, strict=True)
        ]


def _where_equal(most: Shape, least: Shape) -> tuple[int | None, ...]:
    return tuple(a if a == b else None for a, b in zip(most, least, strict=True))


NO_LIMITS = Limits()
"""Where nothing that a graph is given depends on data."""


def ends_of(
    like: tf.Tensor,
    found: Sequence[tf.Tensor | None],
    more: Sequence[int] = (),
    source: Value | None = None,
) -> Ends:
    """The most and the least of some tensors.

    Args:
      like: what they stand for.
      found: those, of which some could not be made.
      more: numbers that it may be, too.
      source: as of `Ends`, if there are two.
    """
    made = [tensor for tensor in found if tensor is not None]
    if not made:
        return Ends()
    at = (made[0], made[-1]) if source else None
    if is_number(like):
        numbers = [whole_numbers(tensor) for tensor in made]
        known = [one for one in numbers if one is not None]
        if len(known) < len(numbers):
            return Ends(made[0])
        known += [np.full_like(known[0], one) for one in more]
        most, least = np.maximum.reduce(known), np.minimum.reduce(known)
        if np.array_equal(most, least):
            return Ends(tf.constant(most))
        return Ends(tf.constant(most), tf.constant(least), source, at)
    sizes = [tuple(tensor.shape) for tensor in made]
    if len(made) < len(found) and like.shape.rank is not None:
        sizes.append(tuple(size or 0 for size in like.shape))
    greatest = shapes.holding_all(sizes)
    if greatest is None:
        return Ends(found[0])
    smallest = tuple(map(min, zip(*sizes, strict=True)))
    if smallest == greatest:
        return Ends(_one_of(made, like, greatest))
    return Ends(_one_of(made, like, greatest), _one_of(made, like, smallest), source, at)


def between_numbers(like: tf.Tensor, most: int, least: int) -> Ends:
    """The ends of whole numbers each of which lies between two."""
    found = [tf.fill(tuple(like.shape), tf.constant(one, like.dtype)) for one in (most, least)]
    return ends_of(like, found)


def _one_of(made: Iterable[tf.Tensor], like: tf.Tensor, shape: Shape) -> tf.Tensor | None:
    """One of some tensors that has a shape, or what stands for one that has it."""
    found = [tensor for tensor in made if tuple(tensor.shape) == shape]
    return found[0] if found else of_shape(like, shape)


def is_open(tensor: tf.Tensor) -> bool:
    """Whether a tensor has a size that is not known."""
    return tensor.dtype not in UNSIZED and not tensor.shape.is_fully_defined()


def is_number(tensor: tf.Tensor) -> bool:
    """Whether a tensor is of few whole numbers, so that sizes may be made of it."""
    count = tensor.shape.num_elements()
    is_whole = tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(is_whole and count is not None and count <= MAX_CONSTANT)


def of_shape(like: tf.Tensor, shape: Shape | None) -> tf.Tensor | None:
    """What stands for a tensor of a shape, if that is known."""
    return None if shape is None or like.dtype in UNSIZED else shaped_like(like, shape)


def shaped_like(tensor: tf.Tensor, shape: Shape) -> tf.Tensor:
    """What stands for a tensor of a shape."""
    return placeholder(Input(tensor.op.name, tensor.dtype, handle_of(tensor), shape))
