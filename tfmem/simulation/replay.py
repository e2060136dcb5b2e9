"""Steps of a program replayed in TensorFlow's allocator: what they take, and whether they fit.

What an allocator hands out depends on where everything lies, and that on what came before: several
steps are replayed in a row.

Where the allocator's free chunks are known (`runtime.heap`), what is replayed is what happens:
small buffers are served from chunks of their own, which are kept apart before the first step.
Kernels ask for small scratch that no replay foresees, and small buffers in the middle of large
chunks are what shatters them. Callers differ in what they do beside the steps, and each kind of
`Caller` is replayed.

An allocator that grows without a limit is replayed in several processes, each with another past.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import ceil

from tfmem.costs.types import GRAIN, HOLE, WALLS, Asked, Feed, Lying, Requests
from tfmem.graph.compact import SMALL
from tfmem.simulation.allocation import Allocation, allocation_of
from tfmem.simulation.allocator import Bfc, Chunk, NoRoom, parted
from tfmem.simulation.beginning import Beginning, next_one
from tfmem.simulation.calling import Caller, Occasion, occasions
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.past import with_past
from tfmem.simulation.requests import numbers_of, on_device, parts_of, requests, with_adopted
from tfmem.simulation.shuffled import in_order
from tfmem.simulation.variations import FEWEST, Variation

# Constants of the replay; what others do to predictions is measured by
# `python -m models.bench.constants` (docs/measured/constants.md).

PIECE = SMALL
"""Bytes of the chunks that small buffers are served from, and of the largest buffers that count as
small. Scratch that no replay foresaw was 34 KB at most. Larger pieces waste more of the limit."""

SPARE_PIECES, SPARE = 8, 0.25
"""Pieces, and part of the pieces that a plan needs, that are kept for what it does not foresee."""


class Replay:
    """One step of a program, to be run in allocators, any number of times in each.

    Function inputs, variables and constants are there before the first step. A variable that was
    given another buffer keeps it for the next step, with all of its padding.

    Args:
      lifetimes: when each buffer begins and ends.
      workspace, within: as for `requests`.
      fed, lying, copied: as in `Costs`.

    Attributes:
      kinds: of callers, for each of whom it has to fit.
      beginning: what is there before the first step.
      ahead: bytes of each large argument that is made while the step before runs.
      rows: bytes of each large row that these are made from, and of those that pipelines keep;
        a step leaves their chunks alone.
      padding: bytes by which the chunks of variables are larger, as far as that is told.
      most: bytes that are to be in use at most, if chunks can be kept apart so.
      orders: of the positions, which steps take turns with; none for the one that is told.
      variations: other steps, which take turns with the one that is told.
        If they take other branches any of the first few may be the first.
      piece: bytes of the chunks that small buffers are served from. Rows that would take one each
        do not fit: they would fill all of them, as holes where rows were join to larger chunks.
    """

    def __init__(
        self,
        lifetimes: Lifetimes,
        workspace: Sequence[tuple[int, ...]],
        within: Mapping[int, Asked],
        *,
        fed: Feed | None = None,
        lying: Sequence[Lying] = (),
        copied: Sequence[int] = (),
    ) -> None:
        self._lifetimes, self._workspace, self._within = lifetimes, workspace, within
        self.most, self.padding, self.orders = math.inf, 0, tuple[Sequence[int], ...]()
        self.variations = tuple[Variation, ...]()
        self._failed: Occasion | None = None
        self._staying = [*copied, *(one for asked in within.values() for one in asked.stays)]
        sizes = self._sizes = lifetimes.nbytes.tolist()
        pairs = lifetimes.variables
        self._renewed = {old: new for old, new in pairs if old != new and sizes[old]}
        ends = sorted(self._renewed, key=lambda old: int(lifetimes.end[old]))
        unchanged = {old for old, new in pairs if old == new}
        shared = {self._renewed[old]: old for old in ends}  # of several, the last to let go
        self._keeper = {new: old for new, old in shared.items() if new not in unchanged}
        variables = {old for old, _ in pairs}
        outlive = set(self._renewed.values()) - variables
        here = [b for b in on_device(lifetimes) if b not in outlive]
        self._given = [b for b in here if lifetimes.is_input(b) and not lifetimes.start[b]]
        self._constants = [b for b in here if lifetimes.is_constant(b)]
        self._arguments = {b: lifetimes.name(b) for b in self._given if b not in variables}
        self.kinds = (Caller.SAME, Caller.NEW) if fed is None else tuple(Caller)
        batch = [nbytes for nbytes, count in (fed or Feed()).rows for _ in range(count)]
        rows = batch * (1 + (fed or Feed()).kept)
        near = [nbytes for nbytes in rows if PIECE < 2 * nbytes <= 2 * PIECE]
        self.piece = min(near) - GRAIN if near else PIECE
        self._small_rows = [nbytes for nbytes in rows if nbytes <= self.piece]
        self.rows = tuple(sorted((nbytes for nbytes in rows if nbytes > self.piece), reverse=True))
        self._batch = [nbytes for nbytes in batch if nbytes > self.piece]
        self._taken = [nbytes for nbytes in (fed or Feed()).taken if nbytes > SMALL]
        large = [] if fed is None else [sizes[b] for b in self._arguments if sizes[b] > SMALL]
        self.ahead = tuple(sorted((*large, *self._taken), reverse=True))
        self.beginning = Beginning(
            {b: sizes[b] for b in self._given},
            self._arguments,
            lying,
            self.rows[len(self._batch) :],
            self._taken,
            self.piece,
        )
        self._adopters: dict[int, list[int]] = {}  # variables by their bytes
        for b in (b for b in self._given if b in variables and b not in self._renewed):
            self._adopters.setdefault(sizes[b], []).append(b)
        held = {*self._given, *self._constants}
        self._outputs = [b for b in here if b in lifetimes.returned and b not in held]
        parts = parts_of(lifetimes)
        self._returned = [one for b in self._outputs for one in numbers_of(b, parts)]
        self._passed_on = self._arguments.keys() & lifetimes.returned

    def at(self, lying: Sequence[Lying]) -> Replay:
        """The same step where the first arguments lie so."""
        other = copy(self)
        other.beginning = replace(self.beginning, lying=lying)
        return other

    def grown(self, count: int, steps: int) -> Allocation:
        """Runs steps in so many processes whose allocators grow without a limit."""
        pools = [with_past(seed, self._sizes) for seed in range(count)]
        callers = itertools.cycle((Caller.SAME, Caller.NEW))
        peaks = [self.run(pool, who, steps) for pool, who in zip(pools, callers, strict=False)]
        return allocation_of(pools, peaks, peaks[:1])

    def within_apart(
        self,
        room: Sequence[int],
        apart: Sequence[int],
        steps: int,
        *,
        callers: int | None = None,
        bound: float = math.inf,
        to_the_end: bool = False,
    ) -> Allocation:
        """Runs steps where only so many bytes are free, some chunks being kept apart.

        Args:
          room: bytes of each free chunk, by address.
          apart: of each chunk that is taken out of the largest one, pieces for small buffers too.
          steps: how many.
          callers: kinds of them to replay it for; None for all.
          bound: bytes in use that end it, for no less than these is worth knowing.
          to_the_end: go on where the room is not enough, to find out how much would be in use.
        """
        starts = self._starts
        every = list(occasions(self.kinds[:callers], self.beginning.is_known, starts))
        likeliest = every  # to fail: that on which the last way did
        if not to_the_end:
            likeliest = sorted(every, key=lambda one: one != self._failed)
        found = dict[Occasion, tuple[Bfc, list[int]]]()
        for one in likeliest:
            pool = Bfc(())
            first, there = one.first, self._put(pool, one, room, apart)
            count, peaks = min(steps, len(starts)) if first else steps, [pool.in_use]
            if pool.fits or to_the_end:
                pool.raises = not to_the_end
                with contextlib.suppress(NoRoom):
                    peaks = self.run(pool, one.caller, count, *there, first=first, bound=bound)
            found[one] = pool, peaks
            if not pool.fits or peaks[-1] >= bound:
                self._failed = one
                break
        made = {one: found[one] for one in every if one in found}
        usual = [peaks for one, (_, peaks) in made.items() if one.caller is Caller.NEW]
        pools, peaks_of_each = zip(*made.values(), strict=True)
        return allocation_of(pools, peaks_of_each, usual)

    @property
    def _starts(self) -> Sequence[int]:
        """Which of the steps may be the first one."""
        chooses = any(one.is_exact for _, within in self.variations for one in within.values())
        return range(1 + min(FEWEST, len(self.variations)) * chooses)

    def _put(
        self, pool: Bfc, one: Occasion, room: Sequence[int], apart: Sequence[int]
    ) -> tuple[dict[int, Chunk], list[Chunk]]:
        """Puts what is there before the first step into an allocator: buffers, and rows kept."""
        rows = self.beginning.rows_kept(pool, one.padding) if one.caller.is_fed else []
        free = tuple(parted(room, apart, self.rows))
        chunks = self.beginning.put(pool, one.caller, free, one.padding, one.is_joined)
        pool.in_use = sum(self._sizes[b] for b in self._given) + self.padding
        pool.in_use += sum(chunk.size for b, chunk in chunks.items() if b < 0)
        pool.in_use += GRAIN * (HOLE + len(apart) + WALLS * len(room))
        return chunks, rows

    @cached_property
    def pieces(self) -> int:
        """Chunks of `piece` bytes that serve all small buffers, those not foreseen included."""
        pool, chunks, count = Bfc(()), {}, 0
        small = [(b, self._sizes[b]) for b in self._constants]
        small += [(b, self._sizes[b]) for b in self._renewed]
        others = enumerate((*self._staying, *self._small_rows), 1)
        small += [(-number, nbytes) for number, nbytes in others]
        for number, nbytes in (*small, *self.requests):
            if 0 < nbytes <= self.piece:
                if not pool.has(nbytes):
                    pool.add(self.piece)
                    count += 1
                chunks[number] = pool.allocate(nbytes)
            elif nbytes <= 0 and number in chunks:
                pool.release(chunks.pop(number))
        return ceil(count * (1 + SPARE)) + SPARE_PIECES

    @cached_property
    def requests(self) -> Requests:
        """What a step asks for and gives back, its outputs too."""
        return tuple(itertools.chain.from_iterable(self._by_position(())))

    @cached_property
    def _asked(self) -> Sequence[Requests]:
        """The same in each of its orders, and in other steps, with what variables adopt."""
        if self.orders or self.variations:
            return self._in_turn(())
        return self._settled([self.requests])

    @cached_property
    def _asked_by_who_keeps(self) -> Sequence[Requests]:
        """As `_asked`, where the caller keeps what the step returns."""
        return self._in_turn(self._outputs)

    def _in_turn(self, staying: Sequence[int]) -> Sequence[Requests]:
        asked = [list(self._by_position(staying, one)) for one in (None, *self.variations)]
        if not self.orders:
            return self._settled(map(itertools.chain.from_iterable, asked))
        both = zip(itertools.cycle(asked), self.orders, strict=False)
        return self._settled(itertools.starmap(in_order, both))

    def _settled(self, asked: Iterable[Iterable[tuple[int, int]]]) -> Sequence[Requests]:
        return [with_adopted(one, self._adopters) for one in asked]

    def asked(self) -> list[tuple[str, int]]:
        """What a step asks for once its constants are there: the node, "" for none, and bytes."""
        nodes = "", *self._lifetimes.program.names
        made = zip(nodes, self._by_position(()), strict=False)
        return [(node, nbytes) for node, one in made for _, nbytes in one if nbytes > 0]

    def _by_position(
        self, staying: Sequence[int], one: Variation | None = None
    ) -> Iterator[Requests]:
        """What each position asks for; `staying` are outputs that the step does not give back."""
        held = {*self._given, *self._constants}
        kept = {*self._renewed.values(), *(held - self._renewed.keys()), *staying}
        lifetimes, within = one or (self._lifetimes, self._within)
        return requests(lifetimes, self._workspace, within, held=held, kept=kept)

    def run(
        self,
        pool: Bfc,
        caller: Caller,
        steps: int,
        chunks: dict[int, Chunk] | None = None,
        rows: Sequence[Chunk] = (),
        *,
        first: int = 0,
        bound: float = math.inf,
    ) -> list[int]:
        """Most bytes in use in each step, beside what was there before.

        Steps are not run again once everything lies as it did before an earlier one.

        Args:
          pool, caller, steps: the allocator, who calls, how many steps.
          chunks: the buffers that were there before the first step, which count; None to ask for
            them, what is in use now being no part of the program.
          rows: chunks that rows leave for those kept apart for them, a batch in each step; in use
            as much as before.
          first: which of the variations comes first; 0 for the step that is told.
          bound: bytes in use at which it ends.

        Raises:
          NoRoom: the allocator has none for a request, and is asked to raise that.
        """
        before = pool.in_use if chunks is None else 0
        if chunks is None:
            chunks = self._made(pool, caller)
        before += sum(chunk.size for b, chunk in chunks.items() if b < 0)  # counted besides
        chunks |= {b: pool.allocate(self._sizes[b]) for b in self._constants}
        for nbytes in self._staying:
            pool.allocate(nbytes)
        variables = {nbytes: deque(found) for nbytes, found in self._adopters.items()}
        renews = caller is not Caller.SAME
        asked = self._asked_by_who_keeps if renews else self._asked
        peaks, returned = list[int](), list[Chunk]()
        seen: dict[Hashable, int] = {}
        for step in range(steps):
            turn = (first + step) % len(asked)
            if not (caller.is_fed or rows):
                state = turn, _state(pool, chunks, returned, variables)
                if (known := seen.setdefault(state, step)) < step:
                    again = itertools.cycle(peaks[known:])
                    return [*peaks, *itertools.islice(again, steps - step)]
            most = self._most(pool, asked[turn], chunks, variables, bound + before)
            peaks.append(most - before)
            if peaks[-1] >= bound:
                break
            keeper = self._keeper.items()  # all at once: one may be given what another had
            chunks |= {old: chunks.pop(new) for new, old in keeper if new in chunks}
            if renews:
                pool.release_all(returned)
                made = (number for number in self._returned if number in chunks)
                returned = [chunks.pop(number) for number in made]  # a branch may not make some
                is_early = caller.is_early(step, steps)
                returned += self._change_arguments(pool, caller, chunks, is_early)
            self._leave(pool, rows, step)
        return peaks

    def _leave(self, pool: Bfc, rows: Sequence[Chunk], step: int) -> None:
        """Gives back the chunks of a step's batch; they count as before."""
        count = len(self._batch) + len(self._taken)
        left = rows[step * count :][:count]
        pool.in_use += sum(row.size for row in left)
        pool.release_all(left)

    def _made(self, pool: Bfc, caller: Caller) -> dict[int, Chunk]:
        """What is there before the first step, asked for now."""
        made = {b: pool.allocate(self._sizes[b]) for b in self._given}
        ahead = self._arguments if caller.is_fed else ()
        return made | {next_one(b): pool.given(self._sizes[b])[0] for b in ahead}

    def _change_arguments(
        self, pool: Bfc, caller: Caller, chunks: dict[int, Chunk], is_early: bool
    ) -> list[Chunk]:
        """Lets go of a step's arguments; those of the next one are made by then.

        Returns:
          The chunks of those that the step has returned, which stay.
        """
        if not caller.is_fed:
            self._make_next(pool, chunks)
        old = {b: chunks[b] for b in self._arguments}
        chunks |= {b: chunks.pop(next_one(b)) for b in self._arguments}
        if is_early:
            self._make_next(pool, chunks)
        pool.release_all(chunk for b, chunk in old.items() if b not in self._passed_on)
        if caller.is_fed and not is_early:
            self._make_next(pool, chunks)
        return [old[b] for b in self._passed_on]

    def _make_next(self, pool: Bfc, chunks: dict[int, Chunk]) -> None:
        for b in self._arguments:
            chunks[next_one(b)] = pool.allocate(self._sizes[b])

    def _most(
        self,
        pool: Bfc,
        asked: Requests,
        chunks: dict[int, Chunk],
        variables: Mapping[int, deque[int]],
        bound: float,
    ) -> int:
        """Serves one step's requests, until so many bytes are in use; the most that are meanwhile.

        Which variable adopts a buffer is not known here: those of its size take turns.
        """
        position, most = 0, pool.in_use
        while True:
            position, most = pool.serve(asked, chunks, position, most, bound)
            if position == len(asked) or most >= bound:
                return most
            number, nbytes = asked[position]
            if nbytes < 0:
                like = variables[-nbytes]
                like.rotate()
                chunks[like[0]], chunks[number] = chunks[number], chunks[like[0]]
            if number in chunks or number not in self._renewed:  # variables may share a buffer
                pool.release(chunks.pop(number))
            position += 1


def _state(
    pool: Bfc,
    chunks: Mapping[int, Chunk],
    returned: Sequence[Chunk],
    variables: Mapping[int, deque[int]],
) -> Hashable:
    """All that what comes next depends on: where everything lies, which variable's turn it is."""
    held = sorted((number, chunk.begin, chunk.size) for number, chunk in chunks.items())
    kept = tuple((chunk.begin, chunk.size) for chunk in returned)
    return tuple(held), pool.free_places, kept, tuple(map(tuple, variables.values())), pool.reserved
