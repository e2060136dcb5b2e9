"""The least peak of any order of a small graph without variables, by dynamic programming.

Over all sets of nodes that may have run together; independent of the code that plans.
"""

from __future__ import annotations

from tests.checker import IN_PLACE, VIEWS
from tfmem.ir import Graph, Node, Value


def least_peak(graph: Graph) -> int:  # noqa: C901 - three small functions share the tables
    """Bytes on the device at the least peak, function inputs included."""
    root: dict[Value, Value] = {}
    for node in graph.nodes:
        for value in node.values:
            root[value] = root[node.inputs[0]] if node.op in VIEWS else value
    kept = {root[value] for value in graph.outputs}
    kept |= {Value(node.name) for node in graph.nodes if node.is_input}
    readers: dict[Value, set[str]] = {value: set() for value in root.values()}
    for node in graph.nodes:
        for value in node.inputs:
            readers[root[value]].add(node.name)
    nodes = [node for node in graph.nodes if not node.is_input]
    done = frozenset(node.name for node in graph.nodes if node.is_input)

    def needed(value: Value, ran: frozenset[str]) -> bool:
        return value in kept or not readers[value] <= ran

    def alive(ran: frozenset[str]) -> int:
        made = (v for v in readers if v.node in ran and needed(v, ran))
        return sum(graph.nbytes(value) for value in made)

    def during(node: Node, ran: frozenset[str]) -> int:
        fresh = 0 if node.op in VIEWS else sum(node.nbytes)
        read = [root[value] for value in node.inputs]
        for i in IN_PLACE.get(node.op, ()):
            alone = read.count(read[i]) == 1 and readers[read[i]] - ran == {node.name}
            if alone and read[i] not in kept and graph.nbytes(read[i]) == fresh:
                return 0
        return fresh

    best = {done: alive(done)}
    for _ in nodes:
        longer: dict[frozenset[str], int] = {}
        for ran, peak in best.items():
            now = alive(ran)
            for node in nodes:
                if node.name not in ran and ran.issuperset(node.predecessors):
                    after = ran | {node.name}
                    reached = max(peak, now + during(node, ran))
                    longer[after] = min(longer.get(after, reached), reached)
        best = longer
    return min(best.values())
