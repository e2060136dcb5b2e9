"""Choose a plan for a graph under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tfmem.budget import format_bytes
from tfmem.costs import Costs
from tfmem.errors import BudgetError
from tfmem.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.strategy import Strategy
from tfmem.simulate import Simulation, allocate, simulate


@dataclass(frozen=True)
class Request:
    """What the user asked for, with devices and limits found.

    Attributes:
      device: the device whose memory is scarce, by its full name.
      host: the device that takes what leaves it; "" if there is none.
      budget: most bytes that may be in use on the device; None for no bound.
      techniques: what may be used.
      max_slowdown: most that the predicted step time may grow, as a factor; None for no bound.
    """

    device: str
    host: str
    budget: int | None
    techniques: frozenset[str]
    max_slowdown: float | None = None


@dataclass(frozen=True)
class Decision:
    """A plan with the simulations that it rests on.

    The simulations compare plans; the peaks that the plan predicts are those of the allocator,
    which pads what it hands out.
    """

    plan: Plan
    before: Simulation
    after: Simulation


@dataclass(frozen=True)
class _Original:
    """The original function: its simulation, and its peak in the allocator."""

    simulation: Simulation
    peak_bytes: int


def choose(graph: Graph, costs: Costs, request: Request, strategy: Strategy) -> Decision:
    """The plan that uses the fewest techniques and keeps the budget.

    Without a budget nothing may cost time, so only the order is changed. A budget above the
    original's peak changes nothing.

    Raises:
      BudgetError: no plan keeps the budget.
    """
    before = _original(graph, costs, request)
    if request.budget is not None and before.peak_bytes <= request.budget:
        reason = f"the original's peak of {format_bytes(before.peak_bytes)} is within the budget"
        return _unchanged(before, request, reason)
    best: Decision | None = None
    for techniques in _levels(request):
        found = _decide(graph, costs, replace(request, techniques=techniques), strategy, before)
        if best is None or found.plan.peak_bytes < best.plan.peak_bytes:
            best = found
        if request.budget is not None and found.plan.peak_bytes <= request.budget:
            break
    return _checked(best, request, before)


def carry_out(graph: Graph, costs: Costs, request: Request, strategy: Strategy) -> Decision:
    """The plan of a strategy with all techniques of the request, whatever the original's peak is.

    Raises:
      BudgetError: it does not keep the budget.
    """
    before = _original(graph, costs, request)
    return _checked(_decide(graph, costs, request, strategy, before), request, before)


def _unchanged(before: _Original, request: Request, reason: str) -> Decision:
    """The plan that leaves a graph as it is, and says why."""
    plan = Plan(device=request.device, host=request.host, budget=request.budget, reason=reason)
    plan = _predicted(plan, before, before.simulation, before.peak_bytes)
    return Decision(plan, before.simulation, before.simulation)


def _original(graph: Graph, costs: Costs, request: Request) -> _Original:
    plan = Plan(device=request.device, host=request.host)
    return _Original(simulate(graph, costs, plan), allocate(graph, costs, plan).peak_bytes)


def _levels(request: Request) -> Iterator[frozenset[str]]:
    allowed = request.techniques if request.budget is not None else frozenset({"order"})
    for level in (("order",), ("order", "swap"), ("order", "swap", "place")):
        if request.techniques & allowed >= frozenset(level[-1:]):
            yield request.techniques & frozenset(level)


def _decide(
    graph: Graph, costs: Costs, request: Request, strategy: Strategy, before: _Original
) -> Decision:
    plan = strategy.decide(
        graph,
        costs,
        device=request.device,
        host=request.host,
        techniques=request.techniques,
    )
    after = simulate(graph, costs, plan)
    peak = allocate(graph, costs, plan).peak_bytes
    plan = replace(_predicted(plan, before, after, peak), budget=request.budget)
    return Decision(plan, before.simulation, after)


def _predicted(plan: Plan, before: _Original, after: Simulation, peak_bytes: int) -> Plan:
    return replace(
        plan,
        peak_bytes=peak_bytes,
        baseline_peak_bytes=before.peak_bytes,
        step_seconds=after.step_seconds,
        baseline_step_seconds=before.simulation.step_seconds,
        host_bytes=after.host_bytes,
    )


def _checked(found: Decision | None, request: Request, before: _Original) -> Decision:
    if found is None or found.plan.is_noop:
        found = _unchanged(before, request, "no technique applies")
    elif found.after.peak_bytes >= before.simulation.peak_bytes:
        reason = (
            f"the least peak found, {format_bytes(found.plan.peak_bytes)}, is not below the "
            f"original's {format_bytes(before.peak_bytes)}"
        )
        found = _unchanged(before, request, reason)
    plan = found.plan
    if request.budget is not None and plan.peak_bytes > request.budget:
        raise BudgetError(_unreachable(found, request))
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
    return (
        f"the budget of {format_bytes(request.budget)} cannot be met on {request.device}: "
        f"the least reachable peak is {format_bytes(found.plan.peak_bytes)}, made up at "
        f"{found.after.peak_node!r} of\n{largest}\nraise the budget, allow more techniques than "
        f"{', '.join(sorted(request.techniques))}, or make the batch smaller{hint}"
    )
