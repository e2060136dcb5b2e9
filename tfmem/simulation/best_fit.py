"""Chunks of memory side by side: best fit, and free neighbours become one.

What replays call most of all. `best_fit.c` is the same in C, which is built as `_best_fit` where
there is a compiler when tfmem is installed; without it planning takes up to twice as long.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from tfmem.costs.types import Requests

MOST_PADDING = 128 * 2**20
"""Bytes of TensorFlow's own: most that a chunk may be larger than what it is handed out for."""


@dataclass(slots=True)
class Chunk:
    """Bytes side by side, handed out or free."""

    begin: int
    size: int
    is_free: bool = True
    before: Chunk | None = field(default=None, repr=False)
    after: Chunk | None = field(default=None, repr=False)


class BestFit:
    """Chunks, of which free ones are handed out: the smallest that fits, the lowest of those.

    Attributes:
      in_use: bytes of all chunks handed out.
    """

    __slots__ = ("_free", "in_use")

    def __init__(self) -> None:
        self.in_use = 0
        self._free = list[tuple[int, int, Chunk]]()  # bytes and address first

    def lay(self, spans: Iterable[tuple[int, int, bool]]) -> list[Chunk]:
        """Chunks that are there from the beginning, by address, those that touch as neighbours.

        Args:
          spans: address, bytes, and whether it is free, of each. Where the first begins no other
            chunk ends, nor does one begin where the last ends.
        """
        made = [Chunk(*span) for span in spans]
        for one, other in itertools.pairwise(made):
            if one.begin + one.size == other.begin:
                one.after, other.before = other, one
        for chunk in made:
            if chunk.is_free:
                self._insert(chunk)
            else:
                self.in_use += chunk.size
        return made

    def has(self, size: int) -> bool:
        """Whether a free chunk takes a request of so many bytes."""
        return bool(self._free) and self._free[-1][0] >= size

    @property
    def free_places(self) -> tuple[tuple[int, int], ...]:
        """Bytes and address of each free chunk, best fit first."""
        return tuple((size, begin) for size, begin, _ in self._free)

    def extend(self, size: int) -> None:
        """Lays a free chunk of at least so many bytes, for there is none."""
        raise NotImplementedError

    def allocate(self, size: int) -> Chunk:
        """The smallest free chunk of at least `size` bytes, the lowest of those."""
        free = self._free
        place = bisect_left(free, (size, 0))
        if place == len(free):
            self.extend(size)
            place = bisect_left(free, (size, 0))
        chunk = free.pop(place)[2]
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
        """Frees a chunk and joins it with free neighbours.

        Raises:
          ValueError: it is free already.
        """
        if chunk.is_free:
            raise ValueError(f"Released twice: {chunk}.")
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

    def serve(
        self,
        requests: Requests,
        chunks: dict[int, Chunk],
        position: int,
        most: int,
        bound: float,
    ) -> tuple[int, int]:
        """Serves requests one after the other, until one that only the caller can serve.

        That is the end of a buffer that is adopted, or of one that is not there.

        Args:
          requests: numbers of buffers, each with the bytes that are asked for; 0 where it ends,
            less where it is adopted then.
          chunks: those handed out, by the numbers of their buffers; it is kept up to date.
          position: of the first of them to be served.
          most: bytes that were in use at most before.
          bound: bytes in use at which it ends.

        Returns:
          The position of the first that was not served, and the most bytes that were in use.
        """
        for at in range(position, len(requests)):
            number, nbytes = requests[at]
            if nbytes > 0:
                chunks[number] = self.allocate(nbytes)
                if self.in_use > most:
                    most = self.in_use
                    if most >= bound:
                        return at + 1, most
            elif nbytes < 0 or number not in chunks:
                return at, most
            else:
                self.release(chunks.pop(number))
        return len(requests), most

    def _insert(self, chunk: Chunk) -> None:
        insort(self._free, (chunk.size, chunk.begin, chunk))

    def _remove(self, chunk: Chunk) -> None:
        del self._free[bisect_left(self._free, (chunk.size, chunk.begin))]


def _join(first: Chunk, second: Chunk) -> None:
    """Makes two neighbours one, the first."""
    first.size += second.size
    first.after = second.after
    if first.after is not None:
        first.after.before = first
