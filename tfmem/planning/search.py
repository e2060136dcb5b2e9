"""Choose a plan for a graph under a budget."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.errors import BudgetError
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.plan import BodyPlan, Plan
from tfmem.planning.alternatives import candidate_sets, least_peak_order
from tfmem.planning.candidate import Candidate, candidate
from tfmem.planning.candidates import SMALL, Candidates
from tfmem.planning.judge import (
    Original,
    beside_others,
    checked,
    decision,
    original,
    unchanged,
    within,
)
from tfmem.planning.nested import (
    bytes_given,
    charge,
    costs_of,
    plan_bodies,
    room_beside,
    without_budgets,
)
from tfmem.planning.order.early import small_first
from tfmem.planning.order.in_flight import widest_window
from tfmem.planning.published.tensorflowmem import TensorFlowMem
from tfmem.planning.request import Decision, Request
from tfmem.units import format_bytes

# Constants as in `candidates`: measured by `python -m models.bench.constants`.

FASTER_UNDER_A_LIMIT = 0.97
"""How much faster a plan for a limit may be than that for none, whose order it need not have, and
still be looked for. Less looks at more placements that hardly ever win, and plans longer."""

HARDLY_LONGER = 1.005
"""Times the seconds of a step in which nothing leaves the device or runs twice at which a plan is
good enough, so that no other placement is looked at in a graph that is not small. Predicted times
are no more exact. Less takes twice as long to plan where copies can be hidden; more may miss a
faster plan, or let a larger budget have a slower one."""

NO_LONGER = 1 + 1e-9
"""The same in a small graph."""

SHARES = (1.0, 0.95, 0.9, 0.85, 0.75, 0.5, 0.0)
"""Parts of what is left free that bodies are planned for, one after the other: what is left free
is known only once what is around them is planned. More find the largest that is enough, each at
the price of a search."""


def choose(
    graph: Graph,
    costs: Costs,
    request: Request,
    observe: Callable[[], object] = lambda: None,
    bodies: Bodies | None = None,
) -> Decision:
    """The fastest plan that is predicted to keep the budget.

    An original whose predicted peak is well below the budget is left as it is. Without a budget
    only the order is changed.

    Bodies of loops and branches are planned first, for what the nodes around them leave free, and
    for less of it where that is not enough; only their order changes, and what is computed again.

    Args:
      graph: what is planned.
      costs: its prices.
      request: for where, with what, within how many bytes.
      observe: called after each limit looked at.
      bodies: of the graph's loops and branches.

    Raises:
      BudgetError: no plan keeps the budget.
    """

    def planned(rest: Request) -> Decision:
        before = original(graph, costs, rest, bodies or {})
        return _planned(
            graph, costs, rest, bodies or {}, before, _BodyPlanner(rest, costs, observe)
        )

    with _uncollected():
        return beside_others(request, planned)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps Python from looking for circles of objects meanwhile.

    Planning makes many objects and hardly a circle; to look for them takes a tenth of its time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _planned(
    graph: Graph,
    costs: Costs,
    request: Request,
    bodies: Bodies,
    before: Original,
    inner: _BodyPlanner,
) -> Decision:
    if request.budget is not None and before.keeps(request):
        reason = f"the original's peak of {format_bytes(before.peak_bytes)} is within the budget"
        return unchanged(before, request, reason)
    free, given = dict[str, int](), dict[tuple[str, int], int]()
    if request.budget is not None and bodies:
        free = room_beside(graph, costs, request.device, request.budget)
        given = bytes_given(graph, costs, bodies, request.device)
    errors, done, tried = [], list[tuple[BodyPlan, ...]](), list[Costs]()
    for share in SHARES if bodies and request.budget else (1.0,):
        room: dict[str, int | None] = dict.fromkeys(bodies)
        if request.budget is not None:
            room = {name: int(free[name] * share) for name in bodies if name in free}
        planned = plan_bodies(bodies, costs, room, given, inner.plan)
        if (does := without_budgets(planned)) in done:
            continue
        done.append(does)
        charged = charge(graph, costs, bodies, planned, request.device)
        if charged in tried:  # others, too, may cost the same
            continue
        tried.append(charged)
        try:
            found = _chosen(graph, charged, request, before, inner.observe)
        except BudgetError as error:
            errors.append(error.with_traceback(None))
            continue
        plan = found.plan if found.plan.is_noop else replace(found.plan, bodies=planned)
        return replace(found, plan=plan)
    errors.sort(key=lambda error: error.least_bytes or 0)
    raise errors.pop(0)  # kept in this frame, it would keep alive what callers' frames hold


class _BodyPlanner:
    """Plans the bodies of one search, each for several budgets, with what needs no host."""

    def __init__(self, request: Request, costs: Costs, observe: Callable[[], object]) -> None:
        self.request, self.costs, self.observe = request, costs, observe
        self.least: dict[int, Plan] = {}
        self.found: dict[int, Decision] = {}
        self.originals: dict[int, Original] = {}

    def plan(self, body: Body, budget: int | None) -> Plan:
        """The plan within a budget; if there is none, that with the least peak.

        One for more that keeps less, too, is the plan for both.
        """
        if budget is None:
            return self._decide(body, None).plan
        known = self.least.get(id(body))
        if known is not None and budget <= (known.budget or 0):
            return known
        found = self.found.get(id(body))
        if found is not None and found.keeps(budget) and budget <= (found.plan.budget or 0):
            return found.plan
        try:
            found = self._decide(body, budget)
        except BudgetError as error:
            plan = self.least[id(body)] = self._decide(body, error.least_bytes).plan
            return plan
        if not found.plan.is_noop:  # whose nodes run in any order, for which more is left free
            self.found[id(body)] = found
        return found.plan

    def _decide(self, body: Body, budget: int | None) -> Decision:
        costs = costs_of(body, self.costs, self.request.device)
        request = within(self.request, budget)
        before = self.originals.get(id(body))
        if before is None:
            before = original(body.graph, costs, request, body.bodies)
            self.originals[id(body)] = before
        return _planned(body.graph, costs, request, body.bodies, before, self)


def _chosen(
    graph: Graph,
    costs: Costs,
    request: Request,
    before: Original,
    observe: Callable[[], object],
) -> Decision:
    if request.budget is None and "order" not in request.techniques:
        return unchanged(before, request, "no budget is set, and the order may not be changed")
    least_peak = least_peak_order(graph, costs, request)
    if request.budget is None:
        ordered = replace(request, techniques=frozenset({"order"}))
        best = next(candidate_sets(graph, costs, ordered, least_peak, observe)).unlimited_candidate
    else:
        sets = candidate_sets(graph, costs, request, least_peak, observe)
        best = _fastest(sets, _policies(graph, costs, request, least_peak), request.budget)
    best = _loosened(graph, costs, best, request, least_peak)
    found = decision(best, before, request)
    if request.budget is not None and not found.keeps(request.budget):
        least = best.least_budget(request.budget, request.may_grow)
        found = replace(found, least_bytes=least)
    return checked(found, request, before)


def _loosened(
    graph: Graph, costs: Costs, found: Candidate, request: Request, least_peak: tuple[str, ...]
) -> Candidate:
    """The plan with as many nodes in flight out of order as hardly need more memory.

    It is in the order of the least peak: updates that run early among others break up the large
    free chunks with their small buffers (an MoE transformer: 582 MB measured where 540 were
    predicted; 583 and 571 without). Not where values leave and come back, for the order alone
    bounds the copies in flight; nor where nodes run again, which gains nothing (a GPT: 1.22 of
    plain TensorFlow's time with eight nodes in flight, 1.20 with one).
    """
    is_bound = request.in_order or found.plan.transfers or found.plan.recomputations
    if is_bound or not found.plan.order:
        return found
    plan = replace(found.plan, order=small_first(graph, least_peak))
    window = widest_window(graph, costs, plan)
    if window == 1:
        return found
    loose = candidate(graph, costs, replace(plan, window=window), request)
    return loose if loose.keeps(request.budget or math.inf) else found


def _fastest(sets: Iterator[Candidates], policies: list[Candidate], budget: int) -> Candidate:
    """The fastest candidate within the budget; if there is none, that with the least peak.

    More variables are moved only as long as that may be faster: limits only add to the time of the
    plan that has none.
    """
    found, seen = list(policies), []
    for one_set in sets:
        seen.append(one_set)
        kept = _first(found, budget)
        if kept and FASTER_UNDER_A_LIMIT * one_set.least_seconds >= kept.rank[0]:
            continue
        found += one_set.below(budget, kept.rank[0] if kept else math.inf)
        most = NO_LONGER if len(one_set.graph) <= SMALL else HARDLY_LONGER
        if any(one.takes_at_most(most) and one.keeps(budget) for one in found):
            break
    if kept := _first(found, budget):
        return kept
    # That with most on the host first, for it mostly reaches least; others with less in use yet.
    least = below = math.inf
    for one_set in reversed(seen):
        reached = list(one_set.towards_least(below))
        found += reached
        for one in sorted(reached, key=_bound):
            if _bound(one) >= least:
                break
            has_holes, nbytes = one.least_at_best
            if nbytes < least and not has_holes:
                least, below = nbytes, _bound(one)
    return _first(found, budget) or _least(found)


def _first(candidates: Iterable[Candidate], budget: int) -> Candidate | None:
    """The best of the candidates that keep the budget."""
    ranked = sorted(candidates, key=lambda one: one.rank)
    return next((one for one in ranked if one.keeps(budget)), None)


def _bound(candidate: Candidate) -> int:
    """Bytes that a candidate takes at least: the allocator only adds to what is in use."""
    return candidate.simulation.window_peak_bytes


def _least(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the least peak."""
    best, *others = sorted(candidates, key=_bound)
    for one in others:
        has_holes, nbytes = best.least
        if not has_holes and _bound(one) >= nbytes:
            break
        if one.least_at_best < best.least:
            best = min(best, one, key=lambda one: one.least)
    return best


def _policies(
    graph: Graph, costs: Costs, request: Request, least_peak: tuple[str, ...]
) -> list[Candidate]:
    """The published system's plans with ever more techniques, so that none of ours is behind it."""
    if not request.host:
        return []
    plans = []
    ordered = Graph(tuple(graph.by_name[name] for name in least_peak), graph.outputs)
    for level in (("swap",), ("swap", "place")):
        if request.techniques >= {"order", *level}:
            plan = TensorFlowMem().decide(
                ordered,
                costs,
                device=request.device,
                host=request.host,
                techniques=frozenset(level),
            )
            plans.append(candidate(graph, costs, replace(plan, order=least_peak), request))
    return plans
