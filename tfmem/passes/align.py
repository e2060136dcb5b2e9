"""Keep an order on one device from holding up a collective that spans several."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tfmem.errors import UnsupportedFunctionError
from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph, Node
from tfmem.graph.ops import facts_of
from tfmem.graph.topology import least_first


@dataclass(frozen=True, slots=True)
class Align:
    """Makes the parts of a collective wait for, and be awaited by, the same nodes.

    A part ends only when those on the other devices have begun, which no edge of the graph says.
    An order on one device that puts a part behind what needs another part would wait for ever.

    Before::

        a -> reduce0 -> b          (device 0)
        c -> reduce1 -> d          (device 1)

    After, by control edges::

        a, c -> reduce0 -> b, d
        a, c -> reduce1 -> b, d

    Assumes that every device runs its collectives in the same sequence, as replicas do. Edges that
    a later pass adds are not aligned: the pass runs again before another device is ordered.
    """

    def __call__(self, graph: Graph) -> Graph:
        groups = _groups(graph)
        if not groups:
            return graph
        editor = Editor(graph)
        for parts in groups:
            names = {part.name for part in parts}
            before = {name: None for part in parts for name in part.predecessors}
            earlier = [name for name in before if _takes_part(graph.by_name[name])]
            after = {name: None for part in parts for name in graph.successors[part.name]}
            for part in parts:
                editor.add_after(part.name, (n for n in earlier if n not in part.predecessors))
            for name in after:
                editor.add_after(name, sorted(names - set(graph.by_name[name].predecessors)))
        editor.reorder(_in_order(graph, editor))
        return editor.build()


def _in_order(graph: Graph, editor: Editor) -> list[str]:
    """The nodes in their order, but for those that wait for a part of a collective now."""
    before = [
        {graph.position[name] for name in editor.node(node.name).predecessors}
        for node in graph.nodes
    ]
    after: list[list[int]] = [[] for _ in before]
    for node, others in enumerate(before):
        for other in others:
            after[other].append(node)
    order = least_first(before, after, range(len(before)))
    if len(order) < len(before):
        raise UnsupportedFunctionError(
            "its devices do not run their collective operations in one sequence, so that an "
            "order of one could hold up the others; optimise the step of each device by itself"
        )
    return [graph.nodes[node].name for node in order]


def _groups(graph: Graph) -> list[tuple[Node, ...]]:
    """The parts of each collective: those that come at the same place on their devices."""
    sequences: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if facts_of(node.op).is_collective:
            sequences[node.device].append(node)
    if len({len(sequence) for sequence in sequences.values()}) > 1:
        counts = ", ".join(f"{len(found)} on {name}" for name, found in sequences.items())
        raise UnsupportedFunctionError(
            f"its devices run different numbers of collective operations ({counts}), so that "
            "tfmem cannot tell which belong together; optimise the step of each device by itself"
        )
    return list(zip(*sequences.values(), strict=True)) if len(sequences) > 1 else []


def _takes_part(node: Node) -> bool:
    """Whether an order may put something before a node."""
    return not node.is_input and node.op != "Const"
