"""Which values leave the device between two uses, by distance."""

from __future__ import annotations

from tfmem.graph.ir import Graph, Value
from tfmem.plan import Transfer
from tfmem.planning.published.partitions import Partitions
from tfmem.simulation.liveness import owner


def distant_evictions(
    partitions: Partitions, *, distance: int, lead: int, pace: int, min_bytes: int
) -> tuple[Transfer, ...]:
    """Evicts each value whose next use is more than `distance` partitions away.

    It leaves once, in its producer's partition; the node that opens the partition `pace` later
    waits until it has landed. Values that share the buffer of a function input, a constant or a
    variable stay, for nothing would be freed; so do outputs with which a kernel passes something to
    its gradient.

    Args:
      partitions: the planned order.
      distance: most partitions between two uses through which a value stays.
      lead: partitions ahead of its use at which a value starts its way back.
      pace: partitions after which a copy must have landed.
      min_bytes: smaller values stay.

    Source: J. Wei, TensorFlowMem (Carnegie Mellon University, 2019).
    """
    graph = partitions.graph
    transfers = []
    for node in graph.nodes:
        if node.device != partitions.device or node.name in partitions.away:
            continue
        for value in node.values:
            if graph.nbytes(value) < min_bytes or _is_pinned(graph, value):
                continue
            far = _far_users(partitions, value, distance)
            if far:
                waits = partitions.first(partitions.of[node.name] + pace)
                transfers.append(Transfer(value, partitions.fetches(far, lead), waits))
    return tuple(transfers)


def _far_users(partitions: Partitions, value: Value, distance: int) -> list[str]:
    users = partitions.device_users(value)
    present = partitions.of[value.node]
    for i, user in enumerate(users):
        if partitions.of[user] - present > distance:
            return users[i:]
        present = partitions.of[user]
    return []


def _is_pinned(graph: Graph, value: Value) -> bool:
    root, node = graph.by_name[owner(graph, value).node], graph.by_name[value.node]
    return root.is_input or root.op == "Const" or bool(node.passed and not value.index)
