"""Branches and loops that run as a whole where an order puts them.

TensorFlow lowers an If to a Switch for each input, the nodes of both branches and a Merge for each
output. What the If waits for holds up only those of its nodes that read nothing; the others run as
soon as what they read is there, and whoever reads one output does not wait for the rest.

    y = If(p:0, x:0, ^a)            p/gate = Identity(p:0, ^a)      every Switch reads p/gate
    z = Neg(y:0)                    y = If(p/gate:0, x:0, ^a)
                                    y/done = IdentityN(y:0, y:1, ^y)    every Merge has run
                                    z = Neg(y:0, ^y/done)

Of a lowered While all nodes wait for what it waits for, but each for those inputs alone that it
reads: a turn begins while other inputs are still made. Whoever waits for it waits for all outputs,
and whoever reads one for that alone. So an edge that says that a node is waited for stands beside
those that say what is read:

    y = While(n:0, x:0)             y = While(n:0, x:0, ^n, ^x)
    z = Neg(y:1)                    z = Neg(y:1, ^y)

Source: TensorFlow's ``lower_if_op.cc``, ``lower_case_op.cc``, ``lower_while_op.cc``, version 2.21.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from tfmem.bridge.graphdefs import NodeDef
from tfmem.bridge.unread import Unread
from tfmem.graph.bodies import BRANCHES, LOOPS


def hold_together(
    nodes: Iterable[NodeDef], unread: Unread | None = None, *, in_function: bool = False
) -> list[NodeDef]:
    """Changes NodeDefs so that branches and loops run as a whole where they stand.

    Args:
      nodes: all of a graph, with their inputs and control inputs.
      unread: outputs of branches that are waited for though nobody reads them.
      in_function: whether they are a function's, which names outputs by argument.

    Returns:
      The nodes to be added.
    """
    nodes = list(nodes)
    _hold_loops(nodes)
    branching = {node.name: node for node in nodes if node.op in BRANCHES}
    if not branching:
        return []
    read: dict[str, dict[str, None]] = {name: {} for name in branching}
    for node in nodes:
        for text in node.input:
            if text[0] != "^" and (name := text.partition(":")[0]) in read:
                read[name][text] = None
    for name, numbers in (unread or {}).items():
        for number in numbers:
            read[name][f"{name}:output:{number}" if in_function else f"{name}:{number}"] = None
    added = [_gate(node, in_function) for node in branching.values() if _waits(node)]
    done = {name: f"{name}/tfmem_done" for name, texts in read.items() if texts}
    for node in nodes:
        sources = {text.removeprefix("^").partition(":")[0] for text in node.input}
        kept = [text for text in node.input if not (text[0] == "^" and text[1:] in done)]
        node.input[:] = [*kept, *(f"^{done[name]}" for name in sorted(sources & done.keys()))]
    return added + [_done(branching[name], tuple(read[name])) for name in done]


def _hold_loops(nodes: Sequence[NodeDef]) -> None:
    ops = {node.name: node.op for node in nodes}
    for node in nodes if any(op in LOOPS for op in ops.values()) else ():
        waits = {text.removeprefix("^") for text in node.input if text[0] == "^"}
        read = {text.partition(":")[0] for text in node.input if text[0] != "^"}
        held = {name for name in read & ops.keys() if node.op in LOOPS or ops[name] in LOOPS}
        node.input.extend(f"^{name}" for name in sorted(held - waits))


def _waits(node: NodeDef) -> bool:
    return any(text[0] == "^" for text in node.input)


def _gate(node: NodeDef, in_function: bool) -> NodeDef:
    """What the choice goes through, which waits for what the node waits for."""
    made = tf.compat.v1.NodeDef(name=f"{node.name}/tfmem_gate", op="Identity", device=node.device)
    made.input.append(node.input[0])
    made.input.extend(text for text in node.input if text[0] == "^")
    dtype = node.attr["Tcond"].type if node.op.endswith("If") else tf.int32.as_datatype_enum
    made.attr["T"].type = dtype
    node.input[0] = f"{made.name}:output:0" if in_function else made.name
    return made


def _done(node: NodeDef, texts: tuple[str, ...]) -> NodeDef:
    """What has run when all outputs that anybody reads are there, and all effects."""
    name = f"{node.name}/tfmem_done"
    made = tf.compat.v1.NodeDef(name=name, op="IdentityN", device=node.device)
    made.input.extend((*texts, f"^{node.name}"))
    types = node.attr["Tout"].list.type
    for text in texts:
        _, _, index = text.rpartition(":")
        made.attr["T"].list.type.append(types[int(index) if ":" in text else 0])
    return made
