"""What a rehearsal looks things up in: the storages that may leave, and evicted neighbours."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from tfmem.graph.topology import DisjointSets

LONGEST_DELAY = 32
"""Nodes. A storage that cannot leave is not looked at for 1, 2, 4 up to so many nodes. Looking at
hundreds of them at every node took most of the time of graphs of 20,000 nodes: 32 s for a limit out
of reach, 5 to 11 with the delay. Shorter finds a victim sooner, longer looks less often."""


SLOTS = 1024
"""Storages that the queue has room for at first; it doubles."""

SOONEST, LATEST = 1e-9, 1e30
"""Seconds between which staleness is taken to lie, so that powers and quotients stay finite."""


class EvictionQueue:
    """The storages that may leave, with a lower bound of the score of each, in arrays.

    The least bound is found at once; whether it is exact is asked of `Scores` only then.

    Invariant: a storage is here only while it is resident. Its bound, ``weight / (seconds until its
    next use) ** staleness_exponent``, was at most its score when it was put here or last raised. A
    score that fell since (a source came back, the link is free) is seen when the storage is offered
    again: the victim is near the least score, not always the least.
    """

    _ARRAYS = ("storages", "weight", "due")

    def __init__(self, staleness_exponent: float) -> None:
        self.staleness_exponent = staleness_exponent
        self.slot: dict[int, int] = {}
        self.storages = np.zeros(SLOTS, np.int64)
        self.weight = np.zeros(SLOTS)  # seconds to bring it back / bytes, or more
        self.due = np.zeros(SLOTS)

    def __len__(self) -> int:
        return len(self.slot)

    def put(self, storage: int, nbytes: int, due: float, seconds: float) -> None:
        """Adds a storage, or sets its bound anew.

        Args:
          storage: its number.
          nbytes: its size.
          due: when it is needed next.
          seconds: at most those that it takes to bring it back.
        """
        slot = self.slot.get(storage)
        if slot is None:
            slot = self.slot[storage] = len(self.slot)
            if slot == len(self.storages):
                for name in self._ARRAYS:
                    setattr(self, name, np.resize(getattr(self, name), 2 * slot))
        self.storages[slot] = storage
        self.weight[slot] = seconds / max(1, nbytes)
        self.due[slot] = due

    def raise_to(self, storage: int, score: float, clock: float) -> None:
        """Sets the bound of a storage to the score that it has now."""
        slot = self.slot[storage]
        self.weight[slot] = score * float(self._staleness(self.due[slot], clock))

    def take(self, storage: int) -> None:
        """Removes a storage, if it is here."""
        slot = self.slot.pop(storage, None)
        if slot is None:
            return
        last = len(self.slot)
        if slot != last:
            for name in self._ARRAYS:
                array = getattr(self, name)
                array[slot] = array[last]
            self.slot[int(self.storages[slot])] = slot

    def least(self, clock: float) -> tuple[int, float]:
        """The storage with the least bound, and that; (-1, inf) if there is none."""
        count = len(self.slot)
        if not count:
            return -1, math.inf
        bound = self.weight[:count] / self._staleness(self.due[:count], clock)
        slot = int(bound.argmin())
        return int(self.storages[slot]), float(bound[slot])

    def _staleness(self, due: Any, clock: float) -> Any:
        until = np.minimum(np.maximum(due - clock, SOONEST), LATEST)
        return until if self.staleness_exponent == 1.0 else until**self.staleness_exponent


class Postponed:
    """Storages that could not leave when they were looked at, and when to look again.

    Times are positions in the order; each time a storage comes here it stays twice as long.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []  # (when to look again, since when, storage)

    def put(self, storage: int, position: int, delay: int) -> int:
        """Puts a storage off for longer than the `delay` before; that of now."""
        delay = min(max(1, 2 * delay), LONGEST_DELAY)
        heappush(self._heap, (position + delay, position, storage))
        return delay

    def due(self, position: int) -> list[int]:
        """Takes out those that are to be looked at again by now."""
        found = []
        while self._heap and self._heap[0][0] <= position:
            found.append(heappop(self._heap)[2])
        return found

    def recall(self, position: int) -> list[int]:
        """Takes out all but those that were looked at for the node of this very position."""
        early = [storage for _, since, storage in self._heap if since < position]
        self._heap = [item for item in self._heap if item[1] == position]
        heapify(self._heap)
        return early


class EvictedComponents:
    """Sets of neighbouring nodes whose values are evicted and will be computed again.

    Bringing one of them back brings others along. Those that came back are not taken off, as in
    DTR. Numbers begin with 1: 0 stands for no component.
    """

    def __init__(self) -> None:
        self._sets = DisjointSets(1)
        self._seconds = [0.0]

    def add(self, seconds: float) -> int:
        """A new component of one node."""
        self._seconds.append(seconds)
        return self._sets.add()

    def find(self, component: int) -> int:
        """The number that stands for a component and all that were joined with it."""
        return self._sets.find(component)

    def seconds(self, component: int) -> float:
        """Seconds of all nodes that ever joined a component, by the number that `find` gives."""
        return self._seconds[component]

    def join(self, first: int, second: int) -> None:
        """Makes one component of two."""
        first, second = self._sets.find(first), self._sets.find(second)
        if first != second:
            self._sets.join(first, second)
            self._seconds[first] += self._seconds[second]
