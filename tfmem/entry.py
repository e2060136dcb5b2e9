"""What is decided and made for one input signature of a function, and how decisions are reached."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from tqdm import tqdm

from tfmem import devices, measure, profiler, profiles, variables
from tfmem.bodies import Bodies
from tfmem.capture import Captured
from tfmem.clones import with_clones
from tfmem.costs import Copies, Costs
from tfmem.errors import BudgetError, Error
from tfmem.ir import Graph
from tfmem.passes.linearise import Linearise
from tfmem.passes.place import Place
from tfmem.passes.recompute import Recompute
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.passes.transfer import Route
from tfmem.pipeline import Pass, run_passes
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.bodies import charge
from tfmem.planning.request import Decision, Request
from tfmem.planning.search import choose
from tfmem.pricing import Tracing
from tfmem.rebuild import Rewritten
from tfmem.report import Alive, Offer, Origin, Report
from tfmem.simulate import trace
from tfmem.sums import joined

_log = logging.getLogger("tfmem")

_OFFERS, _ABOVE_LEAST = 4, 1.02
"""Budgets that `explain` tries, and how far above the least reachable peak the last of them is."""

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

    def report(self) -> Report:
        """The first device's report, with those of the others."""
        first, *others = map(self._report, self.stages)
        return replace(first, plan=self.plan, others=tuple(others))

    def _report(self, stage: Stage) -> Report:
        plan, bodies = stage.decision.plan, self.captured.bodies
        has_run = self.rewritten is not None and self.rewritten.has_run
        whole, costs = joined(stage.graph, stage.costs)
        original = planned = trace(whole, costs, Plan(device=plan.device, host=plan.host))
        if not plan.is_noop:
            charged = charge(stage.graph, stage.costs, bodies, plan.bodies, plan.device)
            planned = trace(stage.graph, charged, plan)
        clones = with_clones(stage.graph, plan.recomputations)
        origins = {
            node.name: Origin(node.op, self.captured.source(node.origin or node.name))
            for node in (*whole.nodes, *clones.nodes)
        }
        alive = (
            Alive(value, nbytes=nbytes, **asdict(origins[value.node]))
            for value, nbytes in stage.decision.after.alive_at_peak
        )
        return Report(
            name=self.name,
            plan=plan,
            original=original,
            planned=planned,
            origins=origins,
            alive_at_peak=tuple(alive),
            measured_peak_bytes=_measured_peak(plan.device) if has_run else None,
            planning_seconds=self.seconds,
        )


def _measured_peak(device: str) -> int | None:
    try:
        return measure.memory_info(device)[1]
    except Error:  # the allocator keeps no statistics, or is another process's
        return None


def passes_of(plan: Plan) -> list[Pass]:
    """The passes that carry a plan out, in their order."""
    passes: list[Pass] = []
    route = _route(plan.device, plan.host)
    if plan.recomputations:
        passes.append(Recompute(plan.recomputations))
    if plan.order:
        passes.append(Reorder(plan.order))
    if plan.evictions:
        passes.append(Swap(plan.evictions, route))
    if plan.placements:
        passes.append(Place(plan.placements, route))
    if plan.order:
        passes.append(Linearise(plan.device, plan.window))
    return passes


def _route(device: str, host: str) -> Route:
    """How values cross: by a GPU's own kernels, unless the other form was measured to be faster."""
    if not devices.copies(device, host):
        return Route(host)
    known = profiles.probed(Copies, profiler.machine(), device, host)
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
