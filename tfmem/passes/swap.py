"""Send values to the host between two uses."""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph
from tfmem.passes.transfer import Route, add_transfer
from tfmem.plan import Transfer


@dataclass(frozen=True, slots=True)
class Swap:
    """Copies values out when they are made and back in before their late uses.

    Before::

        a ---> b ... p ... t ... y
         \\______________________/

    After (``a`` evicted, fetched for ``y`` after ``t``, ``p`` paced)::

        a ---> b ... p - a/held ... t ... y
         \\          ^               \\    ^
          a/out ----/                v   /
             \\--------------------> a/in0          (both on the host, or both kernels of a GPU)

    Assumes that the nodes stand in the planned order, that each trigger comes before the users it
    brings the value back for, and that `pace` comes after the value is made.
    """

    evictions: tuple[Transfer, ...]
    route: Route

    def __call__(self, graph: Graph) -> Graph:
        editor = Editor(graph)
        for eviction in self.evictions:
            add_transfer(editor, graph, eviction, route=self.route, moved=frozenset())
        return editor.build()
