"""Lists and handles that go through loops: what comes out is read where it went in.

    list --While--> read          list --+--While
                            ->           +--> read

A loop changes neither what a handle refers to nor the shape of a list's elements, but TensorFlow's
inference forgets both at its output. A list comes out as long as it went in if each turn gives the
list on that it was given, at most with other elements. Of one that a turn makes longer or shorter,
makes anew or swaps for another, no more is taken over than what its elements are like: an
`Identity` named for that stands between, behind which nobody looks for a length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import tensorflow as tf

from tfmem.bridge.graphdefs import (
    FunctionDef,
    GraphDef,
    NodeDef,
    body_graph_def,
    functions_of,
    parse_value,
)
from tfmem.bridge.inputs import UNSIZED
from tfmem.graph.bodies import BRANCHES, LOOPS, STACKING_OPS
from tfmem.graph.ir import Value

Functions = Mapping[str, FunctionDef]

RELEASED = "tfmem_released"
"""Where the nodes are behind which a list may have another length."""

_AS_LONG = ("Identity", "Snapshot", "TensorListSetItem", "ZerosLike")

CHOOSING_OPS = (*BRANCHES, "PartitionedCall", "StatefulPartitionedCall")
"""Ops that run one function of theirs, once."""


def bypass(graph_def: GraphDef, functions: Functions) -> None:
    """Lets readers of a handle or a list that went through a loop read what went in.

    Args:
      graph_def: the nodes, which are changed.
      functions: that they run, by name.
    """
    kinds = [dtype.as_datatype_enum for dtype in UNSIZED]
    loops = {node.name: node for node in graph_def.node if node.op in LOOPS}
    entered = {
        Value(node.name, i): text
        for node in loops.values()
        for i, (kind, text) in enumerate(zip(node.attr["T"].list.type, node.input, strict=False))
        if kind in kinds
    }
    if not entered:
        return
    stacks = any(node.op in STACKING_OPS for node in graph_def.node)
    passed: dict[Value, str] = {}

    def before(value: Value) -> str:
        """What is read in the place of a loop's output."""
        if value not in passed:
            text = entered[value]
            source = parse_value(text)
            text = before(source) if source in entered else text
            loop = loops[value.node]
            is_list = loop.attr["T"].list.type[value.index] == tf.variant.as_datatype_enum
            if stacks and is_list and not _keeps(loop, value.index, functions):
                text = _released(graph_def, value, text)
            passed[value] = text
        return passed[value]

    for node in list(graph_def.node):
        for i, text in enumerate(node.input):
            if text[0] != "^" and (value := parse_value(text)) in entered:
                node.input[i] = before(value)


def _released(graph_def: GraphDef, value: Value, text: str) -> str:
    node = graph_def.node.add(name=f"{RELEASED}/{value.node}/{value.index}", op="Identity")
    node.input.append(text)
    node.attr["T"].type = tf.variant.as_datatype_enum
    return str(node.name)


def as_long(op: str, inputs: int) -> range:
    """Which inputs of a node are as long as its first output, if that is a list.

    Lists of different lengths cannot be added. `TensorListSetItem` may make one longer
    (`seen.may_grow`): then lengths are counted.

    Args:
      op: of the node.
      inputs: how many it has.
    """
    return range(inputs if op == "AddN" else int(op in _AS_LONG))


def unchanging(node: NodeDef, functions: Functions) -> Collection[int]:
    """Which of the values that a node gives its functions are the same in each run of them.

    All of a branch or a call, which run once; of a loop those that each turn gives on as they are.
    """
    if node.op in CHOOSING_OPS:
        return range(len(node.input))
    if node.op not in LOOPS or (name := functions_of(node)[1]) not in functions:
        return ()
    graph_def, outputs = body_graph_def(functions[name])
    passing = {one.name: one.input[0] for one in graph_def.node if one.op == "Identity"}
    found = []
    for i, (text, arg) in enumerate(zip(outputs, functions[name].signature.input_arg, strict=True)):
        value = parse_value(text)
        while value.node in passing:
            value = parse_value(passing[value.node])
        if value.node == arg.name:
            found.append(i)
    return found


def _keeps(loop: NodeDef, index: int, functions: Functions) -> bool:
    """Whether a list comes out of a loop as long as it went in."""
    return index in _origins(functions_of(loop)[1], index, functions)


def _origins(name: str, index: int, functions: Functions) -> set[int]:
    """Which lists that a function is given are as long as one that it returns."""
    if name not in functions:
        return set()
    graph_def, outputs = body_graph_def(functions[name])
    inputs = [arg.name for arg in functions[name].signature.input_arg]
    nodes = {node.name: node for node in graph_def.node}
    todo, seen = [parse_value(outputs[index])], set()
    while todo:
        value = todo.pop()
        if value not in seen and value.node in nodes:
            node = nodes[value.node]
            todo += (parse_value(node.input[i]) for i in _alike(node, value.index, functions))
        seen.add(value)
    return {inputs.index(value.node) for value in seen if value.node not in nodes}


def _alike(node: NodeDef, index: int, functions: Functions) -> Iterable[int]:
    """Which inputs of a node are as long as an output, if that is a list."""
    if node.op in LOOPS:
        return [index] if _keeps(node, index, functions) else []
    if node.op in CHOOSING_OPS:
        found = [_origins(one, index, functions) for one in functions_of(node)]
        first = int(node.op in BRANCHES)
        return [first + i for i in sorted(set.intersection(*found))]
    data = sum(text[0] != "^" for text in node.input)
    return as_long(node.op, data) if not index else []
