"""What is decided and made for one input signature of a function, and how decisions are reached."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from tqdm import tqdm

from tfmem.bridge.capture import Captured
from tfmem.bridge.rebuild import Rewritten
from tfmem.costs import history, profiler
from tfmem.costs.pricing import Tracing
from tfmem.costs.types import Copies, Costs
from tfmem.errors import BudgetError
from tfmem.graph import device_names
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph
from tfmem.passes.for_plan import passes_of
from tfmem.passes.pipeline import Pass, run_passes
from tfmem.passes.transfer import Route
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.request import Decision, Request
from tfmem.planning.search import choose
from tfmem.runtime import variables

_log = logging.getLogger("tfmem")

_SLOW = 1.0
"""Seconds of planning from which on a plan is kept on disk."""


@dataclass(frozen=True)
class Stage:
    """What was decided for one device: the graph that was planned, its costs, the decision."""

    graph: Graph
    costs: Costs
    decision: Decision


@dataclass(frozen=True)
class Entry:
    """What was decided, and made, for one input signature.

    `stages` are those of the scarce devices, each planned on the graph that those before it leave.
    `tracing` is there as long as its steps are being measured.
    `moves` counts the variables moved, in the whole process, when it was made: an entry that is
    older than the last move may refer to variables that are elsewhere now.
    """

    name: str
    captured: Captured
    stages: tuple[Stage, ...]
    seconds: float
    moves: int
    tracing: Tracing | None = None
    rewritten: Rewritten | None = None

    @property
    def is_stale(self) -> bool:
        """Whether a variable that this was made for has moved since."""
        return self.moves != variables.moves() and self.captured.has_moved()

    @property
    def plan(self) -> Plan:
        """The first device's plan, with those of the others."""
        first, *others = (stage.decision.plan for stage in self.stages)
        return replace(first, others=tuple(others))


def route_of(device: str, host: str) -> Route:
    """How values cross: by a GPU's own kernels, unless the other form was measured to be faster."""
    if not device_names.copies(device, host):
        return Route(host)
    known = history.probed(Copies, profiler.machine(), device, host)
    return Route(host, "" if known and not known.on_device else device)


def rewritten_bodies(bodies: Bodies, plan: Plan) -> dict[str, tuple[Graph, Graph]]:
    """The bodies that a plan changes, by their function's name: as they were, as they are to be."""
    made = {}
    for one in plan.bodies:
        body = bodies[one.node][one.branch]
        made[body.function] = body.graph, run_passes(body.graph, passes_of(one.plan), observe)
        made |= rewritten_bodies(body.bodies, one.plan)
    return made


def observe(done: Pass, before: Graph, after: Graph, seconds: float) -> None:
    _log.debug("%s: %d to %d nodes, %.2f s", type(done).__name__, len(before), len(after), seconds)


def without_placement(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    """A plan that moves no variable if there is one: another can still be chosen after it."""
    near = replace(request, techniques=request.techniques - {"place"})
    try:
        return decided(graph, costs, near, bodies)
    except BudgetError:
        return decided(graph, costs, request, bodies)


def decided(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    found = cache.load(graph, costs, request, bodies)
    if found is None:
        start = time.perf_counter()
        with tqdm(desc="tfmem: planning", unit=" plans", delay=2, leave=False, disable=None) as bar:
            found = choose(graph, costs, request, bar.update, bodies)
        seconds = time.perf_counter() - start
        if seconds > _SLOW:
            _log.info("%d nodes planned in %.1f s", len(graph), seconds)
            cache.save(graph, costs, request, found.plan, bodies)
    return found
