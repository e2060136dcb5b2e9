"""When each node and copy of a program runs.

Four clocks run: the device computes one node after another in the order, the host whichever of its
nodes has all that it reads, and one copy at a time goes each way between them. Some copies no plan
asks for but kernels of a GPU do, which read or make some values in the memory of the host.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from tfmem.costs.types import Costs
from tfmem.simulation.program import Program


class Clocks(NamedTuple):
    """When everything happens.

    Attributes:
      held: which copies to the host are known to have landed when each position ends: something
        waited for them, or nothing does and they are over.
      landed: for each copy to the host, the position by whose end it is over.
      ends: seconds at which each step has ended.
      seconds: of all. Without waits a sum that does not depend on the order.
    """

    held: dict[int, list[int]]
    landed: dict[int, int]
    ends: list[float]
    seconds: float


def clocks_of(steps: Program, costs: Costs) -> Clocks:
    """Runs the clocks of a program."""
    graph, nodes = steps.graph, len(steps.graph.names)
    seconds = [costs.seconds.get(name, 0.0) for name in graph.priced]
    ends = [0.0] * len(steps.on_host)
    if not steps.waits:
        for node, end in zip(steps.order, accumulate(seconds[n] for n in steps.order), strict=True):
            ends[node] = end
        return Clocks({}, {}, ends, math.fsum(seconds[node] for node in steps.order))
    there = [costs.seconds_on_host(name) for name in graph.priced]
    link, device, finished = _Link(costs), _Device(costs.contention), []
    asked = _Asked(steps, link, ends)
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
                ready = max(ready, asked.arrival(step))
                ends[step] = device.run(ready, seconds[step], link.busy + computed)
                asked.made(step)
                finished.append(ends[step])
            continue
        copy = steps.copies[step - nodes]
        ready = max((ends[other] for other in awaited), default=0.0)
        if copy.to_host:
            ends[step] = link.send(ready, steps.nbytes[copy.source])
        else:
            link.request(step, ready, steps.nbytes[copy.source])
    link.drain(ends)
    del ends[len(steps.on_host) :]
    held: dict[int, list[int]] = {}
    landed = {
        number: bisect_left(finished, ends[nodes + number])
        for number, copy in enumerate(steps.copies)
        if copy.to_host
    }
    for number, landing in landed.items():
        pace = steps.copies[number].pace
        held.setdefault(pace if pace >= 0 else landing, []).append(number)
    return Clocks(held, landed, ends, max(ends, default=0.0))


def awaited(steps: Program) -> dict[int, list[int]]:
    """Which copies to the host have landed when each position ends, whatever any clock says.

    A GPU's memory is handed out as kernels are launched, which runs ahead of all clocks but where a
    node waits for a copy. The copies before that have landed then, too: they go one by one.
    """
    found: dict[int, list[int]] = {}
    until, nodes = -1, len(steps.graph.names)
    copies = (step - nodes for step in reversed(steps.sequence) if step >= nodes)
    for number in (one for one in copies if steps.copies[one].to_host):
        pace = steps.copies[number].pace
        if pace >= 0:
            until = min(until, pace) if until >= 0 else pace
        if (position := pace if pace >= 0 else until) >= 0:
            found.setdefault(position, []).append(number)
    return found


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


class _Asked:
    """Copies that no plan asks for but kernels of a GPU, of values in the memory of the host.

    A value that the host makes has a number behind those of the steps in `ends`: when it arrives.
    """

    def __init__(self, steps: Program, link: _Link, ends: list[float]) -> None:
        self.graph, self.link, self.ends = steps.graph, link, ends
        self.landed = dict.fromkeys(itertools.chain(*self.graph.on_host.values()), 0.0)
        self.coming = dict[int, int]()

    def made(self, node: int) -> None:
        """Begins the copies of what a node has made."""
        for value in range(self.graph.first[node], self.graph.first[node + 1]):
            if value in self.landed:
                self.landed[value] = self.link.send(self.ends[node], self.graph.nbytes[value])
            if value in self.graph.from_host:
                self.coming[value] = len(self.ends)
                self.ends.append(0.0)
                self.link.request(self.coming[value], self.ends[node], self.graph.nbytes[value])

    def arrival(self, node: int) -> float:
        """When all that a node reads is where it reads it."""
        there = self.graph.on_host.get(node, ())
        found = [self.landed[value] for value in there]
        found += [
            self.link.arrival(self.coming[value], self.ends)
            for value in self.graph.reads[node]
            if value in self.coming and value not in there
        ]
        return max(found, default=0.0)


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
