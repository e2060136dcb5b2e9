"""Realise one transfer between device and host by copy nodes; shared by swap and place.

A copy is an Identity on the host: the runtime's Send and Recv around it move the bytes. The trigger
of a way back is a control input of the host-side Identity, not of the consumer, because a Recv
starts with the step and its buffer is allocated when the Send runs.
"""

from __future__ import annotations

from tfmem.edit import Editor
from tfmem.ir import Graph, Node, Value
from tfmem.plan import Transfer
from tfmem.verify import COPY


def add_transfer(
    editor: Editor, graph: Graph, transfer: Transfer, *, host: str, moved: frozenset[str]
) -> None:
    """Inserts the copies of one transfer.

    Args:
      editor: collects the changes.
      graph: the graph being edited, in the planned order.
      transfer: what crosses.
      host: device of the copies.
      moved: nodes that run on the host.
    """
    value = transfer.value
    source = value
    if value.node not in moved:
        sent = _copy(editor, graph, value, value, "out", host)
        source = editor.insert(sent, behind=value.node)
        for reader in graph.consumers.get(value, ()):
            if reader in moved:
                editor.rewire(reader, value, source)
        if transfer.pace:
            editor.add_after(transfer.pace, [source.node])
    for i, fetch in enumerate(transfer.fetches):
        copy = _copy(editor, graph, value, source, f"in{i}", host, fetch.trigger)
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
    host: str,
    trigger: str = "",
) -> Node:
    made = graph.by_name[value.node]
    return Node(
        name=editor.free_name(f"{value.node}/{value.index}/{what}"),
        op=COPY,
        inputs=(source,),
        after=(trigger,) if trigger else (),
        nbytes=(graph.nbytes(value),),
        device=host,
        origin=made.origin or made.name,
    )
