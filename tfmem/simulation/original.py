"""A captured graph as TensorFlow runs the original.

Long sums are in one piece, constants folded, sums assigned that capturing adds in place; assigned
variables adopt a buffer instead of being written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.bodies import BRANCHES, LOOPS
from tfmem.graph.ir import Graph, Node
from tfmem.graph.ops import facts_of

MOST_FOLDED = 10 * 2**20
"""Bytes of TensorFlow's own: the largest result that it keeps of a node that it has folded."""

_ASSIGN = "AssignVariableOp"
_ADDED, _SUMS = "/added", {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
"""What ends the names of assignments that capturing made additions, and what these were of."""


def as_original(graph: Graph, costs: Costs) -> tuple[Graph, Costs]:
    """The graph as it is if nothing is rewritten."""
    graph, costs = joined(assigned(folded(graph)), costs)
    adopting = {node.name: 0.0 for node in graph.nodes if node.op == _ASSIGN}
    return graph, replace(costs, seconds={**costs.seconds, **adopting})


def folded(graph: Graph) -> Graph:
    """The graph with what the function runtime folds as constants, which stay on the device.

    A node is folded if it is stateless and all that it reads are constants. Of those only what
    others read stays. A rewritten function is kept from it (`rebuild`).
    """
    foldable: set[str] = set()
    for node in graph.nodes:
        if _is_pure(node) and all(value.node in foldable for value in node.inputs):
            foldable.add(node.name)
    large = {name for name in foldable if max(graph.by_name[name].nbytes) > MOST_FOLDED}
    foldable -= large
    staying = [node for node in graph.nodes if node.name not in foldable]
    needed = {value.node for node in staying for value in node.inputs}
    needed |= {value.node for node in staying for _, value in (*node.holds, *node.same)}
    needed |= {value.node for value in graph.outputs}
    needed |= {name for node in graph.nodes for name in node.after}
    nodes = tuple(
        _constant(node) if node.inputs and node.name in foldable else node
        for node in graph.nodes
        if node.name in needed or node.name not in foldable
    )
    return Graph(nodes, graph.outputs)


def _constant(node: Node) -> Node:
    return replace(node, op="Const", inputs=(), on_host=(), from_host=())


def _is_pure(node: Node) -> bool:
    """Whether a node gives the same tensors in each run, and runs no functions for it."""
    refers = node.stashes or node.holds or node.same
    if node.is_input or not node.nbytes or refers or node.op in (*BRANCHES, *LOOPS):
        return False
    return not facts_of(node.op).is_stateful


def assigned(graph: Graph) -> Graph:
    """The graph with the assignments that capturing made additions (`additions.make`)."""
    sums = {node.name: node for node in graph.nodes if _is_addition(node)}
    if not sums:
        return graph
    nodes: list[Node] = []
    ends = {name.removesuffix(_ADDED) for name in sums}
    for node in graph.nodes:
        if node.name in sums:
            nodes += _assigned(graph, node)
        elif node.name not in ends:
            nodes.append(node)
    return Graph(tuple(nodes), graph.outputs)


def _is_addition(node: Node) -> bool:
    return node.name.endswith(_ADDED) and node.op in _SUMS


def _assigned(graph: Graph, node: Node) -> tuple[Node, Node]:
    """The sum and the assignment that an addition was."""
    variable, added = node.inputs
    total = replace(node, op=_SUMS[node.op], inputs=(added,), nbytes=(graph.nbytes(variable),))
    name, inputs = node.name.removesuffix(_ADDED), (variable, *total.values)
    return total, Node(name, _ASSIGN, inputs, device=node.device)


def joined(graph: Graph, costs: Costs) -> tuple[Graph, Costs]:
    """The graph with its sums as they were before capturing took them in parts (`sums.split`)."""
    parts = {node.name: _parts(graph.by_name, node) for node in graph.nodes if node.op == "AddV2"}
    parts = {name: group for name, group in parts.items() if group}
    if parts:  # those that an order names stay as they are: it is another device's plan
        awaited = {name for node in graph.nodes for name in node.after}
        parts = {n: g for n, g in parts.items() if awaited.isdisjoint(part.name for part in g)}
    if not parts:
        return graph, costs
    dropped = {node.name for group in parts.values() for node in group}
    nodes, seconds = [], dict(costs.seconds)
    for node in graph.nodes:
        if node.name in dropped:
            continue
        if group := parts.get(node.name):
            pieces = [part for part in group if part.op == "AddN"]
            values = tuple(value for part in pieces for value in part.inputs)
            node = replace(node, op="AddN", inputs=values)
            names = (node.name, *(part.name for part in group))
            taken = sum(seconds.get(name, 0.0) for name in names)
            seconds[node.name] = taken * _spared(len(values), len(pieces))
        nodes.append(node)
    return Graph(tuple(nodes), graph.outputs), replace(costs, seconds=seconds)


def _spared(values: int, parts: int) -> float:
    """The bytes that a whole sum moves over those that it moves in so many parts.

    It reads each value and, from the second part on, its output, which it writes with each part.
    In parts it writes and reads each one, and reads and writes its output, from the second on.
    """
    return (values + 2 * parts - 1) / (values + 4 * parts - 3)


def _parts(by_name: Mapping[str, Node], node: Node) -> list[Node]:
    """What `sums.split` made beside a node; nothing if it is no sum in parts."""
    found, number = [], 0
    while (part := by_name.get(f"{node.name}/part{number}")) is not None and part.op == "AddN":
        found += [part, by_name.get(f"{node.name}/sum{number}")]
        number += 1
    made = [part for part in found if part is not None]
    return made if {value.node for value in node.inputs} <= {part.name for part in made} else []
