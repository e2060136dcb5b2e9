"""Memory and time of (graph, costs, plan): the peak, when it is, and who is alive then."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tfmem.costs.types import Costs
from tfmem.graph.compact import KEPT
from tfmem.graph.device_names import is_gpu
from tfmem.graph.ir import Graph, Value
from tfmem.plan import Plan
from tfmem.simulation import liveness
from tfmem.simulation.allocation import Allocation
from tfmem.simulation.clocks import Clocks, awaited, clocks_of
from tfmem.simulation.layout import within
from tfmem.simulation.leaving import padding, with_left
from tfmem.simulation.program import Program, program
from tfmem.simulation.replay import Replay
from tfmem.simulation.requests import functions, kernel_buffers, scratch, staying
from tfmem.simulation.shuffled import orders_of
from tfmem.simulation.variations import FEWEST, MOST, variations_of

Array = npt.NDArray[np.int64]

# Constants; what others do to predictions is measured by `python -m models.bench.constants`.

LEAST_STEPS, MOST_STEPS = 5, 20
"""Steps replayed in each allocator: its padding settles only after some. More take longer."""

ROUNDS = 3
"""How often steps that differ take turns in each allocator, but in large graphs."""

EVENTS = 100_000
"""Nodes times steps, and nodes times processes, of one replay: bounds its time in large graphs."""

PROCESSES = 8
"""Allocators in which steps are replayed, each with another past. Fewer accept plans that a process
with an unlucky past cannot run: in three a U-Net's plan was accepted that was out of memory in its
seventh step, in eight it is refused."""

RECENT = 6
"""Applied plans that are kept for who asks next: a limit has up to six candidates."""


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


@dataclass(frozen=True, eq=False)
class Applied:
    """A plan applied to a graph: what is asked of it several times is found once.

    Raises, when it is asked anything:
      Error: the plan does not fit the graph (see `program.program`).
    """

    graph: Graph
    costs: Costs
    plan: Plan

    @cached_property
    def program(self) -> Program:
        """Its steps."""
        return program(self.graph, self.plan)

    @cached_property
    def clocks(self) -> Clocks:
        """When they run."""
        return clocks_of(self.program, self.costs)

    @cached_property
    def lifetimes(self) -> liveness.Lifetimes:
        """How long buffers live."""
        return liveness.lifetimes(self.program, self.costs.granularity, self._held)

    @cached_property
    def _held(self) -> Mapping[int, Sequence[int]]:
        """Which copies to the host have landed when each position ends."""
        return awaited(self.program) if is_gpu(self.plan.device) else self.clocks.held

    @cached_property
    def timeline(self) -> Array:
        """Bytes in use on the device while each node runs."""
        return _timeline(self.program, self.costs, self.lifetimes)

    @cached_property
    def simulation(self) -> Simulation:
        """What it is predicted to give."""
        steps, timeline, window = self.program, self.timeline, self.plan.window
        peak = int(timeline.argmax())
        bound = int(timeline[peak])
        if window > 1:
            granularity = self.costs.granularity
            loose = liveness.lifetimes(steps, granularity, self._held, window)
            bound = max(bound, int(_window_timeline(loose, self.costs, window).max()))
        return Simulation(
            peak_bytes=int(timeline[peak]),
            peak_node=steps.graph.names[steps.order[peak]] if steps.order else "",
            timeline=timeline[: len(steps.order)],
            step_seconds=self.clocks.seconds,
            host_bytes=int(self.lifetimes.timeline(host=True).max()),
            alive_at_peak=tuple(self.lifetimes.alive(peak)),
            order=steps.names,
            window_peak_bytes=bound,
        )

    @property
    def landed(self) -> Mapping[int, int]:
        """The earliest position at which each copy to the host is over, as far as it is known.

        A CPU computes as it goes through the order. A GPU's memory is handed out as kernels are
        launched, and how far they run behind that depends on what else the cores do.
        """
        return {} if is_gpu(self.plan.device) else self.clocks.landed

    @property
    def rounds(self) -> int:
        """How often so many nodes may be replayed."""
        return EVENTS // max(1, len(self.program.order))

    @property
    def times(self) -> int:
        """How many steps are replayed in each allocator."""
        return self._at_most(max(MOST_STEPS, ROUNDS * (1 + len(self.step.variations))))

    def _at_most(self, steps: int) -> int:
        """So many steps, or fewer in large graphs."""
        return max(LEAST_STEPS, min(steps, self.rounds))

    @cached_property
    def step(self) -> Replay:
        """Its step, to be replayed in allocators."""
        steps, costs, lifetimes = self.program, self.costs, self.lifetimes
        buffers, inside = kernel_buffers(steps, costs), functions(steps, costs, lifetimes)
        step = Replay(
            lifetimes, buffers, inside, fed=costs.fed, lying=costs.lying, copied=costs.copied
        )
        step.padding = padding(self.graph, costs, self.plan)
        step.orders = orders_of(steps, self.plan, self._at_most(MOST_STEPS))
        others = max(FEWEST, min(MOST, self.rounds // ROUNDS - 1))
        step.variations = variations_of(lifetimes, costs, self.landed, others)
        return step

    def allocate(
        self, room: Sequence[int] | None, most: float = math.inf, count: int | None = None
    ) -> Allocation:
        """It in an allocator; the arguments are those of `allocate`."""
        if room is None:
            return self.step.grown(min(count or PROCESSES, max(1, self.rounds)), self.times)
        self.step.most = most
        return within(self.step, _freed(self.graph, self.costs, self.plan, room), self.times, count)


class Recent:
    """Plans that were applied last: several in a row ask for the same one.

    One takes 0.9 MB (a U-Net of 1,003 nodes), and more where its steps differ.
    """

    def __init__(self) -> None:
        self._applied: deque[Applied] = deque(maxlen=RECENT)

    def applied(self, graph: Graph, costs: Costs, plan: Plan) -> Applied:
        """The plan applied to the graph; the one known if these are the very same objects."""
        for one in self._applied:
            if one.plan is plan and one.graph is graph and one.costs is costs:
                return one
        self._applied.append(Applied(graph, costs, plan))
        return self._applied[-1]


def simulate(graph: Graph, costs: Costs, plan: Plan) -> Simulation:
    """Replays a plan on the captured graph.

    A plan without an order is replayed as TensorFlow's executor would run it on one thread, with a
    queue of ready nodes.

    Raises:
      Error: the plan does not fit the graph (see `program.program`).
    """
    return Applied(graph, costs, plan).simulation


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
    applied = Applied(graph, costs, plan)
    steps, lifetimes = applied.program, applied.lifetimes
    seconds = [costs.seconds.get(name, 0.0) for name in steps.graph.priced]
    ends = [applied.clocks.ends[node] for node in steps.order]
    here = np.flatnonzero(~lifetimes.on_host & (lifetimes.nbytes > 0)).tolist()
    return Trace(
        order=steps.names,
        begins=tuple(end - seconds[node] for end, node in zip(ends, steps.order, strict=True)),
        ends=tuple(ends),
        timeline=applied.timeline[: len(steps.order)],
        buffers=tuple(
            Buffer(
                steps.value(int(lifetimes.owner[buffer])),
                int(lifetimes.nbytes[buffer]),
                int(lifetimes.start[buffer]),
                int(lifetimes.end[buffer]),
            )
            for buffer in here
        ),
        copies=tuple(_timed_copies(steps, costs, applied.clocks.ends)),
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
    return Applied(graph, costs, plan).allocate(room, most, count)


def step_of(graph: Graph, costs: Costs, plan: Plan, most: float = math.inf) -> tuple[Replay, int]:
    """A plan's step, to be replayed in allocators, and how many times; arguments of `allocate`."""
    applied = Applied(graph, costs, plan)
    applied.step.most = most
    return applied.step, applied.times


def asked(graph: Graph, costs: Costs, plan: Plan) -> list[tuple[str, int]]:
    """What a step, but the first, asks the device's allocator for: node and bytes, in order."""
    return Applied(graph, costs, plan).step.asked()


def _freed(graph: Graph, costs: Costs, plan: Plan, room: Sequence[int]) -> tuple[int, ...]:
    """The free chunks when variables have been placed."""
    nodes = (graph.by_name[one.variable] for one in plan.placements)
    placed = {n.name: sum(map(costs.allocated, n.nbytes)) for n in nodes if n.device != plan.host}
    return with_left(room, costs.blocks, placed)


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
