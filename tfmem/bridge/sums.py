"""Sums of many values, taken in parts, so that no more than some need be there at once.

TensorFlow's AddN adds its inputs by eights:

    s = AddN(a0, ..., a18)      adds a0 + a1 + a2, then (a3 + ... + a10), then (a11 + ... + a18)

so the same sum, bitwise, is

    s/part0 = AddN(a0, a1, a2)
    s/part1 = AddN(a3, ..., a10)      s/sum1 = AddV2(s/part0, s/part1)
    s/part2 = AddN(a11, ..., a18)     s      = AddV2(s/sum1, s/part2)

The gradient of a weight that is used in each step of time is such a sum.

Source: `tensorflow/core/kernels/aggregate_ops.cc`, TensorFlow 2.21; `tests/bridge/test_sums.py`
compares.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tfmem.bridge import graphdefs
from tfmem.bridge.graphdefs import GraphDef, NodeDef
from tfmem.graph.ir import Node

_WIDTH = 8


def split(graph_def: GraphDef, types: Container[int]) -> None:
    """Takes each long sum of a GraphDef in parts, in place; the node of its name gives the whole.

    Args:
      graph_def: the graph.
      types: of what values, as TensorFlow numbers types.
    """
    taken = {node.name for node in graph_def.node}
    for node in list(graph_def.node):
        is_free = f"{node.name}/part0" not in taken
        if node.op == "AddN" and node.attr["T"].type in types and is_free:
            values = [text for text in node.input if not text.startswith("^")]
            if len(values) > _WIDTH + 1:
                _split(graph_def, node, values)


def definition(node: Node, known: Mapping[str, NodeDef]) -> NodeDef:
    """The NodeDef of a node by its name; of a sum that is whole again, one for all its inputs."""
    found = known[node.name]
    if found.op == node.op or node.op != "AddN":
        return found
    whole = graphdefs.bare(known[f"{node.name}/part0"])
    whole.attr["N"].i = len(node.inputs)
    return whole


def _split(graph_def: GraphDef, node: NodeDef, values: Sequence[str]) -> None:
    first = len(values) % _WIDTH or _WIDTH
    first += _WIDTH * (first == 1)
    starts = [0, *range(first, len(values), _WIDTH)]
    after = [text for text in node.input if text.startswith("^")]

    total = ""
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(values)], strict=True)):
        part = _add(graph_def, node, f"{node.name}/part{number}", values[start:end])
        part.attr["N"].i = end - start
        if not total:
            total = part.name
        elif end < len(values):
            both = _add(graph_def, node, f"{node.name}/sum{number}", (total, part.name))
            total = _as_addition(both).name
        else:
            del node.input[:]
            node.input.extend((total, part.name, *after))
            _as_addition(node)


def _add(graph_def: GraphDef, like: NodeDef, name: str, values: Sequence[str]) -> NodeDef:
    """A new node like another, with other inputs."""
    made = graph_def.node.add()
    made.CopyFrom(like)
    made.name = name
    del made.input[:]
    made.input.extend(values)
    return made


def _as_addition(node: NodeDef) -> NodeDef:
    """The node, of which an AddN is made an AddV2."""
    node.op = "AddV2"
    del node.attr["N"]
    return node
