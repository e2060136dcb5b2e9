"""The plans that a search chooses from: one graph, several placements, limits and ways to score.

Which plans there are depends on the graph, the costs and the techniques, never on the budget. So
more budget only adds to the plans that may be chosen: it is never slower.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tfmem.costs.types import Costs
from tfmem.graph.compact import compact
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.eviction.problem import NEVER, Stage
from tfmem.planning.eviction.rehearsal import Knobs, Schedule, Unreachable, rehearse
from tfmem.planning.eviction.to_plan import plan_of
from tfmem.planning.order.early import movable_nodes, shapes_first, updates_first
from tfmem.planning.order.memory_order import memory_order, program_order
from tfmem.planning.placement import moved_nodes, placement_levels, variables_on
from tfmem.planning.request import Request
from tfmem.simulation.allocator import Allocation
from tfmem.simulation.simulate import Simulation, allocate, simulate

_STEP = 0.92
"""Ratio of one limit to the next, of what is above the bytes that stay."""

_TIGHT = (16, 8, 4, 0)
"""Numbers of the limits by which orders are compared: from a quarter of what is above those bytes
to all of it."""

_EARLIER = 2
"""Limits below one whose schedules are tried for it, too."""

_HIDDEN = 0.2
"""Part of the seconds of copies that counts where most are taken to be hidden."""

_LIMITS = 60
"""Number of limits: down to 1/150 of what is above the bytes that stay."""

_ROOMIER = 24
"""Limits above the first, for copies from the host that fill them: up to seven times as much."""

_LOST = 6
"""Limits in a row that cannot be kept before those below are given up."""

_PARTS = 4
"""Into which the gap above the first limit that cannot be kept is divided."""

_HALVINGS = 3
"""How often the gap between the least limit that was kept and the next one is halved."""

_EFFORT = 40_000
"""Nodes that are looked at for one budget: small graphs are searched through, large ones not."""

_LOOKS = 6
"""Limits below a budget that are looked at for a graph that is not small."""

_SMALL = 100
"""Nodes of a graph for which scores are made in every way."""

_ROOM = 0.94
"""Part of a hard limit that plans may fill: peaks are predicted to a few per cent."""

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Candidate:
    """A plan and what it is predicted to do.

    Attributes:
      graph: what it is for.
      costs: as for `simulate`.
      plan: the plan, its own predictions not filled in.
      simulation: of the plan.
      room: bytes of the allocator that a plan may count on.
    """

    graph: Graph
    costs: Costs
    plan: Plan
    simulation: Simulation
    room: int

    @cached_property
    def _allocation(self) -> Allocation:
        return allocate(self.graph, self.costs, self.plan, limit=self._limit)

    @cached_property
    def _glance(self) -> Allocation:
        """The same in one process, in which nothing ran before: it never shows more."""
        return allocate(self.graph, self.costs, self.plan, limit=self._limit, count=1)

    @property
    def _limit(self) -> int | None:
        return None if self.room == UNLIMITED else self.room

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

    def may_keep(self, budget: int) -> bool:
        """Whether `keeps` is worth asking, found at a glance."""
        if self.simulation.window_peak_bytes > min(budget, self.room):
            return False  # the allocator only adds to it
        return self._glance.fits and self._glance.worst_bytes + self.loose_bytes <= budget

    def keeps(self, budget: int) -> bool:
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
        """Whether a step takes no longer than if nothing left the device or ran again."""
        return self.simulation.step_seconds <= self._whole_seconds * (1 + 1e-9)

    @cached_property
    def _whole_seconds(self) -> float:
        runs = (node.name for node in self.graph.nodes if not node.is_input)
        return math.fsum(self.costs.seconds.get(name, 0.0) for name in runs)


class Setting:
    """One choice of what lives on the host, with a plan for each limit."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        request: Request,
        order: Sequence[str],
        away: Sequence[str] = (),
        beside: Mapping[str, str] | None = None,
        observe: Callable[[], object] = lambda: None,
    ) -> None:
        self.graph, self.costs, self.request, self.observe = graph, costs, request, observe
        form = compact(graph)
        self.away = tuple(away)
        self.beside = beside or {}
        on_host = {*self.beside, *away}
        near = {"", request.device}
        absent = [node.name in on_host or node.device not in near for node in graph.nodes]
        self.base = [form.number[name] for name in order]
        on_device = [n for n in self.base if not absent[n] and not form.is_input[n]]
        self.stage = Stage(form, costs, on_device, absent)
        self.free = rehearse(self.stage, UNLIMITED, Knobs())
        self.made: dict[int, Candidate | None] = {}
        self.rehearsed: dict[int, list[Schedule]] = {}
        self.hopeless: dict[float, int] = {}  # the largest limit that each factor failed at

    @property
    def free_candidate(self) -> Candidate:
        """The plan that limits nothing: its order, and what lives on the host."""
        return self._candidate(self.free, self.free.peak_bytes)

    @property
    def least_seconds(self) -> float:
        """What a step takes where no limit holds a copy up."""
        best = self.at(self.limit(-_ROOMIER if self.away else 0))
        return best.rank[0] if best else math.inf

    def seconds_within(self, limit: int) -> float:
        """What a step takes under a limit, by the rehearsal's clock with most copies hidden."""
        try:
            return rehearse(self.stage, limit, Knobs(1.0, 1.0, _HIDDEN)).seconds
        except Unreachable:
            return math.inf

    def limit(self, number: int) -> int:
        """The limits that plans are made for: each a step below the one before."""
        above = self.free.peak_bytes - self.stage.fixed_bytes
        return self.stage.fixed_bytes + int(above * _STEP**number)

    def near(self, budget: int, seconds: float = math.inf) -> Iterator[Candidate]:
        """Plans for the limits next below a budget, those that may keep it.

        A graph that is not small is left at the first plan that takes as many seconds as asked, for
        those for lower limits hardly ever take less.
        """
        ways = 1 + 11 * bool(
            self.request.host
        )  # settings and factors that are looked at to the end
        looks = max(2, _EFFORT // (ways * len(self.graph)))
        is_small = len(self.graph) <= _SMALL
        looks = looks if is_small else min(looks, _LOOKS)
        lost = 0
        for number in range(-_ROOMIER if self.away else 0, _LIMITS):
            if self.limit(number) > budget or lost == _LOST:
                continue
            made = self.at(self.limit(number))
            if made is None:
                if not lost:
                    yield from (one for one in self._above(number, budget) if one.may_keep(budget))
                lost += 1
                continue
            lost = 0
            if not is_small and made.rank[0] >= seconds:
                return
            if made.may_keep(budget):
                yield made
                looks -= 1
                if not looks:
                    return

    def _above(self, number: int, budget: int) -> Iterator[Candidate]:
        """Plans for limits between one that cannot be kept and the one before it.

        All of them are worth a look: there are none below.
        """
        low, high = self.limit(number), self.limit(number - 1)
        for part in range(_PARTS - 1, 0, -1):
            between = low + part * (high - low) // _PARTS
            made = self.at(between) if between <= budget else None
            if made is not None:
                yield made

    def least(self, below: int = UNLIMITED) -> Iterator[Candidate]:
        """Plans on the way to the least limit that can be kept; none if it is above `below`."""
        kept, lost = -1, _LIMITS
        if below < self.free.peak_bytes:
            made = self.at(below)
            if made is None:
                return
            yield made
            kept = sum(self.limit(number) > below for number in range(_LIMITS)) - 1
        while lost - kept > 1:
            middle = (kept + lost) // 2
            made = self.at(self.limit(middle))
            if made is None:
                lost = middle
            else:
                kept = middle
                yield made
        low, high = self.limit(lost), self.limit(max(kept, 0))
        for _ in range(_HALVINGS):
            made = self.at((low + high) // 2)
            if made is None:
                low = (low + high) // 2
            else:
                high = (low + high) // 2
                yield made

    def at(self, limit: int) -> Candidate | None:
        """The best plan found for a limit, None if it cannot be kept."""
        if limit not in self.made:
            self.made[limit] = self._find(limit)
            self.observe()
        return self.made[limit]

    def _find(self, limit: int) -> Candidate | None:
        if limit >= self.free.peak_bytes:
            return self._candidate(self.free, limit)
        found = self._rehearse_all(limit)
        if found and self.away:  # what keeps less leaves room for copies that start early
            numbers = range(_LIMITS)
            below = next((n for n in numbers if self.limit(n) <= limit), _LIMITS) + _EARLIER
            found = found + self._rehearse_all(self.limit(below))
        candidates = [self._candidate(made, limit) for made in found]
        return min(candidates, key=lambda one: one.rank, default=None)

    def _rehearse_all(self, limit: int) -> list[Schedule]:
        """The fastest schedule found for each factor on the seconds of copies."""
        if limit not in self.rehearsed:
            self.rehearsed[limit] = self._rehearse(limit)
        return self.rehearsed[limit]

    def _rehearse(self, limit: int) -> list[Schedule]:
        best = []
        for factor in self._swap_factors():
            if limit <= self.hopeless.get(factor, -1):
                continue
            made = []
            for knobs in self._knobs(factor):
                try:
                    made.append(rehearse(self.stage, limit, knobs))
                except Unreachable:
                    continue
            if made:
                best.append(min(made, key=lambda one: one.seconds))
            else:
                self.hopeless[factor] = limit
        return best

    def _swap_factors(self) -> tuple[float, ...]:
        if not self.request.host:
            return (NEVER,)
        swaps = (1.0, _HIDDEN) if "swap" in self.request.techniques else ()
        if "recompute" in self.request.techniques or not swaps:
            return (NEVER, *swaps)
        return swaps

    def _knobs(self, factor: float) -> list[Knobs]:
        may = "recompute" in self.request.techniques
        if not may:
            return [Knobs(0.0, patience, factor, may) for patience in (1.0, 0.5)]
        tried = [Knobs(1.0, 1.0, factor), Knobs(0.1, 1.0, factor), Knobs(1.0, 0.5, factor)]
        if factor < NEVER:
            return tried[:1]
        if len(self.graph) <= _SMALL:
            more = itertools.product((0.0, 0.1, 1.0, 3.0), (0.0, 0.5, 1.0, 2.0))
            tried += [Knobs(spread, patience, factor) for spread, patience in more]
        return tried

    def _candidate(self, made: Schedule, limit: int) -> Candidate:
        plan = plan_of(made, self.stage, self.base, self.away, self.beside, limit)
        plan = replace(plan, device=self.request.device, host=self.request.host)
        return candidate(self.graph, self.costs, plan, self.request.limit)


def candidate(graph: Graph, costs: Costs, plan: Plan, limit: int | None) -> Candidate:
    """A plan with its simulation, for an allocator of this limit."""
    room = UNLIMITED if limit is None else int(_ROOM * limit)
    return Candidate(graph, costs, plan, simulate(graph, costs, plan), room)


def calm_order(graph: Graph, costs: Costs, request: Request) -> tuple[str, ...]:
    """The order with the least peak that may be had; updates keep their place in it."""
    if "order" in request.techniques:
        return memory_order(graph, costs, request.device)
    return program_order(graph)


def settings(
    graph: Graph,
    costs: Costs,
    request: Request,
    calm: tuple[str, ...],
    observe: Callable[[], object] = lambda: None,
) -> Iterator[Setting]:
    """Every choice of what lives on the host, the least first.

    Args:
      graph: what is planned.
      costs: its prices.
      request: for where, and with which techniques; its budget does not matter.
      calm: from `calm_order`.
      observe: called whenever a limit has been looked at.
    """

    def made(order: tuple[str, ...], away: Sequence[str], beside: dict[str, str]) -> Setting:
        return Setting(graph, costs, request, order, away, beside, observe)

    order, may_order = calm, "order" in request.techniques
    if may_order:
        order = _with_updates(graph, costs, request.device, calm)
    orders = [shapes_first(graph, order)]
    there = variables_on(graph, request.host) if request.host else ()
    levels: list[tuple[str, ...]] = [()]
    if request.host and "place" in request.techniques:
        levels = placement_levels(graph, request.device)
    if not there:
        yield made(orders[0], (), {})
        levels = levels[1:]
    if levels and may_order:
        orders.append(shapes_first(graph, updates_first(graph, program_order(graph))))
    for level in levels:
        away = (*there, *level)
        besides = [moved_nodes(graph, away, by) for by in (costs, None)]
        for beside in besides if besides[0] != besides[1] else besides[:1]:
            yield _faster([made(order, away, beside) for order in orders])


def _faster(made: Sequence[Setting]) -> Setting:
    """That whose order is the faster one under the tightest limit that any of them can keep."""
    least = min(made, key=lambda one: one.free.peak_bytes)
    for limit in map(least.limit, _TIGHT):
        seconds = [one.seconds_within(limit) for one in made]
        if min(seconds) < math.inf:
            return made[seconds.index(min(seconds))]
    return least


def _with_updates(
    graph: Graph, costs: Costs, device: str, calm: tuple[str, ...]
) -> tuple[str, ...]:
    """The order with early updates, if fewer bytes are in use beside the nodes that keep theirs."""
    movable = movable_nodes(graph)

    def total(order: tuple[str, ...]) -> int:
        found = simulate(graph, costs, Plan(order=order, device=device))
        rows = zip(found.order, found.timeline.tolist(), strict=True)
        return sum(nbytes for name, nbytes in rows if name not in movable)

    return min(calm, updates_first(graph, calm), key=total)
