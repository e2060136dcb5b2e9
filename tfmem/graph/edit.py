"""Edit a graph: collect changes, then build the new graph at once, verified.

An `Editor` keeps Graph.nodes an execution order: a new node is put right after the node that starts
it, nodes put at the same place stand in the order of insertion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count

from tfmem.errors import RewriteError
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.verify import verify


class Editor:
    """Changes to one graph, collected and applied by `build`.

    Raises:
      RewriteError: from any method, if it names a node that does not exist.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = dict(graph.by_name)
        self._order = [node.name for node in graph.nodes]
        self._behind: dict[str, list[str]] = {}
        self._outputs = graph.outputs

    def insert(self, node: Node, behind: str, *, first: bool = False) -> Value:
        """Puts a new node right behind an existing or new one; returns its first output.

        Args:
          node: the new one.
          behind: the name of the other.
          first: before those that were put there already, not behind them.
        """
        self.node(behind)
        if node.name in self._nodes:
            raise RewriteError(f"cannot insert {node.name!r}: the name is taken")
        self._nodes[node.name] = node
        others = self._behind.setdefault(behind, [])
        others.insert(0 if first else len(others), node.name)
        return Value(node.name)

    def free_name(self, name: str) -> str:
        """The name itself, or if a node has it already, with a number that makes it unique."""
        numbered = (f"{name}_{number}" for number in count(1))
        return next(made for made in chain([name], numbered) if made not in self._nodes)

    def move(self, name: str, behind: str) -> None:
        """Puts a node of the graph right behind another, and what was put behind it along."""
        self.node(behind)
        self._order.remove(self.node(name).name)
        self._behind.setdefault(behind, []).append(name)

    def rewire(self, user: str, old: Value, new: Value) -> None:
        """Makes a node read `new` wherever it reads `old`."""
        node = self.node(user)
        if old not in node.inputs:
            raise RewriteError(f"{user!r} does not read {old}")
        inputs = tuple(new if value == old else value for value in node.inputs)
        self._nodes[user] = replace(node, inputs=inputs)

    def add_after(self, name: str, earlier: Iterable[str]) -> None:
        """Adds control inputs to a node; those it has already stay as they are."""
        node = self.node(name)
        after = tuple(dict.fromkeys((*node.after, *map(str, earlier))))
        self._nodes[name] = replace(node, after=after)

    def set_device(self, name: str, device: str) -> None:
        """Moves a node to another device."""
        self._nodes[name] = replace(self.node(name), device=device)

    def remove(self, names: Iterable[str]) -> None:
        """Takes nodes out, and the control inputs that name them."""
        gone = {self.node(name).name for name in names}
        self._order = [name for name in self._order if name not in gone]
        for name in gone:
            del self._nodes[name]
        for node in list(self._nodes.values()):
            if not gone.isdisjoint(node.after):
                after = tuple(name for name in node.after if name not in gone)
                self._nodes[node.name] = replace(node, after=after)

    def reorder(self, order: Iterable[str]) -> None:
        """Sets the execution order: every node of the graph, each once."""
        self._order = list(order)
        if len(self._order) != len(self._graph) or set(self._order) != set(self._graph.by_name):
            raise RewriteError("a new order must name every node of the graph once")

    def build(self) -> Graph:
        """The edited graph.

        Raises:
          RewriteError: it is not well formed (see `verify`).
        """
        order: list[str] = []
        for name in self._order:
            stack = [name]
            while stack:
                name = stack.pop()
                order.append(name)
                stack.extend(reversed(self._behind.get(name, ())))
        graph = Graph(tuple(self._nodes[name] for name in order), self._outputs)
        verify(graph)
        return graph

    def node(self, name: str) -> Node:
        """A node as edited so far."""
        node = self._nodes.get(name)
        if node is None:
            raise RewriteError(f"there is no node {name!r} in the graph")
        return node
