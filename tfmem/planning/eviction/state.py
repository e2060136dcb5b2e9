"""Where everything is at one moment of a rehearsal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.queue import EvictedComponents
from tfmem.planning.eviction.schedule import HostCopy

FETCHED = -1
"""In the place of the run that made a storage: it came back from the host."""


@dataclass(slots=True)
class Storage:
    """One storage as it is now.

    Attributes:
      made_by: number of the run that made it last, or `FETCHED`.
      made_at: when, by the rehearsal's clock.
      next_use: index into the problem's `uses` of the first that is still to come.
      needed_for_clone: when an evicted storage that is computed from it is needed; infinite if
        none is.
      pins: how many nodes that are about to run read it; it may not leave until they have run,
        but for a clone of its own node, which makes it anew.
      component: the evicted neighbours that it belongs to, see `EvictedComponents`; 0 for none.
      delay: nodes for which it was postponed last, see `Postponed`.
      copy: its copy on the host, made or to be made; None if it has none.
    """

    made_by: int = 0
    made_at: float = 0.0
    next_use: int = 0
    needed_for_clone: float = math.inf
    pins: int = 0
    component: int = 0
    delay: int = 0
    copy: HostCopy | None = None


class State:
    """What is resident, what is evicted, and how late it is.

    Times of need are told by the clock of the plain order, in which nothing runs twice
    (`due_clock`, `due`, `needed_for_clone`), copies by the schedule's own (`now`, `link_free`,
    `made_at`).

    Invariants, between two nodes of the order: `in_use` is `fixed_bytes` plus the sizes of the
    storages that are here. A storage that is away and has a component will be computed again, and
    `needed_for_clone` of all that it is computed from is at most the time at which it is due.

    Attributes:
      problem: what is rehearsed.
      storages: each storage as it is now, by number.
      is_here: of each value, whether it can be read now.
      in_use: bytes of the device in use.
      position: of the node of the order that is up.
      due_clock: seconds at which that node begins if nothing runs twice; uses are told by it.
      now: seconds that the schedule has taken so far, clones and copies included.
      runs: how many runs of nodes it has so far.
      link_free: seconds at which the link to the host is free.
      components: evicted storages that will be computed again, with their neighbours.
    """

    def __init__(self, problem: EvictionProblem) -> None:
        self.problem = problem
        self.storages = [Storage() for _ in problem.size]
        self.is_here = [storage < 0 for storage in problem.storage]
        self.in_use = problem.first_bytes
        for storage in problem.given:
            self.is_here[storage] = True
        self.position, self.due_clock = 0, 0.0
        self.now, self.runs, self.link_free = 0.0, 0, 0.0
        self.components = EvictedComponents()

    def due(self, storage: int) -> float:
        """When a storage is needed next, by an order or a clone; infinite if never."""
        uses, one = self.problem.uses[storage], self.storages[storage]
        if one.next_use < len(uses):
            return min(self.problem.begins[uses[one.next_use]], one.needed_for_clone)
        return one.needed_for_clone

    def kept_until(self, storage: int) -> float:
        """When a storage that is here is needed for the last time; infinite if never."""
        uses, one = self.problem.uses[storage], self.storages[storage]
        if one.next_use == len(uses):
            return one.needed_for_clone
        last = self.problem.begins[uses[-1]]
        return last if one.needed_for_clone == math.inf else max(last, one.needed_for_clone)

    def evicted_children(self, storage: int) -> list[int]:
        """Storages that are computed from this one, are evicted, and will be needed."""
        return list(filter(self.is_pending, self.problem.children(storage)))

    def is_pending(self, storage: int) -> bool:
        """Whether a storage is evicted and will be computed again."""
        return bool(self.storages[storage].component) and not self.is_here[storage]

    def seconds_to_host(self, storage: int) -> float:
        """Seconds of a storage's copy to the host."""
        costs = self.problem.costs
        return costs.latency + self.problem.size[storage] / costs.to_host

    def seconds_from_host(self, storage: int) -> float:
        """Seconds of a storage's copy back."""
        costs = self.problem.costs
        return costs.latency + self.problem.size[storage] / costs.from_host

    def landing(self, storage: int) -> float:
        """When a copy to the host that begins as early as it may is there."""
        costs = self.problem.costs
        begin = max(self.link_free, self.storages[storage].made_at)
        return begin + costs.latency + self.problem.size[storage] / costs.to_host
