"""Take out what nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph
from tfmem.graph.ops import facts_of


@dataclass(frozen=True, slots=True)
class Prune:
    """Removes pure nodes that neither an output nor a stateful node needs.

    Before::

        x -> f -> return        x -> g -> h

    After::

        x -> f -> return

    Assumes nothing.
    """

    def __call__(self, graph: Graph) -> Graph:
        needed = {value.node for value in graph.outputs}
        for node in reversed(graph.nodes):
            if node.name in needed or facts_of(node.op).is_stateful:
                needed.add(node.name)
                needed.update(node.predecessors)
        editor = Editor(graph)
        editor.remove(node.name for node in graph.nodes if node.name not in needed)
        return editor.build()
