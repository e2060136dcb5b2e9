"""An order cut into partitions of n ops, the unit in which TensorFlowMem measures distance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tfmem.graph.ir import Graph, Value
from tfmem.plan import Fetch

_UNTIMED = ("Const", "NoOp")


@dataclass(frozen=True)
class Partitions:
    """Partitions of the nodes that compute on one device.

    Inputs, constants and barriers take no place in a partition: they belong to the one that is
    open where they stand.

    Attributes:
      graph: the graph, its nodes in the planned order.
      device: the device whose nodes are cut into partitions.
      size: nodes in a partition.
      away: nodes that a placement moves to the host, which take no place either.
    """

    graph: Graph
    device: str
    size: int
    away: frozenset[str] = frozenset()

    @cached_property
    def chain(self) -> tuple[str, ...]:
        """Names of the nodes that compute on the device, in order."""
        return tuple(
            node.name
            for node in self.graph.nodes
            if node.device == self.device
            and not node.is_input
            and node.op not in _UNTIMED
            and node.name not in self.away
        )

    @cached_property
    def of(self) -> dict[str, int]:
        """The partition that each node of the graph belongs to."""
        timed = set(self.chain)
        partition: dict[str, int] = {}
        count = 0
        for node in self.graph.nodes:
            partition[node.name] = count // self.size
            count += node.name in timed
        return partition

    def first(self, partition: int) -> str:
        """The node that opens a partition; "" if the order ends before it."""
        start = partition * self.size
        return self.chain[start] if start < len(self.chain) else ""

    def last(self, partition: int) -> str:
        """The node that closes a partition; "" for one before the first."""
        return (
            self.chain[min((partition + 1) * self.size, len(self.chain)) - 1]
            if partition >= 0
            else ""
        )

    def device_users(self, value: Value) -> list[str]:
        """Nodes of the device that read a value, in order."""
        return [
            name
            for name in self.graph.consumers.get(value, ())
            if name not in self.away and self.graph.by_name[name].device == self.device
        ]

    def fetches(self, users: Iterable[str], lead: int) -> tuple[Fetch, ...]:
        """Ways back for some users: those in the same or the next partition share one.

        Each starts when the partition `lead` ahead of its first use opens.
        """
        groups: list[list[str]] = []
        for user in users:
            if groups and self.of[user] - self.of[groups[-1][-1]] <= 1:
                groups[-1].append(user)
            else:
                groups.append([user])
        return tuple(
            Fetch(tuple(group), self.last(self.of[group[0]] - lead - 1)) for group in groups
        )
