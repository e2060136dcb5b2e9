"""A plan among others: what it is predicted to do, whether it keeps a budget, which is better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.simulation.allocator import Allocation
from tfmem.simulation.simulate import Simulation, allocate, simulate

FILLED = 0.94
"""Part of a hard limit that plans may fill. More keeps smaller budgets, less leaves more room for
holes that no replay foresaw. Measured: at 0.96 and empty one run of ResNet-50 in six had no memory,
at 0.94 none (decision on hard limits). Would change with a replay that foresees every request."""


@dataclass(frozen=True)
class Candidate:
    """A plan and what it is predicted to do.

    Attributes:
      graph: what it is for.
      costs: as for `simulate`.
      plan: the plan, its own predictions not filled in.
      simulation: of the plan.
      room: bytes of the allocator that a plan may count on; infinite without a limit.
    """

    graph: Graph
    costs: Costs
    plan: Plan
    simulation: Simulation
    room: float

    @cached_property
    def _allocation(self) -> Allocation:
        return allocate(self.graph, self.costs, self.plan, limit=self._limit)

    @cached_property
    def _glance(self) -> Allocation:
        """The same in one process, in which nothing ran before: it never shows more."""
        return allocate(self.graph, self.costs, self.plan, limit=self._limit, count=1)

    @property
    def _limit(self) -> int | None:
        return None if math.isinf(self.room) else int(self.room)

    @property
    def fits(self) -> bool:
        """Whether the allocator has room for it, the holes between chunks considered."""
        return self._allocation.fits

    @property
    def peak_bytes(self) -> int:
        """Its usual peak in the allocator, whichever nodes of the window run together."""
        return self._allocation.usual_bytes + self.loose_bytes

    @property
    def worst_bytes(self) -> int:
        """The peak of the step that the allocator pads most."""
        return self._allocation.worst_bytes + self.loose_bytes

    @property
    def loose_bytes(self) -> int:
        """Bytes that running nodes out of order may add to the peak at worst."""
        return self.simulation.window_peak_bytes - self.simulation.peak_bytes

    def may_keep(self, budget: float) -> bool:
        """Whether `keeps` is worth asking, found at a glance."""
        if self.simulation.window_peak_bytes > min(budget, self.room):
            return False  # the allocator only adds to it
        return self._glance.fits and self._glance.worst_bytes + self.loose_bytes <= budget

    def keeps(self, budget: float) -> bool:
        """Whether the budget holds, and the allocator's limit with all the holes between chunks."""
        return self.may_keep(budget) and self.fits and self.worst_bytes <= budget

    @property
    def least(self) -> tuple[bool, int]:
        """By which the plan with the least peak is found: those that fit come first."""
        return not self.fits, self.worst_bytes

    @property
    def least_at_best(self) -> tuple[bool, int]:
        """Bound on `least` that is found at a glance."""
        return not self._glance.fits, self._glance.worst_bytes + self.loose_bytes

    @property
    def rank(self) -> tuple[float, int, int]:
        """What is better comes first; that the host computes meanwhile counts for nothing."""
        seconds = max(self.simulation.step_seconds, self._whole_seconds)
        return seconds, len(self.plan.transfers), self.simulation.peak_bytes

    @property
    def costs_nothing(self) -> bool:
        """Whether a step is predicted to take no longer than if nothing left or ran twice."""
        return self.simulation.step_seconds <= self._whole_seconds * (1 + 1e-9)

    @cached_property
    def _whole_seconds(self) -> float:
        runs = (node.name for node in self.graph.nodes if not node.is_input)
        return math.fsum(self.costs.seconds.get(name, 0.0) for name in runs)


def candidate(graph: Graph, costs: Costs, plan: Plan, limit: int | None) -> Candidate:
    """A plan with its simulation, for an allocator of this limit in bytes; None for no limit."""
    room = math.inf if limit is None else int(FILLED * limit)
    return Candidate(graph, costs, plan, simulate(graph, costs, plan), room)
