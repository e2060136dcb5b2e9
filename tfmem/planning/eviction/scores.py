"""What evicting a storage costs for what it relieves: the rule by which victims are chosen.

    score = seconds to bring it back / (bytes * staleness ** exponent - what is kept longer)

*Staleness* is the time until the storage is needed next. That is the heuristic of dynamic tensor
rematerialization (M. Kirisame et al., arXiv 2006.09616); there it is the time since the last use,
for the next one is not known.

The seconds to bring a storage back are those of its node and of every node that has to run again
only for its sake. `Scoring.neighbours` adds a part of those that will run again next to it, which
keeps the stretches between kept values short. What has to be kept longer for its sake is taken off
below the line: its bytes, for as much longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfmem.planning.eviction.queue import SOONEST
from tfmem.planning.eviction.state import FETCHED, State

MOST_SOURCES = 256
"""Storages that one score may look at, resident ones included; what would take more stays. Bounds
the work of one score."""

MADE_JUST_NOW = 2
"""Runs. What was made by the last run is not sent to the host yet: its copy could not begin before
that run has ended, and nothing would hide it."""


@dataclass(frozen=True)
class Scoring:
    """How scores are made; which way is best depends on the graph, so several are tried.

    Attributes:
      neighbours: part of the seconds of evicted neighbours that counts for a storage.
      staleness_exponent: of the time until the next use.
      copy_factor: on the seconds of copies: 1 if none of them were hidden behind computation, 0 if
        all were; infinite to swap nothing.
      may_recompute: whether nodes may run again.
    """

    neighbours: float = 0.0
    staleness_exponent: float = 1.0
    copy_factor: float = math.inf
    may_recompute: bool = True


class Scores:
    """The scores of storages in a state."""

    def __init__(self, state: State, scoring: Scoring) -> None:
        self.state, self.problem, self.scoring = state, state.problem, scoring
        self._swaps = scoring.copy_factor < math.inf
        self.exposed = min(1.0, scoring.copy_factor)  # part of the seconds of copies that counts

    def least_seconds(self, storage: int) -> float:
        """A lower bound of the seconds that bringing a storage back takes."""
        if self.state.storages[storage].copy is not None:
            return 0.0
        node = self.problem.form.producer[storage]
        may_repeat = self.problem.may_repeat[node] and self.scoring.may_recompute
        seconds = self.problem.seconds[node] if may_repeat else math.inf
        if self._may_swap(storage):
            return min(seconds, self.copies(storage) * self.scoring.copy_factor)
        return seconds

    def _may_swap(self, storage: int) -> bool:
        return self._swaps and storage not in self.problem.unsent

    def copies(self, storage: int) -> float:
        """Seconds of the copies that still have to be made if a storage leaves."""
        seconds = self.state.seconds_from_host(storage)
        if self.state.storages[storage].copy is None:
            seconds += self.state.seconds_to_host(storage)
        return seconds

    def score(self, storage: int) -> tuple[float, bool]:
        """The score of a storage that may leave, and whether it is sent to the host first."""
        state, one, due = self.state, self.state.storages[storage], self.state.due(storage)
        relief = self.problem.size[storage] * self._weighted(due)
        if one.copy is not None and one.made_by == FETCHED:  # its copy on the host is still there
            return self.exposed * self.copies(storage) / relief, False
        recomputed = math.inf  # dropped, and computed again
        if self.scoring.may_recompute and one.copy is None:
            seconds, longer = self._recomputation(storage, self._weighted(due))
            recomputed = seconds / (relief - longer) if longer < relief else math.inf
        is_new = state.runs - one.made_by < MADE_JUST_NOW
        if is_new or not (self._may_swap(storage) or one.copy):
            return recomputed, False
        # Sent to the host, and fetched back.
        back = self.exposed * self.copies(storage) if due < math.inf else 0.0
        swapped = (back + max(0.0, state.landing(storage) - state.now)) / relief
        return min(recomputed, swapped), swapped < recomputed

    def _weighted(self, due: float) -> float:
        """The staleness of what is due then, at most to the end of the step, to the exponent."""
        until = min(due, self.problem.begins[-1]) - self.state.due_clock
        return float(max(SOONEST, until) ** self.scoring.staleness_exponent)

    def _recomputation(self, storage: int, staleness: float) -> tuple[float, float]:
        """What it costs to compute a storage again.

        Returns:
          Seconds of the nodes that would run again only for it, with the neighbours' part; and the
          bytes times staleness of what has to be kept longer for it. Infinite if it cannot be.
        """
        state, problem = self.state, self.problem
        seconds = longer = 0.0
        components: set[int] = set()
        todo, seen = [storage], {storage}
        while todo:
            node = problem.form.producer[todo.pop()]
            if not problem.may_repeat[node] or len(seen) > MOST_SOURCES:
                return math.inf, math.inf
            seconds += problem.seconds[node]
            # Without copies updates wait for clones that read what they replace (`candidates`).
            for nbytes, updated in problem.contents[node] if self._swaps else ():
                longer += nbytes * max(0.0, staleness - self._weighted(updated))
            for source in set(problem.storages_read[node]) - seen:
                seen.add(source)
                if state.is_here[source]:
                    kept = self._weighted(state.kept_until(source))
                    longer += problem.size[source] * max(0.0, staleness - kept)
                elif source in problem.through[node]:
                    return math.inf, math.inf
                elif state.storages[source].copy is not None:
                    seconds += self.copies(source) * self.exposed
                elif component := state.storages[source].component:
                    components.add(state.components.find(component))
                else:
                    todo.append(source)
        if self.scoring.neighbours:
            children = state.evicted_children(storage)
            components |= {state.components.find(state.storages[c].component) for c in children}
            near = sum(state.components.seconds(component) for component in components)
            seconds += self.scoring.neighbours * near
        return seconds, longer
