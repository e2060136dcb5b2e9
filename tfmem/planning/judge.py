"""What a plan is predicted to do to a graph, and whether that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tfmem.costs.types import Costs
from tfmem.errors import BudgetError, Error
from tfmem.graph.bodies import LOOPS, Bodies
from tfmem.graph.ir import Graph
from tfmem.plan import BodyPlan, Plan
from tfmem.planning.candidate import Candidate, candidate, capacity, without
from tfmem.planning.nested import charge, costs_of
from tfmem.planning.request import Decision, Request
from tfmem.planning.strategy import Strategy
from tfmem.simulation.original import as_original
from tfmem.simulation.simulate import Simulation, allocate, simulate
from tfmem.units import format_bytes

UNORDERED = 1.2
"""How far above its prediction the original's peak may be and still be trusted to keep a budget:
nothing bounds what its executor runs at once. Less runs more originals unchanged, more orders them
although they would fit. Measured: a GPT, 602 MB where 526 were predicted."""

TURNS_AT_ONCE = 1.5
"""The same of an original with loops, whose turns its executor overlaps, ten or more of them.
Measured: 1.45 where a loop takes a Jacobian, 1.44 in a Keras LSTM."""

BODY_REGION = 1 << 40
"""Bytes of the allocator's region in which bodies are planned: it has long taken all its memory."""


@dataclass(frozen=True)
class Original:
    """The original function: its simulation, its peaks in the allocator, whether it has room.

    `capacity` is what the allocator has for it altogether, in bytes, `unordered` how far above its
    prediction its peak may be.
    """

    simulation: Simulation
    peak_bytes: int
    worst_bytes: int
    fits: bool
    capacity: float
    unordered: float

    def keeps(self, request: Request) -> bool:
        """Whether the budget holds even if much more runs at the same time than was foreseen."""
        least = min(request.budget or 0, self.capacity)
        return self.fits and self.worst_bytes * self.unordered <= least


def original(graph: Graph, costs: Costs, request: Request) -> Original:
    """The original as TensorFlow runs it, simulated and replayed in an allocator."""
    plan = Plan(device=request.device, host=request.host)
    graph, costs = as_original(graph, costs)
    allocation = allocate(graph, costs, plan, room=request.room)
    peaks = allocation.usual_bytes, allocation.worst_bytes
    most = capacity(graph, costs, plan, request.room)
    most_above = unordered(graph)
    return Original(simulate(graph, costs, plan), *peaks, allocation.fits, most, most_above)


def unordered(graph: Graph) -> float:
    """How far above its prediction the peak may be if no order is enforced."""
    return TURNS_AT_ONCE if any(node.op in LOOPS for node in graph.nodes) else UNORDERED


def beside_others(request: Request, decide: Callable[[Request], Decision]) -> Decision:
    """Decides for what others leave of the budget; what they hold counts in the predictions.

    So does what steps took beyond predictions.
    """
    beside = request.bytes_beside + request.bytes_unforeseen
    if not beside:
        return decide(request)
    text = _counted_besides(request)
    rest = replace(
        request,
        bytes_beside=0,
        bytes_unforeseen=0,
        budget=request.budget and max(1, request.budget - beside),
        room=request.room and without(request.room, request.bytes_unforeseen),
    )
    try:
        found = decide(rest)
    except BudgetError as error:
        least = error.least_bytes and error.least_bytes + beside
        raise BudgetError(f"{error}\n{text}", least) from error
    plan = replace(
        found.plan,
        budget=request.budget,
        peak_bytes=found.plan.peak_bytes + beside,
        baseline_peak_bytes=found.plan.baseline_peak_bytes + beside,
    )
    return replace(found, plan=plan, worst_bytes=found.worst_bytes + beside)


def _counted_besides(request: Request) -> str:
    """What is counted beside a function, and why."""
    lines = []
    if beside := request.bytes_beside:
        lines.append(
            f"{format_bytes(beside)} are in use on {request.device} beside the function, which is "
            "counted besides"
        )
    if more := request.bytes_unforeseen:
        lines.append(
            f"{format_bytes(more)} are left free, for steps that were measured before took more "
            "than was predicted"
        )
    return "\n".join(lines)


def decision(found: Candidate, before: Original, request: Request) -> Decision:
    """A candidate's plan with its predictions, whether it keeps the budget or not."""
    plan = _predicted(found.plan, before, found.simulation, found.peak_bytes)
    plan = replace(plan, budget=request.budget)
    return Decision(plan, before.simulation, found.simulation, found.worst_bytes, found.fits)


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
        return _judged(graph, charged, rest, plan, original(graph, costs, rest))

    return beside_others(request, judged)


def _judged(graph: Graph, costs: Costs, request: Request, plan: Plan, before: Original) -> Decision:
    if plan.is_noop:
        return unchanged(before, request, plan.reason)
    return decision(candidate(graph, costs, plan, request.room), before, request)


def _check_body(one: BodyPlan, costs: Costs, request: Request, bodies: Bodies) -> None:
    functions = bodies.get(one.node, ())
    if not 0 <= one.branch < len(functions):
        raise Error(f"{one.node} runs no function {one.branch}; plan for this graph")
    body = functions[one.branch]
    inner = within(request, one.plan.budget)
    priced = costs_of(body, costs, request.device)
    if judge(body.graph, priced, inner, one.plan, body.bodies).plan != one.plan:
        raise Error(f"the plan of {one.node}'s function {one.branch} is not what it says")


def within(request: Request, budget: int | None) -> Request:
    """What is asked of a body, which has no host, for a budget of its own."""
    return replace(
        request,
        host="",
        budget=budget,
        techniques=request.techniques & {"order", "recompute"},
        room=(BODY_REGION,),
        max_slowdown=None,
    )


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

    def accepted(rest: Request) -> Decision:
        before = original(graph, costs, rest)
        return checked(_judged(graph, costs, rest, plan, before), rest, before)

    return beside_others(request, accepted)


def unchanged(before: Original, request: Request, reason: str) -> Decision:
    """The plan that leaves a graph as it is, and says why."""
    plan = Plan(device=request.device, host=request.host, budget=request.budget, reason=reason)
    plan = _predicted(plan, before, before.simulation, before.peak_bytes)
    both = before.simulation, before.simulation
    return Decision(plan, *both, before.worst_bytes, before.fits)


def _predicted(plan: Plan, before: Original, after: Simulation, peak_bytes: int) -> Plan:
    return replace(
        plan,
        peak_bytes=peak_bytes,
        baseline_peak_bytes=before.peak_bytes,
        step_seconds=after.step_seconds,
        baseline_step_seconds=before.simulation.step_seconds,
        host_bytes=after.host_bytes,
    )


def checked(found: Decision, request: Request, before: Original) -> Decision:
    """The decision, or the original if it gains nothing.

    Raises:
      BudgetError: the budget or `max_slowdown` is not kept.
    """
    if found.plan.is_noop:
        found = unchanged(before, request, "no technique applies")
    elif found.after.peak_bytes >= before.simulation.peak_bytes:
        reason = (
            f"the least peak found, {format_bytes(found.plan.peak_bytes)}, is not below the "
            f"original's {format_bytes(before.peak_bytes)}"
        )
        found = unchanged(before, request, reason)
    plan = found.plan
    if not found.keeps(request.budget):
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
    after = found.after
    parts: list[tuple[object, int]] = list(after.alive_at_peak[:8])
    own = after.peak_bytes - sum(nbytes for _, nbytes in after.alive_at_peak)
    if own > 0:
        parts.insert(0, ("scratch memory, functions of data sets, constants", own))
    largest = "\n".join(f"  {format_bytes(nbytes):>12}  {value}" for value, nbytes in parts)
    hint = (
        ""
        if request.host
        else "; name a host device, so that tensors and variables can leave the device "
        "(tfmem.host_process() lends the memory of a second process)"
    )
    holes = (
        ""
        if found.fits or request.room is None
        else f", for which the {format_bytes(sum(request.room))} of free chunks are too scattered"
    )
    return (
        f"the budget of {format_bytes(request.budget)} cannot be met on {request.device}: "
        f"the least reachable peak is {format_bytes(found.worst_bytes)}{holes}, made up at "
        f"{after.peak_node!r} of\n{largest}\nraise the budget, allow more techniques than "
        f"{', '.join(sorted(request.techniques))}, or make the batch smaller{hint}"
    )
