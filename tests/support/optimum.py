"""The least peak of any order of a small graph without variables, by dynamic programming.

Over all sets of nodes that may have run together; independent of the code that plans.
"""

from __future__ import annotations

import heapq

from tests.support.checker import IN_PLACE, VIEWS
from tfmem.graph.ir import Graph, Value


class Problem:
    """A graph with sets of nodes as bit masks."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = [node for node in graph.nodes if not node.is_input]
        bit = {node.name: 1 << i for i, node in enumerate(self.nodes)}
        self.before = [sum({bit.get(p, 0) for p in n.predecessors}) for n in self.nodes]
        root: dict[Value, Value] = {}
        for node in graph.nodes:
            for value in node.values:
                root[value] = root[node.inputs[0]] if node.op in VIEWS else value
        self.reads = [[root[value] for value in node.inputs] for node in self.nodes]
        self.readers = dict.fromkeys(root.values(), 0)
        for node, reads in zip(self.nodes, self.reads, strict=True):
            for value in reads:
                self.readers[value] |= bit[node.name]
        self.kept = {root[v] for v in graph.outputs} | {v for v in root if v.node not in bit}
        self.maker = {value: bit.get(value.node, 0) for value in self.readers}
        self.size = {value: graph.nbytes(value) for value in self.readers}

    def alive(self, ran: int) -> int:
        """Bytes alive once these nodes have run."""
        return sum(
            size
            for value, size in self.size.items()
            if self.maker[value] & ran == self.maker[value]
            and (value in self.kept or self.readers[value] & ~ran)
        )

    def fresh(self, index: int, ran: int) -> int:
        """Bytes that a node needs anew after these have run."""
        node, reads = self.nodes[index], self.reads[index]
        if node.op in VIEWS:
            return 0
        for i in IN_PLACE.get(node.op, ()):
            is_alone = reads.count(reads[i]) == 1 and self.readers[reads[i]] & ~ran == 1 << index
            if is_alone and reads[i] not in self.kept and self.size[reads[i]] == node.nbytes[0]:
                return 0
        return sum(node.nbytes)


def least_peak(graph: Graph) -> int:
    """Bytes on the device at the least peak, function inputs included."""
    problem = Problem(graph)
    best = {0: problem.alive(0)}
    for _ in problem.nodes:
        longer: dict[int, int] = {}
        for ran, peak in best.items():
            now = problem.alive(ran)
            for index, before in enumerate(problem.before):
                after = ran | 1 << index
                if after != ran and not before & ~ran:
                    reached = max(peak, now + problem.fresh(index, ran))
                    longer[after] = min(longer.get(after, reached), reached)
        best = longer
    return min(best.values())


def least_seconds(graph: Graph, seconds: dict[str, float], budget: int) -> float | None:
    """The least time of a graph in its own order if values may be dropped and computed again.

    A shortest path over (how many nodes have run, which values are there). For graphs whose nodes
    neither share nor take over buffers; None if the budget is out of reach.
    """
    nodes = [node for node in graph.nodes if not node.is_input]
    values = [value for node in nodes for value in node.values]
    bit = {value: 1 << i for i, value in enumerate(values)}
    makes = [sum(bit[value] for value in node.values) for node in nodes]
    reads = [sum({bit.get(value, 0) for value in node.inputs}) for node in nodes]
    kept = sum({bit.get(value, 0) for value in graph.outputs})
    fixed = sum(sum(node.nbytes) for node in graph.nodes if node.is_input)
    size = {1 << i: graph.nbytes(value) for i, value in enumerate(values)}

    def nbytes(there: int) -> int:
        return fixed + sum(n for one, n in size.items() if there & one)

    best: dict[tuple[int, int], float] = {(0, 0): 0.0}
    heap = [(0.0, 0, 0)]
    while heap:
        spent, ran, there = heapq.heappop(heap)
        if best[ran, there] < spent:
            continue
        if ran == len(nodes) and there & kept == kept:
            return spent
        moves = [(spent, ran, there & ~one) for one in size if there & one]
        for index, node in enumerate(nodes[: ran + 1]):
            if reads[index] & ~there or nbytes(there | makes[index]) > budget:
                continue
            moves.append((spent + seconds[node.name], max(ran, index + 1), there | makes[index]))
        for move in moves:
            if move[0] < best.get(move[1:], float("inf")):
                best[move[1:]] = move[0]
                heapq.heappush(heap, move)
    return None
