"""Placements by distance: when what crosses between device and host does so."""

from __future__ import annotations

from collections.abc import Iterable

from tfmem.plan import Placement, Transfer
from tfmem.planning.published.partitions import Partitions


def placements(
    partitions: Partitions,
    variables: Iterable[str],
    beside: dict[str, str],
    *,
    lead: int,
    pace: int,
    min_bytes: int,
) -> tuple[Placement, ...]:
    """Placements of variables, with every value that crosses between device and host.

    Args:
      partitions: the planned order, the nodes of `beside` away.
      variables: what lives on the host.
      beside: what runs there, from `moved_nodes`.
      lead: partitions ahead of its use at which a copy to the device starts.
      pace: partitions after which a copy to the host must have landed.
      min_bytes: smaller values need not have landed for the device to go on.
    """
    graph = partitions.graph
    moved: dict[str, list[str]] = {name: [] for name in variables}
    transfers: dict[str, list[Transfer]] = {name: [] for name in moved}
    for node in graph.nodes:
        if node.name in beside:
            moved[beside[node.name]].append(node.name)
        for value in node.values:
            users = partitions.device_users(value)
            readers = [name for name in graph.consumers.get(value, ()) if name in beside]
            if node.name in beside and users:
                fetched = Transfer(value, partitions.fetches(users, lead))
                transfers[beside[node.name]].append(fetched)
            elif node.name not in beside and readers and not node.is_input:
                waits = partitions.first(partitions.of[node.name] + pace)
                is_large = graph.nbytes(value) >= min_bytes
                sent = Transfer(value, pace=waits if is_large else "")
                transfers[beside[readers[0]]].append(sent)
    return tuple(Placement(name, tuple(moved[name]), tuple(transfers[name])) for name in moved)
