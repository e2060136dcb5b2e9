"""Put the nodes into the planned order."""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph


@dataclass(frozen=True, slots=True)
class Reorder:
    """Sets the graph's execution order; the passes after it insert their nodes into this order.

    Before::

        a, b, c, d

    After ``Reorder(("a", "c", "b", "d"))``::

        a, c, b, d

    Assumes that the order is topological and names every node once.
    """

    order: tuple[str, ...]

    def __call__(self, graph: Graph) -> Graph:
        editor = Editor(graph)
        editor.reorder(self.order)
        return editor.build()
