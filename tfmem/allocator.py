"""TensorFlow's best-fit allocator with coalescing (BFC), replayed over lifetimes.

The allocator counts chunks, not requests. A free chunk that fits is split only if it is at least
twice the request or 128 MiB larger; otherwise all of it is handed out, so that what is *in use* can
exceed what was asked for (a small CNN with 123 MB of tensors: 132 MB predicted, 127 to 134 measured
in successive steps). How much depends on where everything lies, and that on what came before:
`replay` runs several steps in a row.

Source: `xla/tsl/framework/bfc_allocator.cc` (`FindChunkPtr`, `Extend`, `Merge`), TensorFlow 2.21.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tfmem.liveness import Lifetimes

Array = npt.NDArray[np.int64]

_MOST_PADDING = 128 * 2**20
_FIRST_REGION = 2 * 2**20


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
    region: int = _FIRST_REGION
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
        if chunk.size >= 2 * size or chunk.size - size >= _MOST_PADDING:
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
      peak_bytes: most bytes in use, as `get_memory_info` counts them.
      reserved_bytes: bytes of all regions at the end.
      fits: whether a limit, if there is one, was enough.
      timeline: bytes in use while each node of the order runs, in the worst step.
    """

    peak_bytes: int
    reserved_bytes: int
    fits: bool
    timeline: Array


def replay(
    lifetimes: Lifetimes,
    workspace: Array,
    pieces: Sequence[int] = (),
    *,
    limit: int | None = None,
    steps: int = 20,
) -> Allocation:
    """Runs some steps in the allocator.

    Function inputs and variables are allocated before the first step. A variable that was given
    another buffer keeps it for the next step, with all of its padding. A node's workspace is
    allocated after its outputs and freed before its inputs.

    Args:
      lifetimes: when each buffer begins and ends.
      workspace: bytes each node of the order holds while it runs.
      pieces: in how many buffers; default: one.
      limit: the allocator's hard limit, which it has claimed at once.
      steps: how many; padding differs from one to the next.
    """
    pool = Bfc(limit)
    sizes = lifetimes.nbytes.tolist()
    held: dict[int, _Chunk] = {}
    begins: list[list[int]] = [[] for _ in range(max(1, len(lifetimes.program.order)))]
    ends: list[list[int]] = [[] for _ in begins]
    renewed = {before: after for before, after in lifetimes.variables if before != after}
    outlive = set(renewed.values())
    for b in np.flatnonzero(~lifetimes.on_host & (lifetimes.nbytes > 0)).tolist():
        is_given = lifetimes.is_input(b) and lifetimes.start[b] == 0 and b not in outlive
        if is_given:
            held[b] = pool.allocate(sizes[b])
        else:
            begins[lifetimes.start[b]].append(b)
        if b not in outlive and (not is_given or b in renewed):
            ends[lifetimes.end[b]].append(b)
    most = np.zeros(len(begins), np.int64)
    counts = pieces or [1] * len(begins)
    scratch = [
        [nbytes // count] * count for nbytes, count in zip(workspace.tolist(), counts, strict=True)
    ]
    for _ in range(steps):
        timeline = np.array(_step(pool, held, sizes, scratch, begins, ends), np.int64)
        most = timeline if timeline.max() > most.max() else most
        for before, after in renewed.items():
            if after in held and sizes[before]:
                held[before] = held.pop(after)
            elif after in held:  # a variable of the caller, which counts it
                pool.release(held.pop(after))
    return Allocation(int(most.max()), pool.reserved, pool.fits, most)


def _step(
    pool: Bfc,
    held: dict[int, _Chunk],
    sizes: list[int],
    scratch: list[list[int]],
    begins: list[list[int]],
    ends: list[list[int]],
) -> list[int]:
    timeline = []
    for starting, ending, extra in zip(begins, ends, scratch, strict=True):
        for b in starting:
            held[b] = pool.allocate(sizes[b])
        chunks = [pool.allocate(size) for size in extra if size]
        timeline.append(pool.in_use)
        for chunk in chunks:
            pool.release(chunk)
        for b in ending:
            pool.release(held.pop(b))
    return timeline
