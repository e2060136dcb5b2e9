"""TensorFlow's best-fit allocator with coalescing (BFC), replayed over lifetimes.

The allocator counts chunks, not requests. A free chunk that fits is split only if it is at least
twice the request or 128 MiB larger; otherwise all of it is handed out, so that what is *in use* can
exceed what was asked for (a small CNN with 123 MB of tensors: 132 MB predicted, 127 to 134 measured
in successive steps). How much depends on where everything lies, and that on what came before:
`replay` runs several steps in a row.

Source: `xla/tsl/framework/bfc_allocator.cc` (`FindChunkPtr`, `Extend`, `Merge`), TensorFlow 2.21.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tfmem.costs.types import GRAIN, SWITCH, Asked
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.requests import on_device, requests

MOST_PADDING = 128 * 2**20
"""Bytes of TensorFlow's own: most that a chunk may be larger than what it is handed out for."""

FIRST_REGION = 2 * 2**20
"""Bytes of TensorFlow's own: the first region of an allocator that grows."""

# Constants of the replay; what others do to predictions is measured by
# `python -m models.bench.constants` (docs/measured/constants.md).

USUAL = 0.9
"""Part of the steps of the first process whose peaks are within the predicted one. Runs are
measured by their largest step of a few; nearer to 1 predicts what is rarely seen."""

LARGE_HOLES = 6
"""Large holes that what ran before has left, in all processes but the first. More refuse more plans
under a hard limit. Would change if real layouts were recorded."""

SMALL_HOLES, SMALL_HOLE_SIZES = 16, tuple(GRAIN << shift for shift in range(7))
"""Small holes of each size (bytes) that building a model leaves. Without them small tensors break
up large free chunks more than was measured: a ResNet-50 was predicted 3 % too high. Would change
if real layouts were recorded."""


@dataclass(slots=True)
class _Chunk:
    begin: int
    size: int
    is_free: bool = True
    before: _Chunk | None = None
    after: _Chunk | None = None


@dataclass(slots=True)
class Bfc:
    """An allocator that takes its limit as one region, or without one grows by regions.

    Each of the latter is twice as large as the one before.

    Attributes:
      limit: bytes of the only region; None for no limit.
      fits: whether every request could be served within the limit (all are served here).
      in_use: bytes of all chunks handed out.
      reserved: bytes of all regions.
    """

    limit: int | None = None
    fits: bool = True
    in_use: int = 0
    reserved: int = 0
    region: int = FIRST_REGION
    free: list[tuple[int, int]] = field(default_factory=list)  # (size, address), best fit first
    chunks: dict[int, _Chunk] = field(default_factory=dict)  # free ones by address

    def __post_init__(self) -> None:
        if self.limit is not None:
            self._insert(_Chunk(1, self.limit))
            self.reserved = self.limit

    def allocate(self, size: int) -> _Chunk:
        """The smallest free chunk of at least `size` bytes, the lowest of those."""
        place = bisect_left(self.free, (size, 0))
        if place == len(self.free):
            self._extend(size)
            place = bisect_left(self.free, (size, 0))
        _, begin = self.free.pop(place)
        chunk = self.chunks.pop(begin)
        if chunk.size >= 2 * size or chunk.size - size >= MOST_PADDING:
            rest = _Chunk(begin + size, chunk.size - size, True, chunk, chunk.after)
            if rest.after is not None:
                rest.after.before = rest
            chunk.size, chunk.after = size, rest
            self._insert(rest)
        chunk.is_free = False
        self.in_use += chunk.size
        return chunk

    def release(self, chunk: _Chunk) -> None:
        """Frees a chunk and joins it with free neighbours."""
        self.in_use -= chunk.size
        chunk.is_free = True
        for neighbour in (chunk.after, chunk.before):
            if neighbour is not None and neighbour.is_free:
                self._remove(neighbour)
                first, second = sorted((chunk, neighbour), key=lambda c: c.begin)
                first.size += second.size
                first.after = second.after
                if first.after is not None:
                    first.after.before = first
                chunk = first
        self._insert(chunk)

    def _extend(self, size: int) -> None:
        if self.limit is not None:
            self.fits = False
            self._grow(size)
            return
        is_larger = False
        while size > self.region:
            self.region *= 2
            is_larger = True
        self._grow(self.region)
        if not is_larger:
            self.region *= 2

    def _grow(self, size: int) -> None:
        # Regions are not joined with one another: the addresses leave a gap.
        self._insert(_Chunk(2 * self.reserved + 1, size))
        self.reserved += size

    def _insert(self, chunk: _Chunk) -> None:
        insort(self.free, (chunk.size, chunk.begin))
        self.chunks[chunk.begin] = chunk

    def _remove(self, chunk: _Chunk) -> None:
        del self.free[bisect_left(self.free, (chunk.size, chunk.begin))]
        del self.chunks[chunk.begin]


@dataclass(frozen=True)
class Allocation:
    """What a program takes in the allocator.

    Attributes:
      worst_bytes: most bytes in use, as `get_memory_info` counts them, in any of the steps.
      usual_bytes: the most in nine steps of ten of the first process: the padding differs from step
        to step.
      reserved_bytes: bytes of all regions at the end.
      fits: whether a limit, if there is one, was enough.
    """

    worst_bytes: int
    usual_bytes: int
    reserved_bytes: int
    fits: bool


def processes(lifetimes: Lifetimes, limit: int | None = None, count: int = 1) -> Iterator[Bfc]:
    """Allocators of processes that have built a model, and but for the first run others before.

    Args:
      lifetimes: of what is to run there next; what ran before had tensors of such sizes, and small
        ones of less than a thousandth of the largest.
      limit: the allocators' hard limit, which they have claimed at once.
      count: how many.
    """
    sizes = lifetimes.nbytes.tolist()
    most = max(sizes, default=0) if limit is None else limit // (2 * LARGE_HOLES)
    sizes = [size for size in sizes if GRAIN <= size <= most] or [GRAIN]
    for seed in range(count):
        choose, pool = random.Random(seed), Bfc(limit)
        holes = [
            size for size in SMALL_HOLE_SIZES for _ in range(SMALL_HOLES) if size * 1024 < most
        ]
        if seed:
            holes += [choose.choice(sizes) for _ in range(LARGE_HOLES)]
        _leave_holes(pool, holes)
        yield pool


def _leave_holes(pool: Bfc, holes: Sequence[int]) -> None:
    """Leaves holes with small chunks in use between them."""
    made = []
    for size in holes:
        made.append(pool.allocate(size))
        pool.allocate(GRAIN)
    for hole in made:
        pool.release(hole)


def replay(
    lifetimes: Lifetimes,
    workspace: Sequence[int],
    within: Mapping[int, Asked],
    pools: Iterable[Bfc],
    steps: int,
) -> Allocation:
    """Runs some steps in each of some allocators.

    Function inputs and variables are allocated before the first step. A variable that was given
    another buffer keeps it for the next step, with all of its padding.

    Args:
      lifetimes: when each buffer begins and ends.
      workspace, within: as for `requests`.
      pools: the allocators, that of the usual process first; what is in use there does not count.
      steps: how many in each; padding differs from one to the next.
    """
    step, pools = _Step(lifetimes, workspace, within), list(pools)
    peaks = [step.run(pool, steps) for pool in pools]
    usual = int(np.quantile(peaks[0], USUAL, method="higher"))
    worst = max(map(max, peaks))
    return Allocation(worst, usual, pools[0].reserved, all(pool.fits for pool in pools))


class _Step:
    """One step of a program, to be run in allocators, any number of times in each."""

    def __init__(
        self, lifetimes: Lifetimes, workspace: Sequence[int], within: Mapping[int, Asked]
    ) -> None:
        sizes = self.sizes = lifetimes.nbytes.tolist()
        pairs = lifetimes.variables
        self.renewed = {old: new for old, new in pairs if old != new and sizes[old]}
        outlive = set(self.renewed.values())
        self.given = [
            b
            for b in on_device(lifetimes)
            if lifetimes.is_input(b) and not lifetimes.start[b] and b not in outlive
        ]
        held = set(self.given)
        kept = outlive | (held - self.renewed.keys())
        self.requests = requests(lifetimes, workspace, within, held=held, kept=kept)
        self.callers = [old for old, _ in pairs if old in held and old not in self.renewed]

    def run(self, pool: Bfc, steps: int) -> list[int]:
        """Most bytes in use in each step, beside what was there before."""
        before = pool.in_use
        chunks = {b: pool.allocate(self.sizes[b]) for b in self.given}
        variables: dict[int, deque[int]] = {}  # by size
        for b in self.callers:
            variables.setdefault(self.sizes[b], deque()).append(b)
        peaks = []
        for _ in range(steps):
            peaks.append(self._most(pool, chunks, variables) - before)
            for old, new in self.renewed.items():
                if new in chunks:
                    chunks[old] = chunks.pop(new)
        return peaks

    def _most(
        self, pool: Bfc, chunks: dict[int, _Chunk], variables: Mapping[int, deque[int]]
    ) -> int:
        """Serves one step's requests; most bytes in use meanwhile.

        Which variable adopts a buffer is not known here: those of its size take turns.
        """
        most, requested = pool.in_use, {}
        for number, nbytes in self.requests:
            if nbytes > 0:
                chunks[number], requested[number] = pool.allocate(nbytes), nbytes
                most = max(most, pool.in_use)
                continue
            like = variables.get(requested.get(number, 0)) if nbytes == SWITCH else None
            if like:
                like.rotate()
                chunks[like[0]], chunks[number] = chunks[number], chunks[like[0]]
            pool.release(chunks.pop(number))
        return most
