"""How an input signature is decided: devices in turn, costs, plans from the disk or the planner."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from tqdm import tqdm

from tfmem.bridge.capture import Captured
from tfmem.bridge.feeds import Feeds, is_fed
from tfmem.costs.types import Costs
from tfmem.errors import BudgetError
from tfmem.functions.arguments import lying, stand_ins
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.failures import tells_bugs
from tfmem.functions.lessons import unforeseen
from tfmem.functions.pricing import Tracing, measured, price
from tfmem.functions.resolve import bytes_beside, check_host_memory, with_room
from tfmem.functions.rewrite import observe, route_of
from tfmem.functions.watch import watch_of
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph
from tfmem.options import Options
from tfmem.passes.align import Align
from tfmem.passes.for_plan import passes_of
from tfmem.passes.pipeline import run_passes
from tfmem.passes.prune import Prune
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.judge import carry_out, judge
from tfmem.planning.request import Decision, Request
from tfmem.planning.search import choose
from tfmem.runtime import buffers, variables
from tfmem.runtime.buffers import Unsettled
from tfmem.runtime.chunks import Chunk
from tfmem.runtime.locks import alone
from tfmem.simulation.leaving import padding
from tfmem.simulation.original import joined
from tfmem.simulation.simulate import simulate

_log = logging.getLogger("tfmem")

_SLOW = 1.0
"""Seconds of planning from which on a plan is kept on disk: to find and judge a kept plan again
takes part of a second itself."""


SPARE = (1.0, 1.25, 1.5, 2.0)
"""Times what a budget leaves that is to be free, one after the other, where the limit is far away:
loops leave holes among which a plan needs more than it has in use. More takes more memory from the
system, of which the budget says nothing; less refuses budgets that can be kept."""


def entry_of(
    name: str,
    captured: Captured,
    start: float,
    requests: tuple[Request, ...],
    options: Options,
    planned: tuple[Planned, ...],
    accepted: Sequence[Planned],
    settles: bool,
    before: Entry | None,
) -> Entry:
    """What is decided for a function, which nothing is made of yet.

    Args:
      name: of the function.
      captured: the function.
      start: when it was begun to be traced, as of `time.perf_counter`.
      requests: what is asked for each device.
      options: how it is planned.
      planned: plans that it has, if it is still what they were made for.
      accepted, settles, before: as of `decide`, which is asked otherwise.
    """
    tracing = None
    if not planned or planned[0].graph != canonical(captured.graph):
        planned, tracing = decide(captured, requests, options, accepted, settles, before)
    watch = watch_of(captured, planned, tracing, options)
    seconds = time.perf_counter() - start
    return Entry(name, captured, planned, seconds, variables.moves(), watch=watch)


def decide(
    captured: Captured,
    requests: tuple[Request, ...],
    options: Options,
    accepted: Sequence[Planned],
    settles: bool,
    before: Entry | None,
) -> tuple[tuple[Planned, ...], Tracing | None]:
    """What `plan_devices` decides for devices as they are.

    For a step variables settle first, and what was made for the same call before goes after it.
    Where the allocator may grow it does as long as holes alone are in the way of a plan.
    """
    before = before if settles else None
    if settles:
        settle(captured, requests)
    spares = iter(SPARE)
    spare = next(spares)
    while True:
        now = as_devices_are(captured, requests, options, settles, before, spare)
        try:
            return plan_devices(captured, now, options, accepted)
        except BudgetError as error:
            spare = next(spares, 0.0) if _lacks_room(now, error.least_bytes) else 0.0
            if not spare:
                raise


def _lacks_room(requests: Iterable[Request], least: int | None) -> bool:
    """Whether holes alone are in the way of a plan where the allocator may grow."""
    kept = (one for one in requests if one.may_grow and one.room is not None)
    return least is not None and any(least <= (one.budget or 0) for one in kept)


@tells_bugs
@alone
def settle(captured: Captured, requests: Iterable[Request]) -> None:
    """Lets variables take what memory they will have in all steps; values stay.

    Each gets a buffer of its own, those that steps access by rows are set to copy-on-read.
    Updates that other threads make meanwhile may be lost.
    """
    own, by_rows = _by_access(captured)
    for request in requests:
        buffers.unshare(own, request.device)
        buffers.copy_reads(by_rows, request.device)


def _by_access(captured: Captured) -> tuple[list[Any], list[Any]]:
    """The captured variables that are read and updated whole, and those accessed by rows."""
    rows, known = set(captured.graph.form.copied_variables), captured.variables.items()
    own = [one for name, one in known if name not in rows]
    return own, [one for name, one in known if name in rows]


@tells_bugs
@alone
def as_devices_are(
    captured: Captured,
    requests: Iterable[Request],
    options: Options,
    is_settled: bool,
    before: Entry | None,
    spare: float,
) -> tuple[Request, ...]:
    """Requests with what devices hold now, what they have free, and what steps before taught.

    If variables are not settled yet, the buffers that they will get are held meanwhile. What no
    one can reach any more is given up: functions and errors refer to one another in circles.
    """
    gc.collect()
    found = []
    own, _ = _by_access(captured)
    for request in requests:
        if is_fed(request.device):
            Feeds().settle()
        learned = 0 if options.strategy else unforeseen(captured, request)
        later = Unsettled() if is_settled else buffers.unsettled(own, request.device)
        with stand_ins(captured, request.device, later.missing) as held:
            leaving = before.constants(request.device) if before else 0
            beside = bytes_beside(captured, request, leaving)
            counted = replace(
                request,
                bytes_beside=beside,
                bytes_unforeseen=learned,
                sources=captured.known_sources,
            )
            where = partial(lying, captured, request.device, held)
            homes = _homes(captured, request, later, is_settled)
            found.append(_unpadded(with_room(counted, where, later.copied, homes, spare), captured))
    return tuple(found)


def _unpadded(request: Request, captured: Captured) -> Request:
    """The request, in which padding of variables is theirs and not in use beside the function."""
    costs = Costs({}, blocks=request.blocks)
    own = padding(captured.graph, costs, Plan(device=request.device))
    return replace(request, bytes_beside=max(0, request.bytes_beside - own))


def _homes(
    captured: Captured, request: Request, later: Unsettled, is_settled: bool
) -> dict[str, Chunk]:
    """Where variables lie that may be placed, as far as that is told."""
    if not (request.host and "place" in request.techniques):
        return {}
    own, _ = _by_access(captured)
    found = buffers.homes(own, request.device) if is_settled else later.homes
    return {name: found[id(one)] for name, one in captured.variables.items() if id(one) in found}


@tells_bugs
@alone
def plan_devices(
    captured: Captured,
    requests: Iterable[Request],
    options: Options,
    accepted: Sequence[Planned] = (),
) -> tuple[tuple[Planned, ...], Tracing | None]:
    """Plans a function for its scarce devices, one after the other; nothing moves.

    What was accepted for them before is taken again where it still keeps what is asked.

    Returns:
      What was decided for each, and the steps to be traced before it is decided anew, if any.

    Raises:
      BudgetError: a device's budget cannot be met.
      HostMemoryError: a host has less free memory than its plan needs.
    """
    planned: list[Planned] = []
    graph, tracing = canonical(captured.graph), None
    for request, before in zip_longest(tuple(requests), accepted):
        if planned:
            plan = planned[-1].plan
            done = passes_of(plan, route_of(plan.device, plan.host))
            graph = run_passes(planned[-1].graph, (*done, Align()), observe)
        is_known = before is not None and options.profile != "measured"
        one = _still_kept(before, captured, graph, request) if is_known else None
        if one is None:
            one, tracing = _plan_device(captured, graph, request, options)
        check_host_memory(one.decision)
        planned.append(one)
    return tuple(planned), tracing


def canonical(graph: Graph) -> Graph:
    """A captured graph in the form that is planned."""
    return run_passes(graph, (Prune(), Align()))


def _still_kept(
    before: Planned, captured: Captured, graph: Graph, request: Request
) -> Planned | None:
    """What was decided before, judged for what is free now; None if that is not enough.

    An original that was left as it is may not be where others hold more now: of what it may have in
    use in any order, the judgement knows nothing.
    """
    was = before.request
    now = {name: getattr(was, name) for name in ("room", "lying", "blocks", "bytes_beside")}
    as_then = replace(request, **now)
    if was != as_then or before.graph not in (graph, joined(graph, Costs({}))[0]):
        return None
    if before.plan.is_noop and request.bytes_beside > was.bytes_beside:
        return None
    if is_fed(request.device) and before.costs.fed is None:  # a data set makes batches there now
        return None
    costs = replace(before.costs, lying=request.lying, blocks=request.blocks)
    found = judge(before.graph, costs, request, before.plan, captured.bodies)
    return Planned(before.graph, costs, found, request) if found.keeps(request.budget) else None


def _plan_device(
    captured: Captured, graph: Graph, request: Request, options: Options
) -> tuple[Planned, Tracing | None]:
    """A device's plan, of a graph whose long sums are whole if the budget has room for that.

    In parts they take less memory, but the parts are written and read besides.
    """
    whole, _ = joined(graph, Costs({}))
    if whole is not graph and not options.strategy and _has_room(captured, whole, request):
        ordered = replace(request, techniques=request.techniques & {"order"})
        with suppress(BudgetError):
            found, tracing = _plan_graph(captured, whole, ordered, options)
            return replace(found, request=request), tracing
    return _plan_graph(captured, graph, request, options)


def _has_room(captured: Captured, graph: Graph, request: Request) -> bool:
    """Whether a budget may have room for a graph as it is."""
    plan = Plan(device=request.device, host=request.host)
    peak = simulate(graph, price(captured, graph, request, "static"), plan).peak_bytes
    return peak + request.bytes_beside <= (request.budget or 0)


def _plan_graph(
    captured: Captured, graph: Graph, request: Request, options: Options
) -> tuple[Planned, Tracing | None]:
    strategy = options.strategy
    profile = "static" if strategy else options.profile
    costs = price(captured, graph, request, profile)
    tracing = None
    if profile == "measured" and not measured(graph, request):
        decision = _without_placement(graph, costs, request, captured.bodies)
        tracing = Tracing(graph, request, decision.plan)
    elif strategy:
        decision = carry_out(graph, costs, request, strategy)
    else:
        decision = decided(graph, costs, request, captured.bodies)
    return Planned(graph, costs, decision, request), tracing


def _without_placement(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    """A plan that moves no variable if there is one: another can still be chosen after it."""
    near = replace(request, techniques=request.techniques - {"place"})
    try:
        return decided(graph, costs, near, bodies)
    except BudgetError:
        return decided(graph, costs, request, bodies)


def decided(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    """What the planner chooses, or chose before where that was kept.

    Raises:
      BudgetError: the budget cannot be met.
    """
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
