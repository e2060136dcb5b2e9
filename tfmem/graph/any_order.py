"""How many bytes a graph may have in use at once, whichever of its ready nodes run first.

TensorFlow's executor runs what is ready on as many threads as it has, and some parts may run far
ahead of others. What has run at a moment are nodes with all that they wait for; a buffer is in use
then if the node that makes it has run, and some of its readers have not. The nodes with the most
bytes in use are a closure of the greatest weight, which a minimum cut finds:

    x -+-> a -> c -+-> d       a makes 4 bytes, b 8, c and d 1      a and c have run:  1 in use
       +-> b ------+                                                a, b and c:        9
                                                                    a and b:          12

A buffer with several readers ends here with a node that waits for all of them, which may be later
than the last of them, and a node that runs is counted beside what has: what is found is a bound.

Source: J.-C. Picard, "Maximal closure of a graph and applications to combinatorial problems", 1976.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfmem.graph.compact import ASSIGN, KEPT, PLAIN, READ, UPDATE, VIEW
from tfmem.graph.cut import Network
from tfmem.graph.ir import Graph
from tfmem.graph.topology import first_ready_first

_BLOCK = 8192
"""Nodes whose places are looked at together: a bit of each for every node of the graph."""


def most_in_use(
    graph: Graph, workspace: Mapping[str, int], *, granularity: int, lanes: int, device: str = ""
) -> int:
    """Bytes in use at once at most, constants included, inputs not.

    Args:
      graph: whose nodes run.
      workspace: bytes that each node's kernel holds while it runs, by name; absent means none.
      granularity: every buffer takes a multiple of this many bytes.
      lanes: how many nodes run at once at most.
      device: full name of the device whose memory counts; "" for all.
    """
    return _AnyOrder(graph, granularity, device).most(workspace, lanes)


@dataclass(slots=True)
class _Buffer:
    """Memory that is in use from when a node has run until all its readers have."""

    node: int
    nbytes: int
    readers: set[int]
    stays: bool = False


_CALLER = -1
"""Stands among the readers of a buffer for who called the function."""


class _AnyOrder:
    """A graph's nodes, and what is in use when some of them have run."""

    def __init__(self, graph: Graph, granularity: int, device: str) -> None:
        self.form = graph.form
        self.sizes = [-(-nbytes // granularity) * granularity for nbytes in self.form.nbytes]
        self.here = [not device or node.device in ("", device) for node in graph.nodes]
        self.order = first_ready_first(self.form.predecessors, self.form.successors)
        self.rank = {node: rank for rank, node in enumerate(self.order)}
        self.roots = [self.form.root(value) for value in range(len(self.sizes))]
        self.handles = set(map(self.form.handle, range(len(self.form.variable_nodes))))
        self.readers: dict[int, set[int]] = {}
        for node, reads in enumerate(self.form.reads):
            for value in reads:
                self.readers.setdefault(self.roots[value], set()).add(node)

    def most(self, workspace: Mapping[str, int], lanes: int) -> int:
        """Bytes that nodes which have run leave, and that those which run ask for, at most."""
        form, weights = self.form, self._weights()
        nodes = [n for n, is_input in enumerate(form.is_input) if self.here[n] and not is_input]
        constants = sum(self._own(node) for node in nodes if form.kind[node] == KEPT)
        running = (self._asked(node) + workspace.get(form.priced[node], 0) for node in nodes)
        ran = _heaviest(weights, form.predecessors)
        return constants + sum(weights[n] for n in ran) + sum(heapq.nlargest(lanes, running))

    def _own(self, node: int) -> int:
        return sum(self.sizes[self.form.first[node] : self.form.first[node + 1]])

    def _is_maker(self, node: int) -> bool:
        return self.form.kind[node] == PLAIN or self.form.is_copy(node)

    def _asked(self, node: int) -> int:
        """Bytes that a node asks for as it runs: of outputs, or to renew variables."""
        if self.form.kind[node] in (UPDATE, ASSIGN):
            return sum(self.sizes[self.form.handle(one)] for one in self.form.variables[node])
        return self._own(node) if self._is_maker(node) else 0

    def _weights(self) -> list[int]:
        """By how many bytes what is in use grows when each node has run."""
        weights = [0] * len(self.order)
        buffers = [*self._made(), *self._replaced()]
        for buffer in buffers:
            weights[buffer.node] += buffer.nbytes
        ending = [buffer for buffer in buffers if not buffer.stays]
        for buffer, last in zip(ending, self._after_all(ending), strict=True):
            if last is not None:
                weights[last] -= buffer.nbytes
        return weights

    def _made(self) -> Iterator[_Buffer]:
        """What nodes make, but for constants."""
        form = self.form
        adopted = (
            form.source[node]
            for node, kind in enumerate(form.kind)
            if kind == ASSIGN and not self.sizes[form.handle(form.variables[node][0])]
        )  # by variables of a caller, which do not count here
        stays = {self.roots[value] for value in (*form.returned, *adopted)}
        for node, is_input in enumerate(form.is_input):
            if self._is_maker(node) and self.here[node] and not is_input:
                for value in range(form.first[node], form.first[node + 1]):
                    if self.sizes[value]:
                        readers = self.readers.get(value) or {node}
                        yield _Buffer(node, self.sizes[value], readers, value in stays)

    def _replaced(self) -> list[_Buffer]:
        """The buffers of variables that are renewed, as what was read of them before is in use."""
        form, found, uses = self.form, [], self._uses()
        for node, kind in enumerate(form.kind):
            if kind in (UPDATE, ASSIGN) and self.here[node]:
                for handle in map(form.handle, form.variables[node]):
                    found.append((node, handle, set(uses.get(handle, ()))))
        for begin, followers in self._followers():
            for node, _, before in found:
                later = followers[node]
                before -= {
                    (read, reader)
                    for read, reader in before
                    if begin <= self.rank[read] and later >> self.rank[read] - begin & 1
                }
        buffers = []
        for node, handle, before in found:
            readers = {reader for _, reader in before}
            stays = _CALLER in readers
            buffers.append(_Buffer(node, self.sizes[handle], {node, *(readers - {_CALLER})}, stays))
        return buffers

    def _uses(self) -> dict[int, set[tuple[int, int]]]:
        """By handle of a variable, (node that reads it, node that uses what that has read).

        They are one node where that reads the variable itself; the second is `_CALLER` where what
        was read is returned (handles are not among what is).
        """
        found: dict[int, set[tuple[int, int]]] = {}
        read = [(node, value) for node, values in enumerate(self.form.reads) for value in values]
        for reader, value in (*read, *((_CALLER, value) for value in self.form.returned)):
            handle = self.roots[value]
            if handle in self.handles:
                found.setdefault(handle, set()).add((self._read(value, reader), reader))
        return found

    def _read(self, value: int, reader: int) -> int:
        """The node that reads what a value shows of a variable; `reader` if the value is that."""
        form, node = self.form, self.form.producer[value]
        while form.kind[node] == VIEW:
            node = form.producer[form.source[node]]
        return node if form.kind[node] == READ else reader

    def _after_all(self, buffers: Sequence[_Buffer]) -> list[int | None]:
        """For each buffer a node that runs only after all its readers; None if there is none."""
        found: list[int | None] = [None] * len(buffers)
        for begin, followers in self._followers():
            for number, buffer in enumerate(buffers):
                if found[number] is None:
                    common = -1
                    for reader in buffer.readers:
                        common &= followers[reader]
                    if common:
                        first = (common & -common).bit_length() - 1
                        found[number] = self.order[begin + first]
        return found

    def _followers(self) -> Iterator[tuple[int, list[int]]]:
        """The nodes that wait for each node, and itself: bits by rank, from some rank on."""
        for begin in range(0, len(self.order), _BLOCK):
            followers = [0] * len(self.order)
            for node in reversed(self.order[: begin + _BLOCK]):
                bits = 1 << self.rank[node] - begin if self.rank[node] >= begin else 0
                for other in self.form.successors[node]:
                    bits |= followers[other]
                followers[node] = bits
            yield begin, followers


def _heaviest(weights: Sequence[int], before: Sequence[Sequence[int]]) -> set[int]:
    """The nodes of the greatest weight that hold all that each of them waits for."""
    network = Network()
    for node, weight in enumerate(weights):
        if weight > 0:
            network.add("ran", node, weight)
        elif weight < 0:
            network.add(node, "not yet", -weight)
        for other in before[node]:
            network.add(node, other)
    return set(range(len(weights))) - network.target_side("ran", "not yet")
