"""A plan among others: what it is predicted to do, whether it keeps a budget, which is better."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.request import Request
from tfmem.simulation.allocation import Allocation
from tfmem.simulation.simulate import Recent, Simulation

FILLED = 0.94
"""Part of an allocator's memory that plans may fill whose copies end at any moment, so that no
replay foresees when each buffer is asked for. More keeps smaller budgets, less leaves more room for
other moments. Measured: at 0.96 and empty one run of ResNet-50 in six had no memory, at 0.94 none
(decision on hard limits)."""

FILLED_IN_ANY_ORDER = 0.75
"""The same of what runs out of order, of originals too: which buffers lie side by side is known for
one order alone. More runs more plans faster, and more originals as they are. Measured: two networks
were out of memory in their first step with a sixth of the limit free; originals took up to 1.14
times what is in use at most (of 50 cases of the wild suite)."""

FIRST_MORE, HALVINGS = 64, 3
"""The part of a plan's peak by which the room is first made larger, and then twice as much each
time, to see what a plan needs that does not fit; and how often that is halved. More names a nearer
budget after more replays."""

PADDED = 1 / 64
"""Part of a plan's peak that the allocator may pad it by where chunks are kept apart for the least
budget it keeps: the first way that takes no more is taken. Less names a nearer one after more
replays."""


@dataclass(frozen=True)
class Candidate:
    """A plan and what it is predicted to do.

    Attributes:
      graph: what it is for.
      costs: as for `simulate`.
      plan: the plan, its own predictions not filled in.
      simulation: of the plan.
      room: bytes of each free chunk of the allocator; None if it may grow.
      budget: bytes for which chunks are kept apart.
      recent: where the plan may have been applied already.
    """

    graph: Graph
    costs: Costs
    plan: Plan
    simulation: Simulation
    room: tuple[int, ...] | None
    budget: float = math.inf
    recent: Recent = field(default_factory=Recent, repr=False, compare=False)

    @cached_property
    def _allocation(self) -> Allocation:
        """What it takes in the room as it is and in less of it."""
        found = [self._allocated(self.room)]
        if self._sure_room != self.room:
            found.append(self._allocated(self._sure_room))
        return Allocation(
            max(one.worst_bytes for one in found),
            max(one.usual_bytes for one in found),
            found[0].reserved_bytes,
            all(one.fits for one in found),
        )

    @cached_property
    def _glance(self) -> Allocation:
        """The same in one process in which nothing ran before, for one caller.

        It never shows more.
        """
        return self._allocated(self._sure_room, count=1)

    def _allocated(self, room: tuple[int, ...] | None, count: int | None = None) -> Allocation:
        """The plan in the allocator, chunks kept apart for its budget."""
        is_within = self.simulation.window_peak_bytes <= self.budget
        most = self.budget - self.loose_bytes if is_within else math.inf
        applied = self.recent.applied(self.graph, self.costs, self.plan)
        return applied.allocate(room, most, count)

    @property
    def _sure_room(self) -> tuple[int, ...] | None:
        """The free chunks, less what is kept back where not everything runs in order."""
        is_loose = self.plan.window > 1
        if self.room is None or not (self.plan.transfers or is_loose):
            return self.room
        filled = FILLED_IN_ANY_ORDER if is_loose else FILLED
        kept = int((1 - filled) * capacity(self.graph, self.costs, self.plan, self.room))
        return without(self.room, kept)

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
        most = capacity(self.graph, self.costs, self.plan, self._sure_room)
        if self.simulation.window_peak_bytes > min(budget, most):
            return False  # the allocator only adds to it
        return self._glance.fits and self._glance.worst_bytes + self.loose_bytes <= budget

    def keeps(self, budget: float) -> bool:
        """Whether the budget holds, and the allocator's limit with all the holes between chunks."""
        return self.may_keep(budget) and self.fits and self.worst_bytes <= budget

    def least_budget(self, budget: int, may_grow: bool) -> int:
        """The least budget that it keeps, given one that it does not keep.

        Where holes are in the way the allocator's limit, too, has to be as much higher, unless it
        is far away, so that the allocator may grow.
        """
        tight = self._tight
        if tight.room is None or tight.fits:
            return tight.worst_bytes
        if may_grow:
            return tight._with_more(self.worst_bytes).worst_bytes
        less, more = 0, max(self.costs.granularity, self.worst_bytes // FIRST_MORE)
        while more < self.worst_bytes and not tight._with_more(more).fits:
            less, more = more, 2 * more
        for _ in range(HALVINGS):
            middle = (less + more) // 2
            less, more = (less, middle) if tight._with_more(middle).fits else (middle, more)
        most = min(budget, int(capacity(self.graph, self.costs, self.plan, self.room)))
        return max(tight._with_more(more).worst_bytes, most + more)

    def _with_more(self, nbytes: int) -> Candidate:
        """The same where the largest free chunk has more bytes."""
        assert self.room is not None
        return replace(self, room=without(self.room, -nbytes))

    @cached_property
    def _tight(self) -> Candidate:
        """The same with chunks kept apart for hardly more than it has in use."""
        return replace(self, budget=self.simulation.window_peak_bytes * (1 + PADDED))

    @property
    def least(self) -> tuple[bool, int]:
        """By which the plan with the least peak is found: those that fit come first."""
        return not self._tight.fits, self._tight.worst_bytes

    @property
    def least_at_best(self) -> tuple[bool, int]:
        """Bound on `least` that is found at a glance."""
        glance = self._tight._glance
        return not glance.fits, glance.worst_bytes + self.loose_bytes

    @property
    def rank(self) -> tuple[float, int, int]:
        """What is better comes first; that the host computes meanwhile counts for nothing."""
        seconds = max(self.simulation.step_seconds, self._whole_seconds)
        return seconds, len(self.plan.transfers), self.simulation.peak_bytes

    def takes_at_most(self, times: float) -> bool:
        """Whether a step takes at most so many times what it takes if nothing leaves or repeats."""
        return self.simulation.step_seconds <= times * self._whole_seconds

    @cached_property
    def _whole_seconds(self) -> float:
        runs = (node.name for node in self.graph.nodes if not node.is_input)
        return math.fsum(self.costs.seconds.get(name, 0.0) for name in runs)


def candidate(
    graph: Graph, costs: Costs, plan: Plan, request: Request, recent: Recent | None = None
) -> Candidate:
    """A plan with its simulation, for the budget and the free chunks of a request."""
    recent, budget = recent or Recent(), request.budget or math.inf
    simulation = recent.applied(graph, costs, plan).simulation
    return Candidate(graph, costs, plan, simulation, request.room, budget, recent)


def capacity(graph: Graph, costs: Costs, plan: Plan, room: tuple[int, ...] | None) -> float:
    """Bytes that inputs and variables on the device have now, and those that are free beside."""
    if room is None:
        return math.inf
    return sum(room) + bytes_of_inputs(graph, costs, plan.device)


def bytes_of_inputs(graph: Graph, costs: Costs, device: str) -> int:
    """Bytes of the inputs and variables that a device has."""
    here = (node for node in graph.nodes if node.is_input and node.device in ("", device))
    return sum(costs.allocated(nbytes) for node in here for nbytes in node.nbytes)


def without(room: tuple[int, ...], nbytes: int) -> tuple[int, ...]:
    """The free chunks with so many bytes less in the largest."""
    number = room.index(max(room))
    return *room[:number], max(0, room[number] - nbytes), *room[number + 1 :]


def shrunk(room: tuple[int, ...], nbytes: int) -> tuple[int, ...]:
    """The free chunks with so many bytes less, each in proportion to its own.

    What fits into them has room in the chunks as they are if each buffer is larger in proportion.
    """
    free = max(1, sum(room))
    return tuple(max(0, size - size * nbytes // free) for size in room)
