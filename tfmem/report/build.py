"""Reports of what was decided: what people look at, built from plans, traces and sources."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

from tfmem.bridge.capture import Captured
from tfmem.errors import BudgetError
from tfmem.functions.decide import canonical, decided
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.failures import tells_bugs
from tfmem.functions.pricing import price
from tfmem.functions.resolve import bytes_beside
from tfmem.graph.bodies import Bodies
from tfmem.graph.clones import with_clones
from tfmem.plan import Plan
from tfmem.planning.nested import charge
from tfmem.planning.request import Request
from tfmem.report.report import Alive, Offer, Origin, Report
from tfmem.runtime import variables
from tfmem.runtime.locks import alone
from tfmem.simulation.original import as_original
from tfmem.simulation.simulate import trace

_OFFERS, _ABOVE_LEAST = 4, 1.02
"""Budgets that `explain` tries, each at the price of a search, and how far above the least peak the
last of them is, for exactly that peak is often found in one way only."""


@tells_bugs
def report_of(entry: Entry) -> Report:
    """The first device's report, with those of the others."""
    first, *others = (_report(entry, planned) for planned in entry.planned)
    return replace(first, plan=entry.plan, others=tuple(others), events=entry.events)


def _report(entry: Entry, one: Planned) -> Report:
    plan, bodies = one.plan, entry.captured.bodies
    whole, costs = as_original(one.graph, one.costs)
    original = planned = trace(whole, costs, Plan(device=plan.device, host=plan.host))
    if not plan.is_noop:
        charged = charge(one.graph, one.costs, bodies, plan.bodies, plan.device)
        planned = trace(one.graph, charged, plan)
    clones = with_clones(one.graph, plan.recomputations)
    origins = {
        node.name: Origin(node.op, entry.captured.source(node.origin or node.name))
        for node in (*whole.nodes, *clones.nodes)
    }
    alive = (
        Alive(value, nbytes=nbytes, **asdict(origins[value.node]))
        for value, nbytes in one.decision.after.alive_at_peak
    )
    return Report(
        name=entry.name,
        plan=plan,
        original=original,
        planned=planned,
        origins=origins,
        alive_at_peak=tuple(alive),
        measured_peak_bytes=entry.peaks.of(plan.device),
        planning_seconds=entry.seconds,
    )


@tells_bugs
@alone
def explained(name: str, captured: Captured, request: Request, profile: str) -> Report:
    """What fills the memory of a function as it is, and what budgets would cost.

    Args:
      name: of the function.
      captured: the function.
      request: for which device; its budget is left aside.
      profile: where costs come from, as of `price`.
    """
    start = time.perf_counter()
    graph = canonical(captured.graph)
    request = replace(request, bytes_beside=bytes_beside(captured, request), room=None)
    costs = price(captured, graph, replace(request, budget=1), profile)
    decision = decided(graph, costs, replace(request, budget=None), captured.bodies)
    frontier = tuple(_offers(Planned(graph, costs, decision, request), request, captured.bodies))
    known = decision.plan
    plan = Plan(
        device=known.device,
        host=known.host,
        peak_bytes=known.baseline_peak_bytes,
        baseline_peak_bytes=known.baseline_peak_bytes,
        step_seconds=known.baseline_step_seconds,
        baseline_step_seconds=known.baseline_step_seconds,
        reason="this is the original function",
    )
    original = Planned(graph, costs, replace(decision, plan=plan, after=decision.before), request)
    seconds = time.perf_counter() - start
    entry = Entry(name, captured, (original,), seconds, variables.moves())
    return replace(report_of(entry), frontier=frontier)


def _offers(one: Planned, request: Request, bodies: Bodies) -> Iterator[Offer]:
    """What budgets between the original's peak and the least would cost."""
    most = one.plan.baseline_peak_bytes
    try:
        decided(one.graph, one.costs, replace(request, budget=1), bodies)
    except BudgetError as error:
        least = error.least_bytes or most
        for part in range(_OFFERS - 1, -1, -1):
            budget = int(_ABOVE_LEAST * least + (most - least) * part / _OFFERS)
            with contextlib.suppress(BudgetError):  # none between this and what was asked
                found = decided(one.graph, one.costs, replace(request, budget=budget), bodies)
                yield Offer(budget, found.plan)
