"""The turns of a loop: which are alike, and what of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tfmem.simulation.holdings import Holdings, List, Thing

STEADY = 3
"""Turns of a loop that tell what the others are like: the first still has what the caller gave."""


class Turns:
    """The turns of one loop: when to stop, and which of their events are kept.

    What begins and ends within one turn is forgotten in all turns but the first two, the last two
    and that with most bytes: it lay where it lay in the turn before.
    """

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings
        self.starts: list[int] = []
        self.lengths: list[list[int]] = []

    def begin(self, things: Sequence[Thing]) -> None:
        """A turn begins with these things."""
        self.starts.append(len(self.holdings.events))
        self.lengths.append(_lengths(things))

    def is_steady(self, things: Sequence[Thing]) -> bool:
        """Whether the turns to come will keep what the last ones did: nothing."""
        if len(self.starts) < STEADY or any(map(self._kept, range(-STEADY, 0))):
            return False
        return all(before == _lengths(things) for before in self.lengths[-STEADY:])

    def kept(self) -> int | None:
        """Bytes that each turn to come will keep; None as long as the turns do not tell."""
        return self._kept(-1) if len(self.starts) >= STEADY else None

    def _kept(self, turn: int) -> int:
        """Bytes that a turn has left behind."""
        sizes, bounds = self.holdings.sizes, [*self.starts, len(self.holdings.events)]
        events = self.holdings.events[bounds[turn - 1] : bounds[turn]]
        return sum(nbytes if nbytes > 0 else -sizes[buffer] for buffer, nbytes in events)

    def end(self) -> None:
        """The loop is over."""
        if len(self.starts) <= 5:
            return
        events, sizes = self.holdings.events, self.holdings.sizes
        bounds = [*self.starts, len(events)]
        turns = [events[begin:end] for begin, end in pairwise(bounds)]
        peaks, now = [], 0
        for turn in turns:
            most = now
            for buffer, nbytes in turn:
                now += nbytes if nbytes > 0 else -sizes[buffer]
                most = max(most, now)
            peaks.append(most)
        last = len(turns) - 1
        whole = {0, 1, last - 1, last, peaks.index(max(peaks))}
        kept = (turn if i in whole else _lasting(turn) for i, turn in enumerate(turns))
        events[bounds[0] :] = [event for turn in kept for event in turn]


def _lengths(things: Sequence[Thing]) -> list[int]:
    return [len(thing.items) for thing in things if isinstance(thing, List)]


def _lasting(events: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Events without those of buffers that begin and end among them."""
    made = {buffer for buffer, nbytes in events if nbytes > 0}
    brief = {buffer for buffer, nbytes in events if nbytes <= 0 and buffer in made}
    return [event for event in events if event[0] not in brief]
