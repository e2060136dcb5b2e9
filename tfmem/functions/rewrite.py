"""How an entry's plans are carried out: graphs rewritten, variables named that have to move."""

from __future__ import annotations

import logging
from typing import Any

from tfmem.functions import pricing
from tfmem.functions.entry import Entry
from tfmem.graph import device_names
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph
from tfmem.passes.for_plan import passes_of
from tfmem.passes.pipeline import Pass, run_passes
from tfmem.passes.transfer import Route
from tfmem.plan import Plan
from tfmem.runtime import variables
from tfmem.simulation.program import program

_log = logging.getLogger("tfmem")


def rewritten_graph(entry: Entry) -> Graph:
    """The graph under the plans of all devices."""
    last = entry.planned[-1]
    passes = passes_of(last.plan, route_of(last.plan.device, last.plan.host))
    return run_passes(last.graph, passes, observe)


def rewritten_bodies(entry: Entry) -> dict[str, tuple[Graph, Graph]]:
    """All bodies by their function's name: as they were, as they are to be.

    Those that no plan changes get the order in which they were replayed, for the executor's own
    varies.
    """
    made: dict[str, tuple[Graph, Graph]] = {}
    for one in reversed(entry.planned):
        made |= _rewritten_bodies(entry.captured.bodies, one.plan)
    return made


def _rewritten_bodies(bodies: Bodies, plan: Plan) -> dict[str, tuple[Graph, Graph]]:
    made = {}
    planned = {(one.node, one.branch): one.plan for one in plan.bodies}
    for name, functions in bodies.items():
        for branch, body in enumerate(functions):
            inner = planned.get((name, branch))
            if inner is None:
                names = program(body.graph, Plan()).names
                inputs = (node.name for node in body.graph.nodes if node.is_input)
                inner = Plan(order=(*inputs, *names), device=plan.device)
            made[body.function] = body.graph, run_passes(body.graph, passes_of(inner), observe)
            made |= _rewritten_bodies(body.bodies, inner)
    return made


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
