"""A graph with a plan's clones in it: how recomputations are both judged and carried out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from tfmem.errors import Error
from tfmem.graph.ir import Graph, Node, Value


class Cloning(Protocol):
    """What is cloned: a plan's `Recomputation`."""

    @property
    def node(self) -> str:
        """The node that is computed again."""

    @property
    def users(self) -> tuple[str, ...]:
        """Nodes, clones among them, that read the clone instead."""

    @property
    def clone(self) -> str:
        """Name of the clone."""


def with_clones(graph: Graph, recomputations: Iterable[Cloning]) -> Graph:
    """Adds each recomputation's clone right behind its node and lets its users read it.

    That place is behind all that the clone reads and before all who read it, whatever the plan's
    order will be.

    Raises:
      Error: a recomputation names a node that does not exist, or a user that does not read it.
    """
    clones: dict[str, list[Node]] = {}
    reads: dict[str, dict[str, str]] = {}  # user -> node -> the clone of it that it reads
    for one in recomputations:
        node = graph.by_name.get(one.node)
        if node is None:
            raise Error(f"recomputation: the graph has no node {one.node}; plan for this graph")
        clone = replace(node, name=one.clone, origin=node.origin or node.name)
        clones.setdefault(one.node, []).append(clone)
        for user in one.users:
            if reads.setdefault(user, {}).setdefault(one.node, one.clone) != one.clone:
                raise Error(f"recomputation of {one.node}: {user} has another clone of it")
    if not clones:
        return graph
    nodes = []
    for node in graph.nodes:
        for made in (node, *clones.get(node.name, ())):
            nodes.append(_rewired(made, reads.pop(made.name, {})))
    if reads:
        raise Error(f"recomputation: the graph has no node {min(reads)} to read a clone")
    return Graph(tuple(nodes), graph.outputs)


def _rewired(node: Node, clones: dict[str, str]) -> Node:
    if not clones:
        return node
    if missing := sorted(clones.keys() - {value.node for value in node.inputs}):
        raise Error(f"recomputation of {missing[0]}: {node.name} does not read it")
    inputs = tuple(Value(clones.get(value.node, value.node), value.index) for value in node.inputs)
    return replace(node, inputs=inputs)
