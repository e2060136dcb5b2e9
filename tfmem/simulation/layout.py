"""Which chunks of free memory are kept apart, so that the steps of plans find room.

Large buffers need large chunks, which the buffers between them break up; chunks of their own size
are the last that smaller ones take. Small buffers are served from pieces of their own. What is kept
apart has the size that is asked for, too: of another chunk that is less than twice as large all is
handed out, and counts as in use (a call of 220 MiB took the 300 that were left of a budget).

Where much more is free than steps take, each of their buffers has a chunk of its own size: hardly
anything is padded, and steps take the same each time.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tfmem.costs.types import GRAIN, HOLE, WALLS, Requests
from tfmem.simulation.allocation import Allocation
from tfmem.simulation.replay import Replay

LEAST_OWN = (1 / 1000, 1 / 300, 1 / 100, 1 / 50, 1 / 25, 1 / 10)
"""Of the bytes of chunks of their own for all buffers, those of the least buffer with one, tried in
turn. Less pads less and makes more chunks."""

PLENTY = 1 / 2
"""Part of the largest free chunk that chunks of their own take at most: what is left takes all that
no replay foresees. More pads less where less is free; a step was out of memory where they took
nearly all. Where those of all buffers take no more no other way is tried, for hardly one pads less.
"""

LEAST_SPARED = 1 / 50
"""Part of what steps take that chunks of their own spare at least where none are needed. Less keeps
chunks from others for hardly anything."""

LEAST_SLOT = 1 / 200
"""Of the free bytes, the least buffers that chunks are kept apart for. Less tries more ways."""

ALIKE = 0.85
"""Sizes within this factor count as one where chunks are kept apart. Nearer to 1 tries more."""

MOST_WAYS = 48
"""Ways to keep chunks apart that are tried. More find room for more plans, and take longer. Found
on plans of an EfficientNet, a GAN, a transformer at 0.7 to 0.35 of their peak: without any they
need up to 1.19 of the bytes in use to be free, with the best of 190 ways 1.15."""


def within(step: Replay, room: Sequence[int], steps: int, callers: int | None = None) -> Allocation:
    """Runs steps where only so many bytes are free, in chunks of these sizes by address.

    They fit if `layout` finds a way.

    Args:
      step, room, steps, callers: as for `Replay.within_apart`.
    """
    found = _best_fit([(step, steps)], room, callers)
    if found is None:
        pieces = (step.piece,) * step.pieces
        whole = step.within_apart(room, pieces, steps, callers=callers, to_the_end=True)
        return replace(whole, fits=False)
    _, (allocation,) = found
    return allocation


def layout(plans: Sequence[tuple[Replay, int]], room: Sequence[int]) -> tuple[int, ...] | None:
    """Chunks to be kept apart from the rest of the largest one, so that steps fit.

    Args:
      plans: the step of each that shares the room, one running at a time; how often it is replayed.
      room: bytes of each free chunk, by address.

    Returns:
      Bytes of each in the order of their addresses, pieces for small buffers first; None if no way
      was found. Where several were it is the first that takes no step more than its `most`.
    """
    found = _best_fit(plans, room)
    return found and found[0]


def _best_fit(
    plans: Sequence[tuple[Replay, int]], room: Sequence[int], callers: int | None = None
) -> tuple[tuple[int, ...], list[Allocation]] | None:
    """Chunks kept apart with which all plans fit, and what each takes then.

    Those with which none takes more than its `most`, else those with which that is exceeded least.
    Chunks of their own for all buffers are looked at even if none are needed: they may spare much.
    """
    best: tuple[tuple[int, ...], list[Allocation]] | None = None
    least = math.inf
    piece = min(step.piece for step, _ in plans)
    pieces = (piece,) * max(step.pieces for step, _ in plans)
    most = max(room, default=0) - sum(pieces) - GRAIN * (len(pieces) + WALLS + HOLE)
    own = _of_their_own([step for step, _ in plans], room)
    is_bounded = not any(math.isinf(step.most) for step, _ in plans)
    needed = 2 if own.are_for_all and is_bounded else 1
    for number, way in enumerate(_ways(plans, room, most, own), 1):
        apart, made = (*pieces, *way), list[Allocation]()
        for step, steps in plans:
            bound = (step.most + least) * (1.0 if least > 0 else 1 - LEAST_SPARED)
            made.append(step.within_apart(room, apart, steps, callers=callers, bound=bound))
            if not made[-1].fits or made[-1].worst_bytes >= bound:
                break
        else:
            both = zip(made, plans, strict=True)
            best, least = (apart, made), max(one.worst_bytes - step.most for one, (step, _) in both)
        if least <= 0 and number >= needed:
            return best
    return best


def _ways(
    plans: Sequence[tuple[Replay, int]], room: Sequence[int], most: int, own: _Own
) -> Iterator[tuple[int, ...]]:
    """The first ways of each plan that take no more than so many bytes, each once.

    Arguments that are made while a step runs, and their rows, have chunks of their own in each.
    """
    tried: set[tuple[int, ...]] = set()
    for step, _ in plans:
        ways = ((*step.rows, *step.ahead, *way) for way in _all_ways(step, room, own))
        ways = (way for way in ways if sum(way) + GRAIN * len(way) <= most)
        for way in itertools.islice(ways, MOST_WAYS):
            if way not in tried:
                tried.add(way)
                yield way


def _most_alive(asked: Requests, alike: float) -> dict[int, int]:
    """How many buffers of each size are alive at a time at most, the largest sizes first.

    Sizes within a factor count as the largest of them.
    """
    classes: list[int] = []
    class_of: dict[int, int] = {}
    for size in sorted({nbytes for _, nbytes in asked if nbytes > 0}, reverse=True):
        if not classes or size < alike * classes[-1]:
            classes.append(size)
        class_of[size] = classes[-1]
    alive, most = dict.fromkeys(classes, 0), dict.fromkeys(classes, 0)
    held: dict[int, int] = {}
    for number, nbytes in asked:
        if nbytes > 0:
            held[number] = size = class_of[nbytes]
            alive[size] += 1
            most[size] = max(most[size], alive[size])
        elif number in held:
            alive[held.pop(number)] -= 1
    return most


def _all_ways(step: Replay, room: Sequence[int], own: _Own) -> Iterator[tuple[int, ...]]:
    """Nothing apart; chunks of their own for the buffers of several steps; some chunks of one size,
    some of each of two sizes; the largest first.
    """
    yield ()
    yield from own.ways
    if own.are_for_all:
        return
    alive = _most_alive(step.requests, ALIKE)
    sizes = [size for size in alive if size >= LEAST_SLOT * sum(room)]
    several = [1, 2, 3, 4, 5, 6]
    for count, size in itertools.product(several, sizes[:6]):
        if count <= alive[size]:
            yield (size,) * count
    for count, size, more, other in itertools.product(several, sizes[:3], several, sizes[1:6]):
        if other < size and count <= alive[size] and more <= alive[other]:
            yield (size,) * count + (other,) * more


class _Own(NamedTuple):
    """Chunks of their own size for buffers that are alive at a time, for ever fewer of them.

    Attributes:
      ways: those that have room.
      are_for_all: whether the first of them are for all buffers.
    """

    ways: Sequence[tuple[int, ...]]
    are_for_all: bool


def _of_their_own(steps: Sequence[Replay], room: Sequence[int]) -> _Own:
    """For the buffers of several steps, one of which runs at a time."""
    alive, piece = Counter[int](), max(step.piece for step in steps)
    for step in steps:
        alive |= Counter(_most_alive(step.requests, alike=1.0))
    sizes = sorted((size for size in alive.elements() if size > piece), reverse=True)
    least = (part * sum(sizes) for part in LEAST_OWN)
    ways = [tuple(size for size in sizes if size > one) for one in least]
    fitting = [way for way in ways if way and sum(way) <= PLENTY * max(room, default=0)]
    return _Own(fitting, bool(fitting) and fitting[0] == ways[0])
