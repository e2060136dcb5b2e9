"""TensorFlow's best-fit allocator with coalescing (BFC).

The allocator counts chunks, not requests. A free chunk that fits is split only if it is at least
twice the request or 128 MiB larger; otherwise all of it is handed out, so that what is *in use* can
exceed what was asked for (a small CNN with 123 MB of tensors: 132 MB predicted, 127 to 134 measured
in successive steps).

Source: `xla/tsl/framework/bfc_allocator.cc` (`FindChunkPtr`, `Extend`, `Merge`), TensorFlow 2.21.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tfmem.costs.types import GRAIN, HOLE, WALLS

MOST_PADDING = 128 * 2**20
"""Bytes of TensorFlow's own: most that a chunk may be larger than what it is handed out for."""

FIRST_REGION = 2 * 2**20
"""Bytes of TensorFlow's own: the first region of an allocator that grows."""


class NoRoom(Exception):
    """A request found no free chunk that takes it."""


@dataclass(slots=True)
class Chunk:
    """Bytes side by side, handed out or free."""

    begin: int
    size: int
    is_free: bool = True
    before: Chunk | None = None
    after: Chunk | None = None


@dataclass(slots=True)
class Bfc:
    """An allocator that has so many free chunks and no more, or grows by regions.

    Each of the latter is twice as large as the one before.

    Attributes:
      room: bytes of its free chunks, by address; None if it grows.
      fits: whether the room was enough for every request; those for which it was not are served.
      raises: whether the next one for which it is not raises `NoRoom` instead.
      in_use: bytes of all chunks handed out.
      reserved: bytes of all regions.
    """

    room: Sequence[int] | None = None
    fits: bool = True
    raises: bool = False
    in_use: int = 0
    reserved: int = 0
    region: int = FIRST_REGION
    free: list[tuple[int, int, Chunk]] = field(default_factory=list)
    """Free chunks behind their sizes and addresses, best fit first."""

    def __post_init__(self) -> None:
        for size in self.room or ():
            self.add(size)

    def add(self, size: int) -> None:
        """Adds a free chunk that is next to no other: addresses leave a gap between regions."""
        self._insert(Chunk(2 * self.reserved + 1, size))
        self.reserved += size

    def given(self, *sizes: int) -> list[Chunk]:
        """Chunks in use that are side by side, and next to no other."""
        chunks: list[Chunk] = []
        begin = 2 * self.reserved + 1
        for size in sizes:
            chunks.append(Chunk(begin, size, is_free=False))
            begin += size
        for one, other in itertools.pairwise(chunks):
            one.after, other.before = other, one
        self.reserved += sum(sizes)
        self.in_use += sum(sizes)
        return chunks

    def place(self, free: Mapping[int, int], used: Mapping[int, int]) -> list[Chunk]:
        """Chunks by address and bytes: those that are free, and those in use, which it returns."""
        made = [Chunk(*one) for one in sorted((*free.items(), *used.items()))]
        for one, other in itertools.pairwise(made):
            if one.begin + one.size == other.begin:
                one.after, other.before = other, one
        by_address = {chunk.begin: chunk for chunk in made}
        for begin in used:
            by_address[begin].is_free = False
        for begin in free:
            self._insert(by_address[begin])
        self.in_use += sum(used.values())
        return [by_address[begin] for begin in used]

    def has(self, size: int) -> bool:
        """Whether a free chunk takes a request of so many bytes."""
        return bool(self.free) and self.free[-1][0] >= size

    def allocate(self, size: int) -> Chunk:
        """The smallest free chunk of at least `size` bytes, the lowest of those."""
        place = bisect_left(self.free, (size, 0))
        if place == len(self.free):
            self._extend(size)
            place = bisect_left(self.free, (size, 0))
        chunk = self.free.pop(place)[2]
        if chunk.size >= 2 * size or chunk.size - size >= MOST_PADDING:
            rest = Chunk(chunk.begin + size, chunk.size - size, True, chunk, chunk.after)
            if rest.after is not None:
                rest.after.before = rest
            chunk.size, chunk.after = size, rest
            self._insert(rest)
        chunk.is_free = False
        self.in_use += chunk.size
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Frees a chunk and joins it with free neighbours."""
        self.in_use -= chunk.size
        chunk.is_free = True
        if (after := chunk.after) is not None and after.is_free:
            self._remove(after)
            _join(chunk, after)
        if (before := chunk.before) is not None and before.is_free:
            self._remove(before)
            _join(before, chunk)
            chunk = before
        self._insert(chunk)

    def release_all(self, chunks: Iterable[Chunk]) -> None:
        """Frees chunks one after the other."""
        for chunk in chunks:
            self.release(chunk)

    @property
    def free_places(self) -> tuple[tuple[int, int], ...]:
        """Bytes and address of each free chunk."""
        return tuple((size, begin) for size, begin, _ in self.free)

    def leave_holes(self, sizes: Sequence[int]) -> None:
        """Leaves free chunks of these sizes with small ones in use between them."""
        made = []
        for size in sizes:
            made.append(self.allocate(size))
            self.allocate(GRAIN)
        self.release_all(made)

    def _extend(self, size: int) -> None:
        if self.room is not None:
            self.fits = False
            if self.raises:
                raise NoRoom
            self.add(size)
            return
        is_larger = False
        while size > self.region:
            self.region *= 2
            is_larger = True
        self.add(self.region)
        if not is_larger:
            self.region *= 2

    def _insert(self, chunk: Chunk) -> None:
        insort(self.free, (chunk.size, chunk.begin, chunk))

    def _remove(self, chunk: Chunk) -> None:
        del self.free[bisect_left(self.free, (chunk.size, chunk.begin))]


def _join(first: Chunk, second: Chunk) -> None:
    """Makes two neighbours one, the first."""
    first.size += second.size
    first.after = second.after
    if first.after is not None:
        first.after.before = first


def parted(
    room: Sequence[int], apart: Sequence[int], kept: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Bytes of what each free chunk becomes, by address, as some are kept apart in the largest.

    Of several that are as large it is the last.

    Args:
      room: bytes of each free chunk before, by address; walls at both ends take a part of it.
      apart: of those that are kept apart, at the beginning of the largest chunk.
      kept: those of them that are not free.
    """
    largest = max(range(len(room)), key=lambda number: (room[number], number), default=-1)
    for number, nbytes in enumerate(room):
        left, parts = nbytes - WALLS * GRAIN, list[int]()
        if number == largest:
            parts += (Counter(apart) - Counter(kept)).elements()
            left -= HOLE * GRAIN + sum(apart) + GRAIN * len(apart)
        yield (*parts, *((left // GRAIN * GRAIN,) if left >= GRAIN else ()))
