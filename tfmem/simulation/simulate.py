"""Memory and time of (graph, costs, plan): the peak, when it is, and who is alive then.

Four clocks run: the device computes one node after another in the order, the host whichever of its
nodes has all that it reads, and one copy at a time goes each way between them.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tfmem.costs.types import Costs
from tfmem.graph.compact import KEPT
from tfmem.graph.ir import Graph, Value
from tfmem.plan import Plan
from tfmem.simulation import liveness
from tfmem.simulation.allocation import Allocation
from tfmem.simulation.layout import within
from tfmem.simulation.program import Program, program
from tfmem.simulation.replay import Replay
from tfmem.simulation.requests import functions, kernel_buffers, scratch, staying
from tfmem.simulation.shuffled import orders_of
from tfmem.simulation.variations import variations_of

Array = npt.NDArray[np.int64]

# Constants; what others do to predictions is measured by `python -m models.bench.constants`.

LEAST_STEPS, MOST_STEPS = 5, 20
"""Steps replayed in each allocator: its padding settles only after some. More take longer."""

EVENTS = 100_000
"""Nodes times steps, and nodes times processes, of one replay: bounds its time in large graphs."""

PROCESSES = 8
"""Allocators in which steps are replayed, each with another past. Fewer accept plans that a process
with an unlucky past cannot run: in three a U-Net's plan was accepted that was out of memory in its
seventh step, in eight it is refused."""


@dataclass(frozen=True)
class Simulation:
    """What a plan is predicted to give.

    Attributes:
      peak_bytes: most bytes in use on the device while the nodes run strictly in order.
      peak_node: the node that runs then; "" if none runs on the device.
      timeline: bytes in use while each node of `order` runs, its workspace included.
      step_seconds: from the first node to the last node or copy.
      host_bytes: most bytes held on the host.
      alive_at_peak: (value, bytes it takes) of what is in use at the peak, largest first; the
        workspace of `peak_node` is not among them.
      order: the nodes that run on the device, in order.
      window_peak_bytes: bound on the peak whichever nodes of the window run together; equal to
        `peak_bytes` for a window of 1.
    """

    peak_bytes: int
    peak_node: str
    timeline: Array
    step_seconds: float
    host_bytes: int
    alive_at_peak: tuple[tuple[Value, int], ...]
    order: tuple[str, ...]
    window_peak_bytes: int


def simulate(graph: Graph, costs: Costs, plan: Plan) -> Simulation:
    """Replays a plan on the captured graph.

    A plan without an order is replayed as TensorFlow's executor would run it on one thread, with a
    queue of ready nodes.

    Raises:
      Error: the plan does not fit the graph (see `program.program`).
    """
    steps, clocks, lifetimes = _replayed(graph, costs, plan)
    timeline = _timeline(steps, costs, lifetimes)
    peak = int(timeline.argmax())
    bound = int(timeline[peak])
    if plan.window > 1:
        loose = liveness.lifetimes(steps, costs.granularity, clocks.held, plan.window)
        bound = max(bound, int(_window_timeline(loose, costs, plan.window).max()))
    return Simulation(
        peak_bytes=int(timeline[peak]),
        peak_node=steps.graph.names[steps.order[peak]] if steps.order else "",
        timeline=timeline[: len(steps.order)],
        step_seconds=clocks.seconds,
        host_bytes=int(lifetimes.timeline(host=True).max()),
        alive_at_peak=tuple(lifetimes.alive(peak)),
        order=steps.names,
        window_peak_bytes=bound,
    )


@dataclass(frozen=True)
class Buffer:
    """A buffer on the device: the value it was made for, its bytes, first and last position."""

    value: Value
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class TimedCopy:
    """A copy between device and host, with the seconds at which it begins and has landed."""

    value: Value
    nbytes: int
    to_host: bool
    begin: float
    end: float


@dataclass(frozen=True)
class Trace:
    """One step of a plan, told from beginning to end.

    Attributes:
      order: the nodes that run on the device; a *position* is an index into it.
      begins: seconds at which each of them starts.
      ends: seconds at which each has ended.
      timeline: bytes in use on the device while each runs, its workspace included.
      buffers: what is on the device, and from when to when.
      copies: what crosses between device and host.
    """

    order: tuple[str, ...]
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    timeline: Array
    buffers: tuple[Buffer, ...]
    copies: tuple[TimedCopy, ...]


def trace(graph: Graph, costs: Costs, plan: Plan) -> Trace:
    """What `simulate` sums up, with every node, buffer and copy."""
    steps, clocks, lifetimes = _replayed(graph, costs, plan)
    seconds = [costs.seconds.get(name, 0.0) for name in steps.graph.priced]
    ends = [clocks.ends[node] for node in steps.order]
    here = np.flatnonzero(~lifetimes.on_host & (lifetimes.nbytes > 0)).tolist()
    return Trace(
        order=steps.names,
        begins=tuple(end - seconds[node] for end, node in zip(ends, steps.order, strict=True)),
        ends=tuple(ends),
        timeline=_timeline(steps, costs, lifetimes)[: len(steps.order)],
        buffers=tuple(
            Buffer(
                steps.value(int(lifetimes.owner[buffer])),
                int(lifetimes.nbytes[buffer]),
                int(lifetimes.start[buffer]),
                int(lifetimes.end[buffer]),
            )
            for buffer in here
        ),
        copies=tuple(_timed_copies(steps, costs, clocks.ends)),
    )


def _timed_copies(steps: Program, costs: Costs, ends: Sequence[float]) -> Iterator[TimedCopy]:
    for number, copy in enumerate(steps.copies, len(steps.graph.names)):
        nbytes = steps.nbytes[copy.source]
        rate = costs.to_host if copy.to_host else costs.from_host
        begin = ends[number] - costs.latency - nbytes / rate
        yield TimedCopy(steps.value(copy.source), nbytes, copy.to_host, begin, ends[number])


def allocate(
    graph: Graph,
    costs: Costs,
    plan: Plan,
    *,
    room: Sequence[int] | None = None,
    most: float = math.inf,
    count: int | None = None,
) -> Allocation:
    """A plan replayed in TensorFlow's allocator: `simulate`'s peak plus the padding of chunks.

    This is what is measured, but it jumps with where things happen to lie: predict with it, and
    compare plans by `simulate`.

    Args:
      graph, costs, plan: as for `simulate`.
      room: bytes of each free chunk of the allocator, by address, before the plan is carried out:
        what lives on the device then and is placed on the host leaves a chunk of its own. None if
        the allocator may grow.
      most: bytes in use for which chunks are kept apart, if they can be.
      count: processes in which it is replayed where the allocator grows, fewer for large graphs;
        callers for whom it is where there is room. None for all. More never show less.
    """
    step, rounds, steps = _replay(graph, costs, plan, most)
    if room is None:
        return step.grown(min(count or PROCESSES, max(1, rounds)), steps)
    return within(step, _freed(graph, costs, plan, room), steps, count)


def step_of(graph: Graph, costs: Costs, plan: Plan, most: float = math.inf) -> tuple[Replay, int]:
    """A plan's step, to be replayed in allocators, and how many times; arguments of `allocate`."""
    step, _, steps = _replay(graph, costs, plan, most)
    return step, steps


def asked(graph: Graph, costs: Costs, plan: Plan) -> list[tuple[str, int]]:
    """What a step, but the first, asks the device's allocator for: node and bytes, in order."""
    return step_of(graph, costs, plan)[0].asked()


def _freed(graph: Graph, costs: Costs, plan: Plan, room: Sequence[int]) -> tuple[int, ...]:
    """The free chunks when variables have been placed: each leaves one of its own."""
    placed = (graph.by_name[one.variable] for one in plan.placements)
    freed = (sum(map(costs.allocated, node.nbytes)) for node in placed if node.device != plan.host)
    return *freed, *room


def _replay(graph: Graph, costs: Costs, plan: Plan, most: float) -> tuple[Replay, int, int]:
    """A plan's step, to be replayed; in how many processes at most, and how many times."""
    steps, _, lifetimes = _replayed(graph, costs, plan)
    rounds = EVENTS // max(1, len(steps.order))
    times = max(LEAST_STEPS, min(MOST_STEPS, rounds))
    buffers, inside = kernel_buffers(steps, costs), functions(steps, costs, lifetimes)
    step = Replay(lifetimes, buffers, inside, fed=costs.fed, lying=costs.lying)
    step.most, step.orders = most, orders_of(steps, plan, times)
    step.variations = variations_of(lifetimes, costs)
    return step, rounds, times


def _replayed(
    graph: Graph, costs: Costs, plan: Plan
) -> tuple[Program, _Clocks, liveness.Lifetimes]:
    """A plan applied to a graph: its steps, when they end, and how long buffers live."""
    steps = program(graph, plan)
    clocks = _clocks(steps, costs)
    return steps, clocks, liveness.lifetimes(steps, costs.granularity, clocks.held)


def _timeline(steps: Program, costs: Costs, lifetimes: liveness.Lifetimes) -> Array:
    """Bytes in use on the device while each node runs."""
    return lifetimes.timeline() + _workspace(steps, costs, lifetimes) + sum(staying(steps, costs))


def _workspace(steps: Program, costs: Costs, lifetimes: liveness.Lifetimes) -> Array:
    return np.array(scratch(steps, costs, lifetimes) or [0], np.int64)


def _window_timeline(lifetimes: liveness.Lifetimes, costs: Costs, window: int) -> Array:
    """Bytes in use at most while each node is the oldest one that has not finished.

    Then every node less than `window` places later, constants not counted, may have started, unless
    it waits for this one: its new buffers and its workspace are added to those of the strict order.
    """
    steps, here = lifetimes.program, ~lifetimes.on_host
    count = max(1, len(steps.order))
    made = np.bincount(lifetimes.start[here], lifetimes.nbytes[here], count)
    scratch = _workspace(steps, costs, lifetimes)
    early = (made + scratch).astype(np.int64).tolist()
    early[:1] = [int(scratch[0])]
    successors, place = steps.graph.successors, {node: i for i, node in enumerate(steps.order)}
    timeline = _timeline(steps, costs, lifetimes).tolist()
    ordered = [i for i, node in enumerate(steps.order) if steps.graph.kind[node] != KEPT]
    ends = [*ordered, *[len(steps.order)] * (window + 1)]
    for position, node in enumerate(steps.order):
        waiting, end = {node}, ends[bisect_left(ordered, position) + window]
        for other in steps.order[position:end]:
            if other in waiting:
                waiting.update(r for r in successors[other] if place.get(r, -1) < end)
            else:
                timeline[position] += early[place[other]]
    return np.array(timeline, np.int64)


class _Clocks(NamedTuple):
    """Which copies to the host have landed when each position ends; when each step has ended.

    `seconds` are those of all: without waits a sum that does not depend on the order.
    """

    held: dict[int, list[int]]
    ends: list[float]
    seconds: float


def _clocks(steps: Program, costs: Costs) -> _Clocks:
    graph, nodes = steps.graph, len(steps.graph.names)
    seconds = [costs.seconds.get(name, 0.0) for name in graph.priced]
    ends = [0.0] * len(steps.on_host)
    if not steps.waits:
        for node, end in zip(steps.order, accumulate(seconds[n] for n in steps.order), strict=True):
            ends[node] = end
        return _Clocks({}, ends, math.fsum(seconds[node] for node in steps.order))
    there = [costs.seconds_on_host(name) for name in graph.priced]
    link, device, finished = _Link(costs), _Device(costs.contention), []
    host = computed = 0.0
    for step in steps.sequence:
        awaited = steps.waits.get(step, ())
        if step < nodes:
            ready = max((link.arrival(other, ends) for other in awaited), default=0.0)
            if graph.is_input[step]:
                ends[step] = ready
            elif steps.on_host[step]:
                host = ends[step] = max(host, ready) + there[step]
                computed += there[step]
            else:
                ends[step] = device.run(ready, seconds[step], link.busy + computed)
                finished.append(ends[step])
            continue
        copy = steps.copies[step - nodes]
        ready = max((ends[other] for other in awaited), default=0.0)
        if copy.to_host:
            ends[step] = link.send(ready, steps.nbytes[copy.source])
        else:
            link.request(step, ready, steps.nbytes[copy.source])
    link.drain(ends)
    held: dict[int, list[int]] = {}
    for number, copy in enumerate(steps.copies):
        if copy.to_host:
            landing = bisect_left(finished, ends[nodes + number])
            held.setdefault(copy.pace if copy.pace >= 0 else landing, []).append(number)
    return _Clocks(held, ends, max(ends, default=0.0))


class _Device:
    """The device's own nodes, which stand still for a part of what others do on its cores."""

    def __init__(self, contention: float) -> None:
        self.contention = contention
        self.now = self.counted = 0.0

    def run(self, ready: float, seconds: float, busy: float) -> float:
        """Runs a node; when it has ended. `busy` is what others have done until now, in seconds.

        Nothing is lost to what they do while the device waits for them.
        """
        idle = max(0.0, ready - self.now)
        lost = self.contention * max(0.0, busy - self.counted - idle)
        self.counted = busy
        self.now += idle + lost + seconds
        return self.now


class _Link:
    """The two directions between device and host, each with a queue of its own.

    `busy` are the seconds in which copies were under way, those of both directions added.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.busy = 0.0
        self.out_free = self.in_free = 0.0
        self.pending: list[tuple[float, int, int]] = []
        self.waiting: set[int] = set()

    def send(self, ready: float, nbytes: int) -> float:
        """Copies to the host; when it has landed."""
        begin = max(self.out_free, ready)
        seconds = self._seconds(nbytes / self.costs.to_host, begin, self.in_free)
        self.out_free = begin + self.costs.latency + seconds
        self.busy += seconds
        return self.out_free

    def _seconds(self, alone: float, begin: float, other_free: float) -> float:
        """Seconds of a copy that meets others on their way back: the later one waits for both."""
        together = min(alone, max(0.0, other_free - begin))
        return alone + (2.0 - self.costs.duplex) * together

    def request(self, step: int, ready: float, nbytes: int) -> None:
        """Asks for a copy to the device that may start at `ready`."""
        heapq.heappush(self.pending, (ready, step, nbytes))
        self.waiting.add(step)

    def arrival(self, step: int, ends: list[float]) -> float:
        """When a step has ended; serves the copies to the device that come before it."""
        while step in self.waiting:
            self._serve(ends)
        return ends[step]

    def drain(self, ends: list[float]) -> None:
        """Serves every copy that was asked for."""
        while self.pending:
            self._serve(ends)

    def _serve(self, ends: list[float]) -> None:
        ready, step, nbytes = heapq.heappop(self.pending)
        begin = max(self.in_free, ready)
        seconds = self._seconds(nbytes / self.costs.from_host, begin, self.out_free)
        self.in_free = ends[step] = begin + self.costs.latency + seconds
        self.busy += seconds
        self.waiting.discard(step)
