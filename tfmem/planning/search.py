"""Choose a plan for a graph under a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tfmem.costs.types import Costs
from tfmem.errors import BudgetError, Error
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.plan import BodyPlan, Plan
from tfmem.planning.candidates import UNLIMITED, Candidate, Setting, calm_order, candidate, settings
from tfmem.planning.nested import charge, costs_of, plan_bodies, room_beside
from tfmem.planning.order.early import shapes_first
from tfmem.planning.published.tensorflowmem import TensorFlowMem, widest_window
from tfmem.planning.request import Decision, Request
from tfmem.planning.strategy import Strategy
from tfmem.simulation.original import joined
from tfmem.simulation.simulate import Simulation, allocate, simulate
from tfmem.units import format_bytes

_UNORDERED = 1.2
"""How far above its prediction the original's peak may be: nothing bounds what runs at once there
(a GPT: 602 MB measured, 526 predicted)."""


_HOPELESS = 0.97
"""How much faster a plan for a limit may be than that for none, whose order it need not have."""

_SHARES = (1.0, 0.95, 0.9, 0.85, 0.75, 0.5, 0.0)
"""Parts of what is left free that bodies are planned for, one after the other: what is left free
is known only once what is around them is planned."""


_BODY_LIMIT = 1 << 40
"""Bodies run in an allocator that has long taken all its regions."""


def choose(
    graph: Graph,
    costs: Costs,
    request: Request,
    observe: Callable[[], object] = lambda: None,
    bodies: Bodies | None = None,
) -> Decision:
    """The fastest plan that keeps the budget; `observe` is called after each limit looked at.

    A budget above the original's peak changes nothing. Without a budget nothing may cost time, so
    only the order is changed. Which plans there are does not depend on the budget, except that of
    each setting only those next below it are looked at as long as one of them keeps it.

    Bodies of loops and branches are planned first, for what the nodes around them leave free, and
    for less of it where that is not enough; only their order changes, and what is computed again.

    Raises:
      BudgetError: no plan keeps the budget.
    """
    return _beside(
        request,
        lambda rest: _planned(graph, costs, rest, bodies or {}, _Inner(rest, costs, observe)),
    )


def _beside(request: Request, decide: Callable[[Request], Decision]) -> Decision:
    """Decides for what others leave of the budget; what they hold counts in the predictions."""
    beside = request.beside
    if not beside:
        return decide(request)
    text = f"{format_bytes(beside)} are in use on {request.device} beside the function"
    rest = replace(
        request,
        beside=0,
        budget=request.budget and max(1, request.budget - beside),
        limit=request.limit and max(1, request.limit - beside),
    )
    try:
        found = decide(rest)
    except BudgetError as error:
        least = error.least_bytes and error.least_bytes + beside
        raise BudgetError(f"{error}\n{text}, which is counted besides", least) from error
    plan = replace(
        found.plan,
        budget=request.budget,
        peak_bytes=found.plan.peak_bytes + beside,
        baseline_peak_bytes=found.plan.baseline_peak_bytes + beside,
    )
    return replace(found, plan=plan, worst_bytes=found.worst_bytes + beside)


def _planned(
    graph: Graph, costs: Costs, request: Request, bodies: Bodies, inner: _Inner
) -> Decision:
    before = _original(graph, costs, request)
    if request.budget is not None and before.keeps(request):
        reason = f"the original's peak of {format_bytes(before.peak_bytes)} is within the budget"
        return _unchanged(before, request, reason)
    errors, tried = [], []
    for share in _SHARES if bodies and request.budget else (1.0,):
        room: dict[str, int | None] = dict.fromkeys(bodies)
        if request.budget is not None and bodies:
            free = room_beside(graph, costs, request.device, request.budget)
            room = {name: int(free[name] * share) for name in bodies if name in free}
        planned = plan_bodies(graph, costs, bodies, room, inner.plan)
        charged = charge(graph, costs, bodies, planned, request.device)
        if charged in tried:
            continue
        tried.append(charged)
        try:
            found = _chosen(graph, charged, request, before, inner.observe)
        except BudgetError as error:
            errors.append(error)
            continue
        plan = found.plan if found.plan.is_noop else replace(found.plan, bodies=planned)
        return replace(found, plan=plan)
    raise min(errors, key=lambda error: error.least_bytes or 0)


class _Inner:
    """Plans the bodies of one search, each for several budgets, with what needs no host."""

    def __init__(self, request: Request, costs: Costs, observe: Callable[[], object]) -> None:
        self.request, self.costs, self.observe = request, costs, observe
        self.least: dict[int, Plan] = {}

    def plan(self, body: Body, budget: int | None) -> Plan:
        """The plan within a budget; if there is none, that with the least peak."""
        known = self.least.get(id(body))
        if known is not None and budget is not None and budget <= (known.budget or 0):
            return known
        try:
            return self._plan(body, budget)
        except BudgetError as error:
            plan = self.least[id(body)] = self._plan(body, error.least_bytes)
            return plan

    def _plan(self, body: Body, budget: int | None) -> Plan:
        costs = costs_of(body, self.costs, self.request.device)
        request = _within(self.request, budget)
        return _planned(body.graph, costs, request, body.bodies, self).plan


def _within(request: Request, budget: int | None) -> Request:
    """What is asked of a body, which has no host, for a budget of its own."""
    return replace(
        request,
        host="",
        budget=budget,
        techniques=request.techniques & {"order", "recompute"},
        limit=request.limit or _BODY_LIMIT,
        max_slowdown=None,
    )


def _chosen(
    graph: Graph,
    costs: Costs,
    request: Request,
    before: _Original,
    observe: Callable[[], object],
) -> Decision:
    if request.budget is None and "order" not in request.techniques:
        return _unchanged(before, request, "no budget is set, and the order may not be changed")
    calm = calm_order(graph, costs, request)
    if request.budget is None:
        ordered = replace(request, techniques=frozenset({"order"}))
        best = next(settings(graph, costs, ordered, calm, observe)).free_candidate
    else:
        spaces = settings(graph, costs, request, calm, observe)
        best = _fastest(spaces, _policies(graph, costs, request, calm), request.budget)
    best = _loosened(graph, costs, best, request, calm)
    return _checked(_decision(best, before, request), request, before)


def _loosened(
    graph: Graph, costs: Costs, found: Candidate, request: Request, calm: tuple[str, ...]
) -> Candidate:
    """The plan with as many nodes in flight out of order as hardly need more memory.

    It is in the calm order: updates that run early among others break up the large free chunks with
    their small buffers (an MoE transformer: 582 MB measured where 540 were predicted; 583 and 571
    without). Not where values leave and come back, for the order alone bounds the copies in flight;
    nor where nodes run again, which gains nothing (a GPT: 1.22 of plain TensorFlow's time with
    eight nodes in flight, 1.20 with one).
    """
    if found.plan.transfers or found.plan.recomputations or not found.plan.order:
        return found
    plan = replace(found.plan, order=shapes_first(graph, calm))
    window = widest_window(graph, costs, plan)
    if window == 1:
        return found
    loose = candidate(graph, costs, replace(plan, window=window), request.limit)
    return loose if loose.keeps(min(request.budget or UNLIMITED, found.room)) else found


def _fastest(spaces: Iterator[Setting], policies: list[Candidate], budget: int) -> Candidate:
    """The fastest candidate within the budget; if there is none, that with the least peak.

    More variables are moved only as long as that may be faster: limits only add to the time of the
    plan that has none.
    """
    found, seen = list(policies), []
    for space in spaces:
        seen.append(space)
        kept = _first(found, budget)
        if kept and _HOPELESS * space.least_seconds >= kept.rank[0]:
            continue
        found += space.near(budget, kept.rank[0] if kept else math.inf)
        if any(one.costs_nothing and one.keeps(budget) for one in found):
            break
    if kept := _first(found, budget):
        return kept
    # That with most on the host first, for it mostly reaches least; the others if they reach less.
    below = UNLIMITED
    for space in reversed(seen):
        reached = list(space.least(below))
        found += reached
        bounds = (one.least_at_best for one in reached)
        below = min([below, *(nbytes for has_holes, nbytes in bounds if not has_holes)])
    return _first(found, budget) or _least(found)


def _first(candidates: Iterable[Candidate], budget: int) -> Candidate | None:
    """The best of the candidates that keep the budget."""
    ranked = sorted(candidates, key=lambda one: one.rank)
    return next((one for one in ranked if one.keeps(budget)), None)


def _least(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the least peak."""
    best, *others = sorted(candidates, key=lambda one: one.least_at_best)
    for one in others:
        if one.least_at_best >= best.least:
            break
        best = min(best, one, key=lambda one: one.least)
    return best


def _policies(
    graph: Graph, costs: Costs, request: Request, calm: tuple[str, ...]
) -> list[Candidate]:
    """The published system's plans with ever more techniques, so that none of ours is behind it."""
    if not request.host:
        return []
    plans = []
    ordered = Graph(tuple(graph.by_name[name] for name in calm), graph.outputs)
    for level in (("swap",), ("swap", "place")):
        if request.techniques >= {"order", *level}:
            plan = TensorFlowMem().decide(
                ordered,
                costs,
                device=request.device,
                host=request.host,
                techniques=frozenset(level),
            )
            plans.append(candidate(graph, costs, replace(plan, order=calm), request.limit))
    return plans


def _decision(found: Candidate, before: _Original, request: Request) -> Decision:
    plan = _predicted(found.plan, before, found.simulation, found.peak_bytes)
    plan = replace(plan, budget=request.budget)
    return Decision(plan, before.simulation, found.simulation, found.worst_bytes, found.fits)


@dataclass(frozen=True)
class _Original:
    """The original function: its simulation, its peaks in the allocator, whether it has room."""

    simulation: Simulation
    peak_bytes: int
    worst_bytes: int
    fits: bool

    def keeps(self, request: Request) -> bool:
        """Whether the budget holds even if much more runs at the same time than was foreseen."""
        least = min(request.budget or 0, request.limit or UNLIMITED)
        return self.fits and self.worst_bytes * _UNORDERED <= least


def judge(
    graph: Graph, costs: Costs, request: Request, plan: Plan, bodies: Bodies | None = None
) -> Decision:
    """A plan made before with the predictions that it has on this graph.

    Raises:
      Error: the plan does not fit the graph.
    """
    charged = charge(graph, costs, bodies or {}, plan.bodies, request.device)

    def judged(rest: Request) -> Decision:
        for one in plan.bodies:
            _check_body(one, costs, rest, bodies or {})
        return _judged(graph, charged, rest, plan, _original(graph, costs, rest))

    return _beside(request, judged)


def _judged(
    graph: Graph, costs: Costs, request: Request, plan: Plan, before: _Original
) -> Decision:
    if plan.is_noop:
        return _unchanged(before, request, plan.reason)
    return _decision(candidate(graph, costs, plan, request.limit), before, request)


def _check_body(one: BodyPlan, costs: Costs, request: Request, bodies: Bodies) -> None:
    functions = bodies.get(one.node, ())
    if not 0 <= one.branch < len(functions):
        raise Error(f"{one.node} runs no function {one.branch}; plan for this graph")
    body = functions[one.branch]
    inner = _within(request, one.plan.budget)
    priced = costs_of(body, costs, request.device)
    if judge(body.graph, priced, inner, one.plan, body.bodies).plan != one.plan:
        raise Error(f"the plan of {one.node}'s function {one.branch} is not what it says")


def carry_out(graph: Graph, costs: Costs, request: Request, strategy: Strategy) -> Decision:
    """The plan of a strategy with all techniques of the request, whatever the original's peak is.

    Raises:
      BudgetError: it does not keep the budget.
    """
    plan = strategy.decide(
        graph,
        costs,
        device=request.device,
        host=request.host,
        techniques=request.techniques,
    )

    def checked(rest: Request) -> Decision:
        before = _original(graph, costs, rest)
        return _checked(_judged(graph, costs, rest, plan, before), rest, before)

    return _beside(request, checked)


def _unchanged(before: _Original, request: Request, reason: str) -> Decision:
    """The plan that leaves a graph as it is, and says why."""
    plan = Plan(device=request.device, host=request.host, budget=request.budget, reason=reason)
    plan = _predicted(plan, before, before.simulation, before.peak_bytes)
    both = before.simulation, before.simulation
    return Decision(plan, *both, before.worst_bytes, before.fits)


def _original(graph: Graph, costs: Costs, request: Request) -> _Original:
    plan = Plan(device=request.device, host=request.host)
    graph, costs = joined(graph, costs)
    allocation = allocate(graph, costs, plan, limit=request.limit)
    peaks = allocation.usual_bytes, allocation.worst_bytes
    return _Original(simulate(graph, costs, plan), *peaks, allocation.fits)


def _predicted(plan: Plan, before: _Original, after: Simulation, peak_bytes: int) -> Plan:
    return replace(
        plan,
        peak_bytes=peak_bytes,
        baseline_peak_bytes=before.peak_bytes,
        step_seconds=after.step_seconds,
        baseline_step_seconds=before.simulation.step_seconds,
        host_bytes=after.host_bytes,
    )


def _checked(found: Decision, request: Request, before: _Original) -> Decision:
    if found.plan.is_noop:
        found = _unchanged(before, request, "no technique applies")
    elif found.after.peak_bytes >= before.simulation.peak_bytes:
        reason = (
            f"the least peak found, {format_bytes(found.plan.peak_bytes)}, is not below the "
            f"original's {format_bytes(before.peak_bytes)}"
        )
        found = _unchanged(before, request, reason)
    plan = found.plan
    if request.budget is not None and (found.worst_bytes > request.budget or not found.fits):
        raise BudgetError(_unreachable(found, request), found.worst_bytes)
    limit = request.max_slowdown
    if limit is not None and plan.step_seconds > limit * plan.baseline_step_seconds:
        raise BudgetError(
            f"a step of the plan takes {plan.step_seconds:.3g} s, the original "
            f"{plan.baseline_step_seconds:.3g} s, above max_slowdown={limit}; "
            "raise it or the budget"
        )
    return found


def _unreachable(found: Decision, request: Request) -> str:
    assert request.budget is not None
    largest = "\n".join(
        f"  {format_bytes(nbytes):>12}  {value}" for value, nbytes in found.after.alive_at_peak[:8]
    )
    hint = (
        ""
        if request.host
        else "; name a host device, so that tensors and variables can leave the device "
        "(tfmem.host_process() lends the memory of a second process)"
    )
    holes = (
        ""
        if found.fits or request.limit is None
        else f", for which the holes between chunks in {format_bytes(request.limit)} leave no room"
    )
    return (
        f"the budget of {format_bytes(request.budget)} cannot be met on {request.device}: "
        f"the least reachable peak is {format_bytes(found.worst_bytes)}{holes}, made up at "
        f"{found.after.peak_node!r} of\n{largest}\nraise the budget, allow more techniques than "
        f"{', '.join(sorted(request.techniques))}, or make the batch smaller{hint}"
    )
