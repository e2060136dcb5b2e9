"""What a plan is predicted to do to a graph, and whether that is accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfmem.costs.types import Costs
from tfmem.errors import BudgetError, Error
from tfmem.graph.any_order import most_in_use
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph, Value
from tfmem.plan import BodyPlan, Plan
from tfmem.planning.candidate import (
    FILLED_IN_ANY_ORDER,
    Candidate,
    bytes_of_inputs,
    candidate,
    capacity,
    shrunk,
)
from tfmem.planning.nested import charge, costs_of, overlapping
from tfmem.planning.request import Decision, Request
from tfmem.planning.strategy import Strategy
from tfmem.simulation.original import as_original
from tfmem.simulation.program import program
from tfmem.simulation.requests import staying
from tfmem.simulation.simulate import Applied, Simulation
from tfmem.units import format_bytes

BODY_REGION = 1 << 40
"""Bytes of the allocator's region in which bodies are planned: it has long taken all its memory."""


@dataclass(frozen=True)
class Original:
    """The original function: its simulation, its peaks in the allocator, whether it has room.

    `capacity` is what the allocator has for it altogether. `loose_bytes` are those by which more
    may be in use than foreseen, as its executor runs nodes, and turns of loops, in any order.
    """

    simulation: Simulation
    peak_bytes: int
    worst_bytes: int
    fits: bool
    capacity: float
    loose_bytes: int

    def keeps(self, request: Request) -> bool:
        """Whether the budget holds in whatever order nodes run, and they may run in any."""
        if request.in_order:
            return False
        least = min(request.budget or 0, self.capacity)
        return self.fits and self.worst_bytes + self.loose_bytes <= FILLED_IN_ANY_ORDER * least


def original(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Original:
    """The original as TensorFlow runs it, simulated and replayed in an allocator."""
    plan = Plan(device=request.device, host=request.host)
    turns = overlapping(bodies, costs, request.device)
    graph, costs = as_original(graph, costs)
    applied = Applied(graph, costs, plan)
    allocation, simulation = applied.allocate(request.room), applied.simulation
    return Original(
        simulation,
        allocation.usual_bytes,
        allocation.worst_bytes,
        allocation.fits,
        capacity(graph, costs, plan, request.room),
        max(0, turns + _in_any_order(graph, costs, plan) - simulation.peak_bytes),
    )


def _in_any_order(graph: Graph, costs: Costs, plan: Plan) -> int:
    """Bytes in use at most if only dependencies order the nodes."""
    stays = bytes_of_inputs(graph, costs, plan.device) + sum(staying(program(graph, plan), costs))
    return stays + most_in_use(
        graph,
        costs.workspace,
        granularity=costs.granularity,
        lanes=costs.lanes,
        device=plan.device,
    )


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
        room=request.room and shrunk(request.room, request.bytes_unforeseen),
        whole=request,
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
        return _judged(graph, charged, rest, plan, original(graph, costs, rest, bodies or {}))

    return beside_others(request, judged)


def _judged(graph: Graph, costs: Costs, request: Request, plan: Plan, before: Original) -> Decision:
    if plan.is_noop:
        return unchanged(before, request, plan.reason)
    return decision(candidate(graph, costs, plan, request), before, request)


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
    """What is asked of a body, which has no host, for a budget of its own.

    In a limited allocator its nodes run in one order, as it is known for one alone what lies where.
    """
    return replace(
        request,
        host="",
        budget=budget,
        techniques=request.techniques & {"order", "recompute"},
        room=(BODY_REGION,),
        max_slowdown=None,
        in_order=request.in_order
        or (request.room not in (None, (BODY_REGION,)) and not request.may_grow),
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
        before = original(graph, costs, rest, {})
        return checked(_judged(graph, costs, rest, plan, before), rest, before)

    return beside_others(request, accepted)


def unchanged(before: Original, request: Request, reason: str) -> Decision:
    """The plan that leaves a graph as it is, and says why."""
    plan = Plan(device=request.device, host=request.host, budget=request.budget, reason=reason)
    plan = _predicted(plan, before, before.simulation, before.peak_bytes)
    both = before.simulation, before.simulation
    return Decision(plan, *both, before.worst_bytes, before.fits, before.loose_bytes)


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
    """The decision; the original if no technique applies, or if nothing is gained without a budget.

    Under a budget an order that gains nothing is kept: it bounds what runs at once.

    Raises:
      BudgetError: the budget or `max_slowdown` is not kept.
    """
    if found.plan.is_noop:
        found = unchanged(before, request, "no technique applies")
    elif request.budget is None and found.after.peak_bytes >= before.simulation.peak_bytes:
        reason = (
            f"the least peak found, {format_bytes(found.plan.peak_bytes)}, is not below the "
            f"original's {format_bytes(before.peak_bytes)}"
        )
        found = unchanged(before, request, reason)
    plan = found.plan
    if not found.keeps(request.budget):
        least = found.least_bytes or found.worst_bytes
        raise BudgetError(_unreachable(found, request, least), least)
    limit = request.max_slowdown
    if limit is not None and plan.step_seconds > limit * plan.baseline_step_seconds:
        raise BudgetError(
            f"a step of the plan takes {plan.step_seconds:.3g} s, the original "
            f"{plan.baseline_step_seconds:.3g} s, above max_slowdown={limit}; "
            "raise it or the budget"
        )
    return found


def _told(value: Value, sources: Mapping[str, str]) -> str:
    source = sources.get(value.node)
    return f"{value} ({source})" if source else str(value)


def _unreachable(found: Decision, request: Request, least: int) -> str:
    whole, after = request.whole or request, found.after
    assert whole.budget is not None
    beside = whole.bytes_beside + whole.bytes_unforeseen
    others = f", {format_bytes(beside)} of it beside the function" if beside else ""
    alive, sources = after.alive_at_peak[:8], request.sources
    parts: list[tuple[str, int]] = [(_told(value, sources), nbytes) for value, nbytes in alive]
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
    is_short = found.fits or (request.may_grow and least + beside > whole.budget)
    holes = "" if is_short else _holes(request.room, after.peak_bytes)
    return (
        f"the budget of {format_bytes(whole.budget)} cannot be met on {request.device}: the least "
        f"reachable peak is {format_bytes(least + beside)}{others}{holes}, made up at "
        f"{after.peak_node!r} of\n{largest}\nraise the budget, allow more techniques than "
        f"{', '.join(sorted(request.techniques))}, or make the batch smaller{hint}"
    )


def _holes(room: Sequence[int] | None, peak: int) -> str:
    """What is in the way of a step that has no room for other reasons than bytes in use."""
    if room is None:
        return ""
    free = format_bytes(sum(room))
    if peak > max(room, default=0):
        return f", for which the {free} of free chunks are too scattered"
    return f", because buffers that come and go leave holes in the {free} that are free"
