r"""Sweeps: an order made better in one pass, forwards or backwards, in near-linear time.

Forwards, a node is *free* if running it now leaves no more bytes alive than before and needs,
while it runs, no more than a bound. A free node may always run at once: whatever runs after it then
finds as few bytes alive as if it had run later, or fewer. Otherwise the given order decides.

    before:  g1 g2 g3 u1 u2 u3          (g makes a gradient, u consumes it)
    after:   g1 u1 g2 u2 g3 u3

Backwards the same holds mirrored: a node whose outputs take at least what running it releases may
always be put off until just before the first node that needs it.

    before:  m1 m2 f1 f2                (m makes a mask, f reads it)
    after:   m1 f1 m2 f2
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tfmem.graph.topology import Countdown
from tfmem.planning.order.pressure import Pressure


def forwards(
    model: Pressure, order: Sequence[int], bound: float, *, greedy: bool = False
) -> list[int]:
    """The order with each free node as early as it may run.

    Args:
      model: the buffers.
      order: a topological order of all nodes; it decides where no node is free.
      bound: most bytes a free node may need while it runs.
      greedy: where no node is free, take the ready one that adds fewest bytes instead.
    """
    return _Forwards(model, order, bound, greedy=greedy).run()


def backwards(model: Pressure, order: Sequence[int], bound: float) -> list[int]:
    """The order with each node that releases too little as late as it may run."""
    return _Backwards(model, order[::-1], bound).run()[::-1]


class _Sweep(ABC):
    """Takes ready nodes one by one: a free one if there is any, else the first in the order.

    The change of a node is what taking it adds to the bytes alive; it is free if that is at most 0
    and the bytes it needs while it runs are within the bound.
    """

    def __init__(
        self,
        model: Pressure,
        order: Sequence[int],
        bound: float,
        change: Sequence[int],
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
        *,
        greedy: bool = False,
    ) -> None:
        self.model, self.order, self.bound, self.greedy = model, order, bound, greedy
        self.rank = [0] * len(order)
        for position, node in enumerate(order):
            self.rank[node] = position
        self.countdown = Countdown(map(len, before), after)
        self.change = list(change)
        self.alive = 0
        self.done = [False] * len(order)
        self.free: list[tuple[int, int]] = []
        self.rest: list[tuple[int, int, int]] = []
        self.blocked: list[tuple[int, int, int]] = []
        self.stamp = 0

    @abstractmethod
    def _needs(self, node: int) -> int:
        """Bytes in use while a node runs that is taken now."""

    @abstractmethod
    def _take(self, node: int) -> None:
        """Brings the changes of other nodes up to date with a node that was taken."""

    def run(self) -> list[int]:
        """All nodes, as they were taken."""
        taken: list[int] = []
        for node in self.order:
            if not self.countdown.left[node]:
                self._offer(node)
        while len(taken) < len(self.order):
            node = self._next()
            taken.append(node)
            self.done[node] = True
            self.alive += self.change[node]
            self._take(node)
            for follower in self.countdown.take(node):
                self._offer(follower)
        return taken

    def _offer(self, node: int) -> None:
        self.stamp += 1
        if self.change[node] <= 0:
            heapq.heappush(self.free, (self.rank[node], node))
        first = self.change[node] if self.greedy else self.rank[node]
        heapq.heappush(self.rest, (first, -self.stamp, node))

    def _next(self) -> int:
        while self.blocked and self.alive + self.blocked[0][0] <= self.bound:
            _, rank, node = heapq.heappop(self.blocked)
            heapq.heappush(self.free, (rank, node))
        while self.free:
            rank, node = heapq.heappop(self.free)
            if self.done[node]:
                continue
            needs = self._needs(node)
            if needs <= self.bound:
                return node
            heapq.heappush(self.blocked, (needs - self.alive, rank, node))
        while True:
            first, stamp, node = heapq.heappop(self.rest)
            if self.done[node]:
                continue
            if self.greedy and first != self.change[node]:
                heapq.heappush(self.rest, (self.change[node], stamp, node))
                continue
            return node

    def _lower(self, node: int, nbytes: int) -> None:
        """Lowers the change of a node that is still to be taken."""
        if node < 0 or self.done[node]:
            return
        self.change[node] -= nbytes
        if not self.countdown.left[node]:
            if self.change[node] <= 0:
                heapq.heappush(self.free, (self.rank[node], node))
            if self.greedy:
                heapq.heappush(self.rest, (self.change[node], -self.stamp, node))


class _Forwards(_Sweep):
    """Takes nodes from the start."""

    def __init__(
        self, model: Pressure, order: Sequence[int], bound: float, *, greedy: bool
    ) -> None:
        graph = model.graph
        edges = graph.predecessors, graph.successors
        super().__init__(model, order, bound, model.added_first, *edges, greedy=greedy)
        self.left = [len(readers) for readers in model.readers]
        self.last = [0] * len(model.size)  # xor of the readers left: the reader itself once alone
        for buffer, readers in enumerate(model.readers):
            for node in readers:
                self.last[buffer] ^= node
        self.is_alive = [not ghost for ghost in model.is_ghost]

    def _needs(self, node: int) -> int:
        model, needs = self.model, self.alive + self.model.scratch[node]
        taken = -1
        for source, output in model.takes[node]:
            if self.left[source] == 1 and not model.stays[source]:
                taken = output
                break
        for b in model.makes[node]:
            if b != taken and (self.left[b] or model.stays[b] or not model.is_ghost[b]):
                needs += model.size[b]
        return needs

    def _take(self, node: int) -> None:
        model = self.model
        for b in model.reads[node]:
            self.left[b] -= 1
            self.last[b] ^= node
            if self.is_alive[b]:
                if self.left[b] == 1 and not model.stays[b]:
                    self._lower(self.last[b], model.size[b])
            elif self._is_spared(b):
                self._lower(model.maker[b], model.size[b])
        for b in model.makes[node]:
            self.is_alive[b] = True
            if self.left[b] == 1 and model.is_ghost[b] and not model.stays[b]:
                self._lower(self.last[b], model.size[b])

    def _is_spared(self, ghost: int) -> bool:
        """Whether its maker, an update that has not run, just stopped having to make a ghost."""
        own = self.model.maker[ghost] in self.model.readers[ghost]
        return self.left[ghost] == int(own) and not self.model.stays[ghost]


class _Backwards(_Sweep):
    """Takes nodes from the end; the order is given from the end, too."""

    def __init__(self, model: Pressure, order: Sequence[int], bound: float) -> None:
        edges = model.graph.successors, model.graph.predecessors
        super().__init__(model, order, bound, model.released_last, *edges)
        self.alive = sum(size for size, stays in zip(model.size, model.stays, strict=True) if stays)
        self.later = [0] * len(model.size)  # readers of each buffer already taken

    def _needs(self, node: int) -> int:
        model = self.model
        needs = self.alive + self.change[node] + model.scratch[node]
        taken = -1
        for source, output in model.takes[node]:
            if not self.later[source] and not model.stays[source]:
                taken = output
                break
        for b in model.makes[node]:
            is_made = self.later[b] or model.stays[b] or node in model.readers[b]
            if b != taken and (is_made or not model.is_ghost[b]):
                needs += model.size[b]
        return needs

    def _take(self, node: int) -> None:
        model = self.model
        for b in model.makes[node]:
            if model.is_ghost[b]:
                self._pass_ghost(b, node)
        for b in model.reads[node]:
            self.later[b] += 1
            if self.later[b] == 1 and not model.stays[b]:
                self._keep(b, node)

    def _keep(self, b: int, node: int) -> None:
        """The last reader of a buffer is found: the others do not release it."""
        model = self.model
        if model.is_ghost[b]:
            if model.maker[b] < 0 or self.done[model.maker[b]]:
                return
            self._lower(model.maker[b], model.size[b])
        for reader in model.readers[b]:
            if reader != node and not (model.is_ghost[b] and reader == model.maker[b]):
                self._lower(reader, model.size[b])

    def _pass_ghost(self, b: int, node: int) -> None:
        """The update is taken: readers before it read the variable and release nothing."""
        if not self.later[b] and not self.model.stays[b]:
            for reader in self.model.readers[b]:
                if reader != node:
                    self._lower(reader, self.model.size[b])
