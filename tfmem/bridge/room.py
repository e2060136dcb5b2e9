"""How large a plan's sizes are, where calls of one trace differ: earlier plans', or somewhat more.

    sizes of earlier plans, those of a call -> those of the next plan

Exact sizes would be planned for again whenever one of them is a little more than ever before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from typing import Any, TypeGuard

import numpy as np
import tensorflow as tf

from tfmem.bridge.computing import Wanted
from tfmem.bridge.inputs import OpenShape, as_shape

GROWTHS: tuple[float, ...] = 1.25, 1.0, 0.0
"""How much more than its call needs a plan is made for, where calls differ: the first that has a
plan; with the last, which heeds no earlier ones, as much as it needs. More leaves memory unused,
less plans more often where sizes rise."""

_MOST = 2.0
"""Times what a call's arguments take that those of its plan may: beyond, it has one of its own.
More makes fewer plans, whose steps are slower for what is small."""


@dataclass(frozen=True)
class Before:
    """What the earlier plans of a trace were made for, and how much more than a call needs is had.

    Attributes:
      shapes: of the arguments, each size the most of any plan; none if there is no such plan.
      computed: of what was computed of arguments, likewise.
      growth: one of `GROWTHS`.
    """

    shapes: tuple[tuple[int, ...], ...] = ()
    computed: Mapping[Wanted, np.ndarray] = field(default_factory=dict)
    growth: float = GROWTHS[0]

    @staticmethod
    def of(
        shapes: Sequence[Sequence[OpenShape | None]],
        computed: Sequence[Mapping[Wanted, np.ndarray]],
        growth: float,
    ) -> Before:
        """What plans of one trace were made for: shapes, and what was computed, of each plan."""
        if not shapes or not growth:
            return NO_ROOM
        numbers = dict[Wanted, np.ndarray]()
        for wanted, found in (item for one in computed for item in one.items()):
            known = numbers.get(wanted, found)
            shape = tuple(map(max, known.shape, found.shape))
            numbers[wanted] = np.maximum(filled(known, shape), filled(found, shape))
        alike = [one for one in shapes if _are_alike(one, shapes[-1])]
        most = (tuple(map(max, *sizes, sizes[0])) for sizes in zip(*alike, strict=True))
        return Before(tuple(most), numbers, growth)

    def shapes_for(self, args: Sequence[Any]) -> Sequence[OpenShape | None]:
        """The shapes of arguments that a plan for a call is made for.

        They are those before if nothing is larger, else each size that differs grows.
        """
        own = tuple(as_shape(one.shape) for one in args)
        if not _are_alike(own, self.shapes):
            return own
        pairs = [tuple(zip(*both, strict=True)) for both in zip(own, self.shapes, strict=True)]
        growth = self.growth if any(now > then for one in pairs for now, then in one) else 0.0
        found = tuple(tuple(_grown(*sizes, growth) for sizes in one) for one in pairs)
        return found if are_near(found, own, args) else own

    def numbers_for(self, now: Mapping[Wanted, np.ndarray]) -> dict[Wanted, np.ndarray]:
        """What a plan is made for of what is computed of arguments, likewise."""
        pairs = {one: (numbers, self._known(one, numbers)) for one, numbers in now.items()}
        growth = self.growth if any(np.any(a > b) for a, b in pairs.values()) else 0.0
        grown = np.vectorize(partial(_grown, growth=growth), otypes=[np.int64])
        return {one: grown(*both).astype(both[0].dtype) for one, both in pairs.items()}

    def _known(self, wanted: Wanted, now: np.ndarray) -> np.ndarray:
        """What was computed before, as many numbers as now."""
        known = self.computed.get(wanted, now)
        return filled(known[tuple(map(slice, now.shape))], now.shape)


def filled(numbers: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Numbers with more of them, so many as in a shape, each as large as the largest."""
    if numbers.shape == tuple(shape):
        return numbers
    more = [(0, size - own) for size, own in zip(shape, numbers.shape, strict=True)]
    return np.pad(numbers, more, constant_values=numbers.max(initial=0))


def _grown(now: int, before: int, growth: float) -> int:
    return now if now == before else max(now, before, ceil(now * growth))


NO_ROOM = Before(growth=GROWTHS[-1])
"""Where there is no plan before, or none is heeded."""


def _are_alike(
    shapes: Sequence[OpenShape | None], others: Sequence[OpenShape | None]
) -> TypeGuard[Sequence[tuple[int, ...]]]:
    """Whether shapes have sizes, and as many as others."""
    are_sized = not any(shape is None or None in shape for shape in shapes)
    return are_sized and [len(one or ()) for one in shapes] == [len(one or ()) for one in others]


def have_sizes(args: Iterable[Any]) -> bool:
    """Whether all arguments have a size: they are no handles, and their shapes are known."""
    return all(a.dtype != tf.resource and a.shape.is_fully_defined() for a in args)


def are_within(shapes: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether no dimension of shapes that have sizes is larger than in others."""
    pairs = zip(shapes, others, strict=True)
    return all(now <= most for pair in pairs for now, most in zip(*pair, strict=True))


def are_equal(args: Iterable[Any], shapes: Iterable[OpenShape | None]) -> bool:
    """Whether arguments have such shapes."""
    return all(as_shape(one.shape) == shape for one, shape in zip(args, shapes, strict=True))


def are_near(shapes: Iterable[Any], others: Iterable[Any], args: Iterable[Any]) -> bool:
    """Whether arguments of such shapes take no more than `_MOST` times those of others."""
    sizes = [one.dtype.size or 1 for one in args]
    taken, most = (
        sum(prod(shape) * size for shape, size in zip(of, sizes, strict=True))
        for of in (shapes, others)
    )
    return bool(taken <= _MOST * most)
