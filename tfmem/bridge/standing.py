"""What stands for values that depend on data (see `bounds`, which makes it)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfmem.bridge.ends import Limits
from tfmem.bridge.graphdefs import value_of
from tfmem.bridge.inputs import placeholder_name
from tfmem.bridge.nesting import Span
from tfmem.bridge.tensors import constant, full, whole_numbers
from tfmem.graph.ir import Value
from tfmem.graph.scalars import spanning

_ROWS = {
    "TensorListFromTensor": 0,
    "TensorListScatter": 0,
    "TensorListScatterV2": 0,
    "TensorListScatterIntoExistingList": 1,
    "TensorListSplit": 2,
}
"""Ops that put the rows of a tensor in a list; which input has as many rows."""


@dataclass(frozen=True)
class Bounds:
    """What stands for values that depend on data.

    Attributes:
      most: tensors of the largest shapes, or of the greatest numbers.
      least: of the smallest, where these are others and known.
    """

    most: Mapping[Value, tf.Tensor]
    least: Mapping[Value, tf.Tensor]

    def late(self, tensor: tf.Tensor) -> tf.Tensor:
        """What stands for a tensor if it depends on data."""
        return self.most.get(value_of(tensor), tensor)

    def span(self, value: Value) -> Span | None:
        """The most and the least that a value's whole numbers are, if they depend on data."""
        if value not in self.most:
            return None
        most, least = (
            whole_numbers(one.get(value, self.most[value])) for one in (self.most, self.least)
        )
        return None if most is None or least is None else (most, least)

    def given(self, values: Sequence[Value], same: Collection[int]) -> Limits:
        """Those of values that a function is given in this order.

        Args:
          values: of this function.
          same: places of those that are the same in each run of it; the others have sizes alone.
        """
        numbers, sizes = {}, {}
        for place, value in enumerate(values):
            name = Value(placeholder_name(place))
            if place in same and (span := self.span(value)) is not None:
                numbers[name] = span
            elif value in self.least:
                most, least = full(self.most[value].shape), full(self.least[value].shape)
                if most is not None and least is not None and most != least:
                    sizes[name] = most, least
        return Limits(numbers, sizes)

    def number(self, op: tf.Operation) -> int | None:
        """The number that an op gives, if it is known; how many rows one that lists some."""
        if op.type in _ROWS:
            shape = self.late(op.inputs[_ROWS[op.type]]).shape
            return int(shape[0]) if shape.rank and shape[0] is not None else None
        if len(op.outputs) != 1 or op.outputs[0].shape.num_elements() != 1:
            return None
        most = constant(self.late(op.outputs[0]))
        least = self.least.get(value_of(op.outputs[0]))
        if not most or least is None:
            return most[0] if most else None
        return spanning([most[0], *(constant(least) or ())])
