"""What is in a device's memory before the first step, and where it lies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfmem.costs.types import GRAIN, Lying
from tfmem.simulation.allocator import Bfc, Chunk
from tfmem.simulation.calling import Caller


@dataclass(frozen=True)
class Beginning:
    """Variables and arguments of the first step; where they are made ahead, those of the next.

    Attributes:
      given: bytes of each buffer that is there, by its number.
      arguments: those of them that a caller passes, with the names of their nodes.
      lying: as in `Costs`.
      rows: bytes of each row that pipelines keep.
      taken: bytes of each part of a batch that the step takes itself.
      piece: bytes of the largest buffers that are small.
    """

    given: Mapping[int, int]
    arguments: Mapping[int, str]
    lying: Sequence[Lying]
    rows: Sequence[int]
    taken: Sequence[int]
    piece: int

    @property
    def is_known(self) -> bool:
        """Whether it is known of each argument of more than a piece where it lies."""
        known = {one.name for one in self.lying if one.nbytes == one.most}
        large = (b for b in self.arguments if self.given[b] > self.piece)
        return all(self.arguments[b] in known for b in large)

    def put(
        self,
        pool: Bfc,
        caller: Caller,
        free: Sequence[Sequence[int]],
        padding: float,
        is_joined: bool,
    ) -> dict[int, Chunk]:
        """Puts it all into an allocator, between the chunks that are free.

        Args:
          pool: the allocator, in which no chunk is free yet.
          caller: who calls; of arguments that he has made ahead nothing is known.
          free: bytes of the chunks that each free chunk was made to.
          padding: by how much the chunks of arguments are larger, where nothing tells the most;
            where it is above 1, others have the most.
          is_joined: whether arguments lie side by side, where that is open.
        """
        chunks: dict[int, Chunk] = {}

        def give(sizes: Mapping[int, int]) -> None:
            chunks.update(zip(sizes, pool.given(*sizes.values()), strict=True))

        runs = [] if caller.is_fed else list(self._runs(padding))
        known = {b for _, run in runs for b in run}
        for group in self._groups(is_joined, caller):
            give({b: self._size(b, padding) for b in group if b not in known})
        for above in range(len(free), -1, -1):
            for _, run in (one for one in runs if min(one[0], len(free)) == above):
                give(run)
            for nbytes in free[len(free) - above] if above else ():
                pool.add(nbytes)
        return chunks

    def rows_kept(self, pool: Bfc, padding: float) -> list[Chunk]:
        """The rows that pipelines keep, side by side where they were made, in any order.

        Before them what the first step takes, which it lets go of once the next one is made.
        """
        pool.add(sum(self.rows) + GRAIN)
        rows = [pool.allocate(nbytes) for nbytes in self.rows]
        random.Random(len(rows)).shuffle(rows)
        taken = [pool.given(int(padding * nbytes) // GRAIN * GRAIN)[0] for nbytes in self.taken]
        return [*taken, *rows]

    def _runs(self, padding: float) -> Iterator[tuple[int, dict[int, int]]]:
        """Arguments whose places are known, side by side: free chunks above them, their bytes."""
        numbers = {name: b for b, name in self.arguments.items()}
        run, above, is_whole = dict[int, int](), 0, False
        for one in self.lying:
            b = numbers.get(one.name)  # none if nothing reads it
            if run and not (b is not None and one.is_beside and is_whole):
                yield above, run
                run = {}
            if b is not None:
                padded = one.most or self._size(b, padding)
                run[b], above = padded if padding > 1.0 else one.nbytes, one.above
                is_whole = run[b] == one.most
        if run:
            yield above, run

    def _groups(self, is_joined: bool, caller: Caller) -> Iterator[Sequence[int]]:
        """What is there before the first step; those of a group lie side by side."""
        ahead = [next_one(b) for b in self.arguments] if caller.is_fed else []
        large = [b for b in self.arguments if is_joined and self.given[b] > self.piece]
        joined = (*large, *(b for b in ahead if next_one(b) in large))
        yield joined
        yield from ((b,) for b in (*self.given, *ahead) if b not in joined)

    def _size(self, buffer: int, padding: float) -> int:
        """Bytes of the chunk of a buffer, if those of arguments are padded so much."""
        b = max(buffer, next_one(buffer))
        nbytes = self.given[b]
        return int(padding * nbytes) // GRAIN * GRAIN if b in self.arguments else nbytes


def next_one(argument: int) -> int:
    """The number under which the next step's argument is asked for in this one, and back."""
    return -1 - argument
