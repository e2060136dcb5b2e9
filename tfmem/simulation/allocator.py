"""TensorFlow's best-fit allocator with coalescing (BFC).

The allocator counts chunks, not requests. A free chunk that fits is split only if it is at least
twice the request or 128 MiB larger; otherwise all of it is handed out, so that what is *in use* can
exceed what was asked for (a small CNN with 123 MB of tensors: 132 MB predicted, 127 to 134 measured
in successive steps).

Source: `xla/tsl/framework/bfc_allocator.cc` (`FindChunkPtr`, `Extend`, `Merge`), TensorFlow 2.21.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tfmem.costs.types import GRAIN, HOLE, WALLS

try:
    from tfmem.simulation._best_fit import BestFit, Chunk
except ImportError:
    from tfmem.simulation.best_fit import BestFit, Chunk

__all__ = ["IS_COMPILED", "Bfc", "Chunk", "NoRoom", "parted"]

IS_COMPILED = BestFit.__module__.endswith("._best_fit")
"""Whether there was a compiler where tfmem was installed."""

FIRST_REGION = 2 * 2**20
"""Bytes of TensorFlow's own: the first region of an allocator that grows."""


class NoRoom(Exception):
    """A request found no free chunk that takes it."""


class Bfc(BestFit):
    """An allocator that has so many free chunks and no more, or grows by regions.

    Each of the latter is twice as large as the one before.

    Attributes:
      room: bytes of its free chunks, by address; None if it grows.
      fits: whether the room was enough for every request; those for which it was not are served.
      raises: whether the next one for which it is not raises `NoRoom` instead.
      reserved: bytes of all regions.
    """

    __slots__ = ("_region", "fits", "raises", "reserved", "room")

    def __init__(self, room: Sequence[int] | None = None, *, raises: bool = False) -> None:
        super().__init__()
        self.room, self.raises = room, raises
        self.fits, self.reserved, self._region = True, 0, FIRST_REGION
        for size in room or ():
            self.add(size)

    def add(self, size: int) -> None:
        """Adds a free chunk that is next to no other: addresses leave a gap between regions."""
        self.lay([(2 * self.reserved + 1, size, True)])
        self.reserved += size

    def given(self, *sizes: int) -> list[Chunk]:
        """Chunks in use that are side by side, and next to no other."""
        begins = itertools.accumulate(sizes, initial=2 * self.reserved + 1)
        self.reserved += sum(sizes)
        return self.lay((begin, size, False) for begin, size in zip(begins, sizes, strict=False))

    def place(self, free: Mapping[int, int], used: Mapping[int, int]) -> list[Chunk]:
        """Chunks by address and bytes: those that are free, and those in use, which it returns."""
        spans = [(*one, True) for one in free.items()] + [(*one, False) for one in used.items()]
        by_address = {chunk.begin: chunk for chunk in self.lay(sorted(spans))}
        return [by_address[begin] for begin in used]

    def release_all(self, chunks: Iterable[Chunk]) -> None:
        """Frees chunks one after the other."""
        for chunk in chunks:
            self.release(chunk)

    def leave_holes(self, sizes: Sequence[int]) -> None:
        """Leaves free chunks of these sizes with small ones in use between them."""
        made = []
        for size in sizes:
            made.append(self.allocate(size))
            self.allocate(GRAIN)
        self.release_all(made)

    def extend(self, size: int) -> None:
        """Adds a region; where there is to be none, a chunk of that size that does not fit."""
        if self.room is not None:
            self.fits = False
            if self.raises:
                raise NoRoom
            self.add(size)
            return
        is_larger = False
        while size > self._region:
            self._region *= 2
            is_larger = True
        self.add(self._region)
        if not is_larger:
            self._region *= 2


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
