"""Realise one transfer between device and host by copy nodes; shared by swap and place.

There are two forms. *On the host*, a copy is an Identity there, and the runtime's Send and Recv
around it move the bytes: the trigger of a way back is a control input of that Identity, not of the
consumer, because a Recv starts with the step and its buffer is allocated when the Send runs. *On
the device*, which must be a GPU, both copies are kernels of the GPU that read from and write to its
host's pinned memory. A GPU runs behind the nodes that are queued for it, and a copy to it waits for
those that are queued when the copy begins: a trigger on the host would fire when the GPU has got
there, with all that was queued meanwhile before it, one on the device fires as it is queued itself.

Copies take their time, but buffers come and go at fixed places of the order, so that they lie where
they were foreseen to, and an allocator pads them as it was foreseen to. What goes to the host is
held by a node behind the one that waits for it, however early the copy is over; what comes back by
a GPU's kernel has its buffer as the kernel is queued (`passes.linearise`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.edit import Editor
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.verify import COPY, FROM_HOST, HOLD, TO_HOST
from tfmem.plan import Transfer


@dataclass(frozen=True, slots=True)
class Route:
    """How values cross.

    Attributes:
      host: device of the host.
      gpu: the device, if its own kernels copy; "" for Identity nodes on the host.
    """

    host: str
    gpu: str = ""

    @property
    def device(self) -> str:
        """Where the copy nodes run."""
        return self.gpu or self.host

    def op(self, to_host: bool) -> str:
        """Op of a copy."""
        return (TO_HOST if to_host else FROM_HOST) if self.gpu else COPY


def add_transfer(
    editor: Editor, graph: Graph, transfer: Transfer, *, route: Route, moved: frozenset[str]
) -> None:
    """Inserts the copies of one transfer.

    Args:
      editor: collects the changes.
      graph: the graph being edited, in the planned order.
      transfer: what crosses.
      route: how it crosses.
      moved: nodes that run on the host.
    """
    value = transfer.value
    source = value
    if value.node not in moved:
        sent = _copy(editor, graph, value, value, "out", route)
        source = editor.insert(sent, behind=value.node)
        for reader in graph.consumers.get(value, ()):
            if reader in moved:
                editor.rewire(reader, value, source)
        if transfer.pace:
            editor.add_after(transfer.pace, [source.node])
            held = _held(editor, graph, value, transfer.pace)
            editor.insert(held, behind=transfer.pace, first=True)
    for i, fetch in enumerate(transfer.fetches):
        copy = _copy(editor, graph, value, source, f"in{i}", route, fetch.trigger)
        behind = source.node
        if fetch.trigger and graph.position[fetch.trigger] > graph.position[value.node]:
            behind = fetch.trigger
        arrived = editor.insert(copy, behind=behind)
        for user in fetch.users:
            editor.rewire(user, value, arrived)


def _copy(
    editor: Editor,
    graph: Graph,
    value: Value,
    source: Value,
    what: str,
    route: Route,
    trigger: str = "",
) -> Node:
    op = route.op(to_host=what == "out")
    return _reader(editor, graph, value, source, what, op, route.device, trigger)


def _held(editor: Editor, graph: Graph, value: Value, pace: str) -> Node:
    device = graph.by_name[value.node].device
    return _reader(editor, graph, value, value, "held", HOLD, device, pace)


def _reader(
    editor: Editor,
    graph: Graph,
    value: Value,
    source: Value,
    what: str,
    op: str,
    device: str,
    after: str,
) -> Node:
    made = graph.by_name[value.node]
    return Node(
        name=editor.free_name(f"{value.node}/{value.index}/{what}"),
        op=op,
        inputs=(source,),
        after=(after,) if after else (),
        nbytes=(graph.nbytes(value),),
        device=device,
        origin=made.origin or made.name,
    )
