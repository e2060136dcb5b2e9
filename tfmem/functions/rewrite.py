"""How an entry's plans are carried out: graphs rewritten, variables named that have to move."""

from __future__ import annotations

import gc
import logging
import math
import time
from dataclasses import replace
from typing import Any

from tfmem.bridge.rebuild import rebuild
from tfmem.functions import pricing
from tfmem.functions.entry import Entry
from tfmem.functions.failures import tells_bugs
from tfmem.functions.layouts import layouts
from tfmem.functions.placed import Placed
from tfmem.graph import device_names
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.passes.for_plan import passes_of
from tfmem.passes.pipeline import Pass, run_passes
from tfmem.passes.transfer import Route
from tfmem.plan import Plan
from tfmem.runtime import variables
from tfmem.runtime.locks import alone
from tfmem.simulation.program import program

_log = logging.getLogger("tfmem")


@tells_bugs
@alone
def rewritten(entry: Entry, placed: Placed) -> Entry:
    """An entry with its rewritten function, its variables moved; after an error, none have."""
    start = time.perf_counter()
    graph, bodies = rewritten_graph(entry), rewritten_bodies(entry)
    with placed.restored_after_errors():
        placed.move(variables_to_move(entry))
        entry = entry.here()
        gc.collect()  # what was traced before holds variables' buffers, and errors arguments
        pin_variables(entry)
        tenants, made = layouts.move_in(entry), rebuild(entry.captured, graph, bodies)
    seconds = entry.seconds + time.perf_counter() - start
    return replace(entry, tenants=tenants, rewritten=made, seconds=seconds)


def rewritten_graph(entry: Entry) -> Graph:
    """The graph under the plans of all devices."""
    last = entry.planned[-1]
    passes = passes_of(last.plan, route_of(last.plan.device, last.plan.host))
    return run_passes(last.graph, passes, observe)


def rewritten_bodies(entry: Entry) -> dict[str, tuple[Body, Graph]]:
    """All bodies by their function's name: as they were, as they are to be.

    Each is under the plan of the device that its caller runs on. Those that no plan changes get the
    order in which they were replayed, for the executor's own varies.
    """
    plans = {one.plan.device: one.plan for one in entry.planned}
    by_name = entry.captured.graph.by_name
    chosen: dict[str, tuple[Body, Plan]] = {}
    for name, functions in entry.captured.bodies.items():
        place = by_name[name].device if name in by_name else ""
        plan = plans.get(place, entry.planned[0].plan)
        _choose({name: functions}, plan, chosen)
    return {
        function: (body, run_passes(body.graph, passes_of(plan), observe))
        for function, (body, plan) in chosen.items()
    }


def _choose(bodies: Bodies, plan: Plan, chosen: dict[str, tuple[Body, Plan]]) -> None:
    """Adds the plans of bodies; of a function that several nodes run that with the least peak."""
    planned = {(one.node, one.branch): one.plan for one in plan.bodies}
    for name, functions in bodies.items():
        for branch, body in enumerate(functions):
            inner = planned.get((name, branch))
            other = chosen.get(body.function)
            if inner is None and other is None:
                names = program(body.graph, Plan()).names
                inputs = (node.name for node in body.graph.nodes if node.is_input)
                inner = Plan(order=(*inputs, *names), device=plan.device)
            if inner is None or (other is not None and _is_tighter(other[1], inner)):
                continue
            chosen[body.function] = body, inner
            _choose(body.bodies, inner, chosen)


def _is_tighter(one: Plan, other: Plan) -> bool:
    """Whether the first takes no more than the second; the executor's own order tells no peak."""
    return 0 < one.peak_bytes <= (other.peak_bytes or math.inf)


def variables_to_move(entry: Entry) -> dict[str, list[Any]]:
    """The variables that the plans place and that are elsewhere, by the host that takes them."""
    away: dict[str, list[Any]] = {}
    for plan in (one.plan for one in entry.planned):
        placed = [entry.captured.variables[placement.variable] for placement in plan.placements]
        away.setdefault(plan.host, []).extend(v for v in placed if v.device != plan.host)
    return {host: group for host, group in away.items() if group}


def pin_variables(entry: Entry) -> None:
    """Puts the placed variables that a GPU reads into memory from which it copies meanwhile."""
    for plan in (one.plan for one in entry.planned):
        if device_names.copies(plan.device, plan.host):
            read = (one for one in plan.placements if any(t.fetches for t in one.transfers))
            variables.pin((entry.captured.variables[one.variable] for one in read), plan.device)


def route_of(device: str, host: str) -> Route:
    """How values cross."""
    return Route(host, device if pricing.by_kernels(device, host) else "")


def observe(done: Pass, before: Graph, after: Graph, seconds: float) -> None:
    """Logs a pass that was run, for `run_passes`."""
    _log.debug("%s: %d to %d nodes, %.2f s", type(done).__name__, len(before), len(after), seconds)
