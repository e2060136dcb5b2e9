"""Let variables live on the host."""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph
from tfmem.passes.transfer import Route, add_transfer
from tfmem.plan import Placement, moved_with


@dataclass(frozen=True, slots=True)
class Place:
    """Moves variables with their reads and updates to the host, and copies what crosses.

    Before::

        w -> read ---> y1 ... t ... y2      g -> update(w)
                \\__________________/

    After::

        w -> read ---> in0 ---> y1 ... t ... y2       g ---> g/out -> update(w)
               |                       v      ^
                \\---------------------> in1 --/       (w, read, update: the host)

    The copies in0, in1 and g/out run where the route says. Assumes that the variable itself lives
    on the host by the time the graph runs, and that no node of the device reads a moved node's
    value except through a fetch.
    """

    placements: tuple[Placement, ...]
    route: Route

    def __call__(self, graph: Graph) -> Graph:
        editor = Editor(graph)
        moved = moved_with(self.placements)
        for placement in self.placements:
            for name in (placement.variable, *placement.moved):
                editor.set_device(name, self.route.host)
        for placement in self.placements:
            for transfer in placement.transfers:
                add_transfer(editor, graph, transfer, route=self.route, moved=moved)
        return editor.build()
