"""Turn the order of the nodes into control edges, which is what TensorFlow obeys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph, Node
from tfmem.graph.verify import BARRIER, COPIES, FROM_HOST, HOLD, TO_HOST, mergeable_pairs


@dataclass(frozen=True, slots=True)
class Linearise:
    """Limits parallelism on one device to a window of neighbouring nodes.

    Before (a, b, c, d in this order, none waits for another)::

        a   b   c   d

    After, with a window of 1::

        a -> b -> c -> d

    After, with a window of 2 (groups of one node, the next but one waits)::

        a -> * -> c
          b -> * -> d

    A window of w cuts the order into groups of w / 2 nodes; a group starts when all groups but its
    predecessor have ended, so that at most w neighbouring nodes are in flight. Constants and
    barriers hold no memory that an order could save and are left free, but those that wait for a
    copy or let one begin: what comes after them counts on it. Nodes of other devices and copies
    wait for their inputs, and for what a transfer makes them wait for, alone.

    With a window of 1 a copy from the host, by a kernel of the device, is queued between its
    trigger and what comes next, a barrier being put between these; it begins behind what is held
    until there::

        a -> a/held -> barrier -> b
                   \\-> copy

    Assumes that the nodes stand in the planned order. Where oneDNN would merge two nodes because
    their control inputs became equal, one is made to wait for the other.
    """

    device: str
    window: int = 1

    def __call__(self, graph: Graph) -> Graph:
        editor = Editor(graph)
        chain = [node for node in graph.nodes if self._is_ordered(node, graph)]
        if self.window <= 1:
            self._chain(editor, graph, chain)
        else:
            self._fence(editor, graph, chain)
        for first, second in mergeable_pairs(graph):
            if set(editor.node(first.name).after) == set(editor.node(second.name).after):
                editor.add_after(second.name, [first.name])
        return editor.build()

    def _is_ordered(self, node: Node, graph: Graph) -> bool:
        if node.is_input or node.device != self.device:
            return False
        if node.op in (BARRIER, "Const"):
            beside = (graph.by_name[name] for name in (*node.after, *graph.successors[node.name]))
            return any(one.origin and one.op in COPIES for one in beside)
        return node.op not in (TO_HOST, FROM_HOST)

    def _chain(self, editor: Editor, graph: Graph, chain: Sequence[Node]) -> None:
        copies = defaultdict[str, list[Node]](list)
        place = {node.name: number for number, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            for trigger in node.after if node.op == FROM_HOST else ():
                copies[trigger].append(node)
        last, begun = "", list[Node]()
        for node in chain:
            if begun and node.op != HOLD:
                for copy in begun:
                    if place[copy.name] < place[last]:  # behind the trigger, and not what is held
                        editor.move(copy.name, behind=last)
                last, begun = self._begin(editor, begun, last), []
            if last and last not in node.predecessors:
                editor.add_after(node.name, [last])
            last = node.name
            begun += copies[last]

    def _begin(self, editor: Editor, copies: Sequence[Node], last: str) -> str:
        """Has copies queued behind a node of the chain; the barrier that what comes next waits for.

        A node that reads what the last one makes would else be queued before them.
        """
        for copy in copies:
            editor.add_after(copy.name, [last])
        origin = copies[0].origin
        barrier = Node(editor.free_name(f"{copies[0].name}/queued"), BARRIER, after=(last,),
                       device=self.device, origin=origin)  # fmt: skip
        editor.insert(barrier, behind=last)
        return barrier.name

    def _fence(self, editor: Editor, graph: Graph, chain: Sequence[Node]) -> None:
        barriers: list[str] = []
        for i, group in enumerate(_groups(chain, max(1, self.window // 2))):
            names = {node.name for node in group}
            if i >= 2:
                for node in group:
                    if names.isdisjoint(node.predecessors):
                        editor.add_after(node.name, [barriers[i - 2]])
            last = [n.name for n in group if names.isdisjoint(graph.successors[n.name])]
            barrier = Node(
                editor.free_name(f"tfmem/barrier{i}"),
                BARRIER,
                after=(*last, *barriers[-1:]),
                device=self.device,
                origin=group[-1].origin or group[-1].name,
            )
            editor.insert(barrier, behind=group[-1].name)
            barriers.append(barrier.name)


def _groups(chain: Sequence[Node], size: int) -> Iterator[Sequence[Node]]:
    for start in range(0, len(chain), size):
        yield chain[start : start + size]
