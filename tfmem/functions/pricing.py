"""Prices of a captured function on this machine: sizes, a probed link, traced steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any, TypeVar

from tfmem.bridge import batches
from tfmem.bridge.capture import Captured
from tfmem.bridge.feeds import is_fed, rows_kept, rows_made
from tfmem.costs import history, probes, profiler
from tfmem.costs.static import static_costs, with_link, with_measured
from tfmem.costs.types import Copies, Costs, Feed, Link, Measured, Rates
from tfmem.errors import Error
from tfmem.graph.device_names import copies, is_gpu
from tfmem.graph.ir import Graph
from tfmem.plan import Plan, moved_with
from tfmem.planning.placement import variables_on
from tfmem.planning.request import Request
from tfmem.runtime import memory
from tfmem.runtime.devices import lanes
from tfmem.runtime.limited import is_out_of_memory
from tfmem.simulation.callers import with_bodies

_log = logging.getLogger("tfmem")

Probe = TypeVar("Probe", Rates, Link)
Asked = TypeVar("Asked")
Found = TypeVar("Found")

_KEPT = 1 / 16
"""Part of the budget that chunks for rows may take which pipelines keep. More keeps those of larger
shuffles apart, and leaves less to the steps until the rows have moved there."""

_WARM_UP = 1
_TRACED = 3
"""Steps that run before any is traced (the first has its memory still to get), and steps that are:
the median of three leaves one outlier out."""


def price(captured: Captured, graph: Graph, request: Request, profile: str) -> Costs:
    """Costs of a graph, as good as the profile allows and as far as they are known.

    Args:
      captured: the function.
      graph: what is planned of it.
      request: what it is planned for.
      profile: "static" takes sizes and the rates of a usual device; otherwise the device, a GPU's
        host and the link are probed (once on each machine), and seconds measured before are used.
    """
    is_static = profile == "static" or request.budget is None
    has_host = not is_static and _crosses(graph, request)
    costs = static_costs(
        graph,
        flops=captured.flops,
        workspace=captured.workspace,
        buffers=captured.buffers,
        device=request.device,
        rates=None if is_static else rates_of(request.device),
        host_rates=rates_of(request.host) if has_host and is_gpu(request.device) else None,
    )
    costs = with_bodies(costs, graph, captured.bodies)
    here = (nbytes for place, nbytes in captured.copied if place == request.device)
    copied = tuple(map(costs.allocated, here))
    lying, blocks = request.lying, request.blocks
    costs = replace(costs, lanes=lanes(), lying=lying, blocks=blocks, copied=copied)
    if is_fed(request.device):
        costs = replace(costs, fed=_feed(captured, costs, request))
    if is_static:
        return costs
    if has_host:
        link = link_of(request.device, request.host)
        costs = with_link(costs, link) if link else costs
        costs = replace(costs, by_kernels=by_kernels(request.device, request.host))
    known = measured(graph, request)
    return with_measured(costs, graph, known) if known else costs


def _crosses(graph: Graph, request: Request) -> bool:
    """Whether values may cross between the device and its host."""
    if not request.host:
        return False
    may_cross = bool(request.techniques & {"swap", "place"})
    return may_cross or bool(variables_on(graph, request.host))


def _feed(captured: Captured, costs: Costs, request: Request) -> Feed:
    """What arguments are made from; of the rows that pipelines keep no more than is affordable.

    In whole batches, as what is kept at a moment differs a little.
    """
    rows, taken = batches.rows(captured), batches.taken(captured)
    row, batch = sum(nbytes for nbytes, _ in rows), max((count for _, count in rows), default=1)
    kept = ceil(rows_kept(row) / batch) if row else 0
    most = int(_KEPT * (request.budget or 0) / max(1, row * batch))
    return Feed(
        tuple((costs.allocated(size), count) for size, count in rows_made(rows)),
        min(kept, most),
        tuple(map(costs.allocated, taken)),
    )


def measured(graph: Graph, request: Request) -> Measured | None:
    """What nodes took in steps traced before; None if none were."""
    return history.measured_of(graph, request.device, profiler.machine())


def rates_of(device: str) -> Rates | None:
    """How fast a device computes, probed once on each machine; None if it has no room for that."""
    return _known(Rates, lambda side: probes.probe_rates(device, side), device)


def link_of(device: str, host: str) -> Link | None:
    """How fast copies between two devices are, likewise."""
    return _known(Link, lambda side: probes.probe_link(device, host, side), device, host)


def by_kernels(device: str, host: str) -> bool:
    """Whether values cross by a GPU's own kernels: unless the other form was measured faster."""
    if not copies(device, host):
        return False
    known = history.probed(Copies, profiler.machine(), device, host)
    return not known or known.on_device


def _known(kind: type[Probe], probe: Callable[[int], Probe], *devices: str) -> Probe | None:
    """What was probed before of some devices, or is now; None if they have no room for that.

    What smaller probes find is kept for when there is no room for a larger one again.
    """
    machine = profiler.machine()
    known: Probe | None = history.probed(kind, machine, *devices)
    if known is not None:
        return known
    sides = _with_room(probes.probe_sides, devices[0]) or ()
    for side in sides:
        # An allocator without room waits for ten seconds before it says so.
        if not _has_room_for(devices[0], probes.BYTES * side**2):
            continue
        facts = devices if side == sides[0] else (*devices, f"side {side}")
        if known := history.probed(kind, machine, *facts):
            return known
        if found := _with_room(probe, side):
            history.keep_probe(found, machine, *facts)
            return found
    _log.info("%s cannot be probed, usual rates are taken: no room", " and ".join(devices))
    return None


def _has_room_for(device: str, nbytes: int) -> bool:
    """Whether a device is not known to have less memory left."""
    try:
        return memory.device_limit(device) is None or memory.has_room(device, nbytes)
    except Error:
        return True  # its allocator keeps no statistics


def _with_room(probe: Callable[[Asked], Found], asked: Asked) -> Found | None:
    try:
        return probe(asked)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


class Tracing:
    """The steps of a user that are traced, one after the other, until enough are.

    Attributes:
      is_kept: whether enough were, and what was measured is kept.
    """

    def __init__(self, graph: Graph, request: Request, plan: Plan) -> None:
        self._graph, self._request = graph, request
        self._on_host = moved_with(plan.placements)
        if request.host:
            self._on_host |= {node.name for node in graph.nodes if node.device == request.host}
        self._steps: list[Measured] = []
        self.is_kept = False
        self._left = _WARM_UP + _TRACED

    @property
    def is_done(self) -> bool:
        """Whether enough steps were traced, or none can be."""
        return self._left == 0

    def run(self, step: Callable[[], Any]) -> Any:
        """Runs a step, traced unless it warms up; what is measured is kept after the last.

        One that ends with an error does not count.
        """
        if self._left > _TRACED:
            result = step()
        elif profiler.PROFILER.start():
            try:
                result = step()
            finally:
                traced = profiler.PROFILER.stop(self._request.device, self._graph.by_name)
            self._steps.append(traced)
        else:
            self._left = 0
            return step()
        self._left -= 1
        if self.is_done:
            self._keep()
        return result

    def _keep(self) -> None:
        found, there = profiler.usual(self._steps), self._on_host
        here = {name: taken for name, taken in found.seconds.items() if name not in there}
        away = {name: taken for name, taken in found.host_seconds.items() if name in there}
        found = replace(found, seconds=here, host_seconds=away)
        history.keep_measured(self._graph, self._request.device, profiler.machine(), found)
        self.is_kept = True
