"""A captured graph as TensorFlow runs the original: with its long sums in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph, Node


def joined(graph: Graph, costs: Costs) -> tuple[Graph, Costs]:
    """The graph with its sums as they were before capturing took them in parts (`sums.split`)."""
    parts = {node.name: _parts(graph.by_name, node) for node in graph.nodes if node.op == "AddV2"}
    parts = {name: group for name, group in parts.items() if group}
    if not parts:
        return graph, costs
    dropped = {node.name for group in parts.values() for node in group}
    nodes, seconds = [], dict(costs.seconds)
    for node in graph.nodes:
        if node.name in dropped:
            continue
        if group := parts.get(node.name):
            values = [v for part in group if part.op == "AddN" for v in part.inputs]
            node = replace(node, op="AddN", inputs=tuple(values))
            names = (node.name, *(part.name for part in group))
            seconds[node.name] = sum(seconds.get(name, 0.0) for name in names)
        nodes.append(node)
    return Graph(tuple(nodes), graph.outputs), replace(costs, seconds=seconds)


def _parts(by_name: Mapping[str, Node], node: Node) -> list[Node]:
    """What `sums.split` made beside a node; nothing if it is no sum in parts."""
    found, number = [], 0
    while (part := by_name.get(f"{node.name}/part{number}")) is not None and part.op == "AddN":
        found += [part, by_name.get(f"{node.name}/sum{number}")]
        number += 1
    made = [part for part in found if part is not None]
    return made if {value.node for value in node.inputs} <= {part.name for part in made} else []
