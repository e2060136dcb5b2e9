"""Reports of what was decided: what people look at, built from plans, traces and sources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace

from tfmem.errors import BudgetError, Error
from tfmem.functions.entry import Entry, Stage, decided
from tfmem.graph.bodies import Bodies
from tfmem.graph.clones import with_clones
from tfmem.plan import Plan
from tfmem.planning.nested import charge
from tfmem.planning.request import Request
from tfmem.report.report import Alive, Offer, Origin, Report
from tfmem.runtime import memory
from tfmem.simulation.original import joined
from tfmem.simulation.simulate import trace

_OFFERS, _ABOVE_LEAST = 4, 1.02
"""Budgets that `explain` tries, and how far above the least reachable peak the last of them is."""


def report_of(entry: Entry) -> Report:
    """The first device's report, with those of the others."""
    first, *others = (_report(entry, stage) for stage in entry.stages)
    return replace(first, plan=entry.plan, others=tuple(others))


def _report(entry: Entry, stage: Stage) -> Report:
    plan, bodies = stage.decision.plan, entry.captured.bodies
    has_run = entry.rewritten is not None and entry.rewritten.has_run
    whole, costs = joined(stage.graph, stage.costs)
    original = planned = trace(whole, costs, Plan(device=plan.device, host=plan.host))
    if not plan.is_noop:
        charged = charge(stage.graph, stage.costs, bodies, plan.bodies, plan.device)
        planned = trace(stage.graph, charged, plan)
    clones = with_clones(stage.graph, plan.recomputations)
    origins = {
        node.name: Origin(node.op, entry.captured.source(node.origin or node.name))
        for node in (*whole.nodes, *clones.nodes)
    }
    alive = (
        Alive(value, nbytes=nbytes, **asdict(origins[value.node]))
        for value, nbytes in stage.decision.after.alive_at_peak
    )
    return Report(
        name=entry.name,
        plan=plan,
        original=original,
        planned=planned,
        origins=origins,
        alive_at_peak=tuple(alive),
        measured_peak_bytes=_measured_peak(plan.device) if has_run else None,
        planning_seconds=entry.seconds,
    )


def _measured_peak(device: str) -> int | None:
    try:
        return memory.memory_info(device)[1]
    except Error:  # the allocator keeps no statistics, or is another process's
        return None


def offers(stage: Stage, request: Request, bodies: Bodies) -> Iterator[Offer]:
    """What budgets between the original's peak and the least would cost."""
    most = stage.decision.plan.baseline_peak_bytes
    try:
        decided(stage.graph, stage.costs, replace(request, budget=1), bodies)
    except BudgetError as error:
        least = error.least_bytes or most
        for part in range(_OFFERS - 1, -1, -1):
            budget = int(_ABOVE_LEAST * least + (most - least) * part / _OFFERS)
            with contextlib.suppress(BudgetError):  # none between this and what was asked
                found = decided(stage.graph, stage.costs, replace(request, budget=budget), bodies)
                yield Offer(budget, found.plan)
