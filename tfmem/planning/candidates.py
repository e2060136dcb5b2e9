"""The plans that a search chooses from in one order: several memory limits and ways to score.

Which plans there are depends on the graph, the costs and the techniques; which of them are looked
at depends on the budget, too (`Candidates.below`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.clones import with_clones
from tfmem.graph.ir import Graph
from tfmem.planning.candidate import Candidate, candidate
from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.rehearsal import Slower, Unreachable
from tfmem.planning.eviction.rehearsals import Rehearsals
from tfmem.planning.eviction.schedule import Schedule
from tfmem.planning.eviction.scores import Scoring
from tfmem.planning.eviction.to_plan import plan_of
from tfmem.planning.order.early import updates_after_reads
from tfmem.planning.request import Request
from tfmem.simulation.simulate import Recent

# Each constant: unit; what more and less of it trade; what would change it. What other values do to
# plans and planning time is measured by `python -m models.bench.constants`
# (docs/measured/constants.md).

RATIO = 0.92
"""Of one memory limit to the next, of the bytes above those that stay. Nearer to 1 finds plans
nearer to a budget and takes more rehearsals. Would change with cheaper rehearsals."""

LIMITS = 60
"""Memory limits below the unlimited peak: down to 1/150 of the bytes above those that stay. More
reach lower."""

LIMITS_ABOVE = 24
"""Memory limits above the unlimited peak, up to seven times as much, for copies from the host that
start early and fill them. More hide more copies on slow links."""

MOSTLY_HIDDEN = 0.2
"""Part of the seconds of copies that counts where most are taken to be hidden behind computation.
Less swaps more readily. Would change if schedules told which copies are hidden."""

MOST_FAILURES = 6
"""Limits in a row that cannot be kept before those below are given up. What can be kept is not
monotone in the limit; more find what lies below a gap and lengthen refusals."""

DIVISIONS = 4
"""Into which the gap above the first limit that cannot be kept is divided: more come nearer to the
least that can be."""

HALVINGS = 3
"""How often the gap between the least limit that was kept and the next one is halved."""

EFFORT = 40_000
"""Nodes times candidates that are looked at for one budget. Binds in small graphs from 40 nodes on
and, with a host, between 556 and 1,667 nodes; without one above 6,666. Elsewhere `MOST_LOOKED_AT`
or the number of limits binds. More looks at more plans below a budget, and plans longer."""

MOST_LOOKED_AT = 6
"""Candidates below a budget that are looked at in a graph that is not small."""

WAYS_WITH_A_HOST = 12
"""Divides `EFFORT` where there is a host, for there are up to five levels of placement, two cuts
and three copy factors; less than their product, for most levels are left early."""

SMALL = 100
"""Nodes of a graph for which scores are made in every way; each takes a rehearsal more."""

SCORINGS = ((1.0, 1.0), (0.1, 1.0), (1.0, 0.5))
"""Ways to score, (neighbours, staleness exponent): the first where values may also be swapped, all
of them where they may not. Which is best depends on the graph; each takes a rehearsal."""

MORE_SCORINGS = tuple(itertools.product((0.0, 0.1, 1.0, 3.0), (0.0, 0.5, 1.0, 2.0)))
"""Ways that are tried as well in a small graph."""

SCORINGS_OF_SWAPS = ((0.0, 1.0), (0.0, 0.5))
"""Ways where nothing may be computed again, so that neighbours do not count."""


class Candidates:
    """The plans of one choice of what lives on the host: the best found for each memory limit."""

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
        form = graph.form
        self.away = tuple(away)
        self.beside = beside or {}
        moved = {*self.beside, *away}
        near = {"", request.device}
        on_host = [node.name in moved or node.device not in near for node in graph.nodes]
        self.base = [form.number[name] for name in order]
        on_device = [n for n in self.base if not on_host[n] and not form.is_input[n]]
        self.problem = EvictionProblem(form, costs, on_device, on_host)
        self._rehearsals = Rehearsals(self.problem)
        self.unlimited = self._rehearsals.under(math.inf, Scoring())
        self._by_limit: dict[int, Candidate | None] = {}
        self._candidates: dict[tuple[int, int], Candidate] = {}
        self._recent = Recent()
        self._failed_at: dict[float, int] = {}  # the largest limit that each copy factor failed at

    @property
    def unlimited_candidate(self) -> Candidate:
        """The plan that limits nothing: its order, and what lives on the host."""
        return self._candidate(self.unlimited, self.unlimited.peak_bytes)

    @property
    def least_seconds(self) -> float:
        """What a step takes where no limit holds a copy up."""
        best = self.at(self.limit(-LIMITS_ABOVE if self.away else 0))
        return best.rank[0] if best else math.inf

    def seconds_within(self, limit: int, most: float = math.inf) -> float:
        """What a step takes under a limit with most copies hidden; infinite if `most` or more."""
        factor = MOSTLY_HIDDEN if self.request.host else math.inf
        if limit <= self._failed_at.get(factor, -1):
            return math.inf
        try:
            return self._rehearsals.under(limit, Scoring(*SCORINGS[0], factor), most).seconds
        except Slower:
            return math.inf
        except Unreachable:
            if factor < math.inf:  # else there are other ways to score
                self._failed_at[factor] = limit
            return math.inf

    def limit(self, number: int) -> int:
        """The limits that plans are made for: each a step below the one before; bytes."""
        above = self.unlimited.peak_bytes - self.problem.fixed_bytes
        return self.problem.fixed_bytes + int(above * RATIO**number)

    def below(self, budget: int, seconds: float = math.inf) -> Iterator[Candidate]:
        """Plans for the limits next below a budget, those that may keep it.

        A graph that is not small is left at the first plan that takes as many seconds as asked, or
        keeps the budget: those for lower limits hardly ever take less.
        """
        ways = WAYS_WITH_A_HOST if self.request.host else 1
        looks = max(2, EFFORT // (ways * len(self.graph)))
        is_small = len(self.graph) <= SMALL
        looks = looks if is_small else min(looks, MOST_LOOKED_AT)
        failures = 0
        for number in range(-LIMITS_ABOVE if self.away else 0, LIMITS):
            if self.limit(number) > budget or failures == MOST_FAILURES:
                continue
            made = self.at(self.limit(number))
            if made is None:
                if not failures:
                    yield from (one for one in self._above(number, budget) if one.may_keep(budget))
                failures += 1
                continue
            failures = 0
            if not is_small and made.rank[0] >= seconds:
                return
            if made.may_keep(budget):
                yield made
                looks -= 1
                is_best = not is_small and made.keeps(budget)
                if is_best or not looks:
                    return

    def _above(self, number: int, budget: int) -> Iterator[Candidate]:
        """Plans for limits between one that cannot be kept and the one before it.

        All of them are worth a look: there are none below.
        """
        low, high = self.limit(number), self.limit(number - 1)
        for part in range(DIVISIONS - 1, 0, -1):
            between = low + part * (high - low) // DIVISIONS
            made = self.at(between) if between <= budget else None
            if made is not None:
                yield made

    def towards_least(self, below: float = math.inf) -> Iterator[Candidate]:
        """Plans on the way to the least limit that can be kept; none if it is above `below`."""
        kept, lost = -1, LIMITS
        if below < self.unlimited.peak_bytes:
            made = self.at(int(below))
            if made is None:
                return
            yield made
            kept = sum(self.limit(number) > below for number in range(LIMITS)) - 1
        while lost - kept > 1:
            middle = (kept + lost) // 2
            made = self.at(self.limit(middle))
            if made is None:
                lost = middle
            else:
                kept = middle
                yield made
        low, high = self.limit(lost), self.limit(max(kept, 0))
        for _ in range(HALVINGS):
            made = self.at((low + high) // 2)
            if made is None:
                low = (low + high) // 2
            else:
                high = (low + high) // 2
                yield made

    def at(self, limit: int) -> Candidate | None:
        """The best plan found for a limit, None if it cannot be kept."""
        if limit not in self._by_limit:
            self._by_limit[limit] = self._find(limit)
            self.observe()
        return self._by_limit[limit]

    def _find(self, limit: int) -> Candidate | None:
        if limit >= self.unlimited.peak_bytes:
            return self._candidate(self.unlimited, limit)
        best: Candidate | None = None
        for factor in self._copy_factors():
            # No step takes less than its schedule computes, which is all where no copy counts.
            seconds = best.rank[0] if best and factor == math.inf else math.inf
            if made := self._rehearse(limit, factor, seconds):
                found = self._candidate(made, limit)
                best = min(best, found, key=lambda one: one.rank) if best else found
        return best

    def _rehearse(self, limit: int, factor: float, seconds: float) -> Schedule | None:
        """The fastest schedule found for a factor on the seconds of copies, if it takes less."""
        if limit <= self._failed_at.get(factor, -1):
            return None
        best: Schedule | None = None
        is_kept = False
        for scoring in self._scorings(factor):
            try:
                best = self._rehearsals.under(limit, scoring, best.seconds if best else seconds)
            except Unreachable:
                continue
            except Slower:
                pass
            is_kept = True
        if not is_kept:
            self._failed_at[factor] = limit
        return best

    def _copy_factors(self) -> tuple[float, ...]:
        if not self.request.host:
            return (math.inf,)
        swaps = (MOSTLY_HIDDEN, 1.0) if "swap" in self.request.techniques else ()
        if "recompute" in self.request.techniques or not swaps:
            return (*swaps, math.inf)
        return swaps

    def _scorings(self, factor: float) -> list[Scoring]:
        if "recompute" not in self.request.techniques:
            return [Scoring(*way, factor, may_recompute=False) for way in SCORINGS_OF_SWAPS]
        if factor < math.inf:
            return [Scoring(*SCORINGS[0], factor)]
        more = MORE_SCORINGS if len(self.graph) <= SMALL else ()
        return [Scoring(*way, factor) for way in (*SCORINGS, *more)]

    def _candidate(self, made: Schedule, limit: int) -> Candidate:
        """The plan of a schedule; the limit tells only when copies may start."""
        key = id(made), limit if made.copies else 0
        if key not in self._candidates:
            self._candidates[key] = self._made(made, limit)
        return self._candidates[key]

    def _made(self, made: Schedule, limit: int) -> Candidate:
        plan = plan_of(made, self.problem, self.base, self.away, self.beside, limit)
        plan = replace(plan, device=self.request.device, host=self.request.host)
        if not plan.host:  # what nodes of another device make crosses by itself
            plan = replace(plan, evictions=())
        if plan.recomputations and not plan.transfers:  # a copy may begin behind an update
            cloned = with_clones(self.graph, plan.recomputations)
            plan = replace(plan, order=updates_after_reads(cloned, plan.order))
        return candidate(self.graph, self.costs, plan, self.request, self._recent)
