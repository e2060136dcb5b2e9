"""A stretch of an order, searched exactly: the best sequence of a few nodes between fixed ends.

Which buffers are alive at both ends of the stretch does not depend on the sequence within, so a
better sequence here changes nothing elsewhere. The search is a shortest path by bottleneck over
the sets of nodes that may have run (SERENITY's dynamic programme, arXiv 2003.02369, best first),
with the rule of `sweep` (a free node runs at once) cutting most of them off, and below what every
sequence reaches the set of most nodes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tfmem.planning.order.pressure import Pressure


@dataclass(frozen=True, slots=True)
class _Buffer:
    size: int
    maker: int  # bit of the node in the stretch that makes it; 0 if made before, -1 if after
    readers: int  # bits of its readers in the stretch
    outlives: bool  # whether it is needed after the stretch
    is_ghost: bool


class Stretch:
    """The nodes of an order between two positions, as a problem of its own."""

    def __init__(
        self, model: Pressure, order: Sequence[int], place: Sequence[int], begin: int, end: int
    ) -> None:
        self.nodes = list(order[begin:end])
        self.bit = {node: 1 << i for i, node in enumerate(self.nodes)}
        self.model = model
        self.buffers: dict[int, _Buffer] = {}
        for node in self.nodes:
            for b in (*model.reads[node], *model.makes[node]):
                if b not in self.buffers:
                    self.buffers[b] = self._buffer(b, place, begin, end)
        self.before = [
            sum(self.bit.get(other, 0) for other in model.graph.predecessors[node])
            for node in self.nodes
        ]
        self.after = [
            [self.nodes.index(f) for f in model.graph.successors[node] if f in self.bit]
            for node in self.nodes
        ]
        self.near = [self._near(node) for node in self.nodes]
        self.steps: list[dict[int, tuple[int, int]]] = [{} for _ in self.nodes]

    def _near(self, node: int) -> int:
        """Bits of the nodes that make or read what a node does."""
        near = 0
        for b in (*self.model.reads[node], *self.model.makes[node]):
            near |= self.buffers[b].readers | max(0, self.buffers[b].maker)
        return near

    def _buffer(self, b: int, place: Sequence[int], begin: int, end: int) -> _Buffer:
        model = self.model
        maker = model.maker[b]
        where = -1 if maker < 0 and model.is_ghost[b] else place[maker] if maker >= 0 else -2
        own = 0
        outlives = model.stays[b]
        for reader in model.readers[b]:
            own |= self.bit.get(reader, 0)
            outlives = outlives or place[reader] >= end
        made = 0 if where == -2 or 0 <= where < begin else self.bit.get(maker, -1)
        return _Buffer(model.size[b], made, own, outlives, model.is_ghost[b])

    def step(self, done: int, index: int) -> tuple[int, int]:
        """Bytes more while a node runs, and after it, where the nodes of `done` have run."""
        near, known = done & self.near[index], self.steps[index]
        found = known.get(near)
        if found is None:
            found = known[near] = self._step(near, index)
        return found

    def _step(self, done: int, index: int) -> tuple[int, int]:
        model, node = self.model, self.nodes[index]
        own = 1 << index
        after, during = 0, model.scratch[node]
        taken = -1
        for source, output in model.takes[node]:
            read = self.buffers[source]
            if not read.outlives and not read.readers & ~done & ~own:
                taken = output
                break
        for b in model.makes[node]:
            made = self.buffers[b]
            pending = made.outlives or made.readers & ~done
            if b != taken and (pending or not made.is_ghost):
                during += made.size
            if made.outlives or made.readers & ~done & ~own:
                after += made.size
        for b in model.reads[node]:
            read = self.buffers[b]
            if read.outlives or read.readers & ~done & ~own:
                continue
            if not read.is_ghost or read.maker == 0 or (read.maker > 0 and read.maker & done):
                after -= read.size
        return during, after

    def peak(self) -> int:
        """Most bytes more than at the start while the nodes run as they stand."""
        alive = peak = done = 0
        for index in range(len(self.nodes)):
            during, after = self.step(done, index)
            peak = max(peak, alive + during) if index else during
            alive += after
            done |= 1 << index
        return peak

    def least(self) -> int:
        """What every sequence reaches at least, in bytes more than at the start."""
        count = len(self.nodes)
        before, after = [0] * count, [0] * count  # bits of all nodes on either side of each
        for index in range(count):
            for other in _bits(self.before[index]):
                before[index] |= before[other] | 1 << other
        for index in reversed(range(count)):
            for other in self.after[index]:
                after[index] |= after[other] | 1 << other
        return max(map(self._needed, range(count), before, after), default=0)

    def _needed(self, index: int, before: int, after: int) -> int:
        """Bytes more that a node needs at least, as if what may run on either side did best."""
        model, node = self.model, self.nodes[index]
        own, later = 1 << index, after | 1 << index
        taken = {
            output
            for source, output in model.takes[node]
            if not self.buffers[source].outlives and not self.buffers[source].readers & after
        }
        needed = model.scratch[node]
        for b, buffer in self.buffers.items():
            is_needed = buffer.outlives or buffer.readers & later
            if buffer.maker == own:
                is_made = b not in taken and (is_needed or not buffer.is_ghost)
                needed += buffer.size if is_made else 0
            elif buffer.maker > 0:
                needed += buffer.size if buffer.maker & before and is_needed else 0
            elif buffer.maker == 0:
                needed -= 0 if is_needed else buffer.size
        return needed

    def search(self, limit: int) -> tuple[list[int] | None, int]:
        """The best sequence if it is better than the present one, and how many sets were looked at.

        Gives up after `limit` sets.
        """
        bound, least = self.peak(), self.least()
        if least >= bound:
            return None, 0
        full = (1 << len(self.nodes)) - 1
        start = sum(1 << i for i, before in enumerate(self.before) if not before)
        came: dict[int, tuple[int, list[int]]] = {}
        best = {0: least}
        heap = [(least, 0, 0, 0, start)]
        looked = 0
        while heap and looked < limit:
            peak, _, alive, done, ready = heapq.heappop(heap)
            if done == full:
                return self._path(came, done), looked
            if best.get(done, bound) < peak:
                continue
            looked += 1
            for index in _bits(ready):
                during, after = self.step(done, index)
                reached = max(peak, alive + during)
                if reached >= bound:
                    continue
                state = self._run_free(done, ready, index, alive + after, reached)
                now, open_, more, ran = state
                if best.get(now, bound) > reached:
                    best[now] = reached
                    came[now] = (done, ran)
                    heapq.heappush(heap, (reached, -len(ran) - done.bit_count(), more, now, open_))
        return None, looked

    def _run_free(
        self, done: int, ready: int, index: int, alive: int, peak: int
    ) -> tuple[int, int, int, list[int]]:
        """Runs a node and then every node that is free below the peak reached."""
        ran = [index]
        done, ready = self._ran(done, ready, index)
        found = True
        while found:
            found = False
            for other in _bits(ready):
                during, after = self.step(done, other)
                if after <= 0 and alive + during <= peak:
                    ran.append(other)
                    alive += after
                    done, ready = self._ran(done, ready, other)
                    found = True
        return done, ready, alive, ran

    def _ran(self, done: int, ready: int, index: int) -> tuple[int, int]:
        done |= 1 << index
        ready &= ~(1 << index)
        for follower in self.after[index]:
            if not self.before[follower] & ~done:
                ready |= 1 << follower
        return done, ready

    def _path(self, came: dict[int, tuple[int, list[int]]], done: int) -> list[int]:
        path: list[int] = []
        while done:
            done, ran = came[done]
            path.extend(reversed(ran))
        return [self.nodes[index] for index in reversed(path)]


@lru_cache(maxsize=2**14)
def _bits(mask: int) -> Sequence[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
