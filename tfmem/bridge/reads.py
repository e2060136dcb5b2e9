"""Reads of one variable that give the same, made one.

A function reads a variable anew wherever its code names it:

    r1 = Read(w)   y = MatMul(x, r1)   ...   r2 = Read(w)   n = Square(r2)   ...   Update(w)

Between two updates all reads give the same, so one serves, and a copy on its way from the host
serves the neighbouring users of the variable, whichever read they named:

    r1 = Read(w)   y = MatMul(x, r1)   ...   n = Square(r1)   ...   Update(w)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from tfmem.bridge.graphdefs import GraphDef, NodeDef, drop, parse_value, topological
from tfmem.graph.ops import facts_of

READ = "ReadVariableOp"


def share(
    graph_def: GraphDef, handles: Container[str], kept: Container[str], names: Iterable[str]
) -> frozenset[str]:
    """Makes equal reads of a GraphDef one, in place: that which the user's code made first.

    Args:
      graph_def: the graph; control inputs order the reads and updates of each variable.
      handles: names of the nodes that are variables.
      kept: names of nodes that stay.
      names: of the nodes as the user's code made them.

    Returns:
      The names of the reads that are gone.
    """
    rank = {name: place for place, name in enumerate(names)}
    instead: dict[str, str] = {}
    for group in _equal_reads(graph_def, handles):
        first, *others = sorted(group, key=lambda name: (rank.get(name, len(rank)), name))
        instead |= {name: first for name in others if name not in kept}
    for node in graph_def.node:
        values = [_renamed(text, instead) for text in node.input if text[0] != "^"]
        sources = {parse_value(text).node for text in values}
        after = [_renamed(text[1:], instead) for text in node.input if text[0] == "^"]
        node.input[:] = [*values, *(f"^{n}" for n in dict.fromkeys(after) if n not in sources)]
    drop(graph_def, instead)
    return frozenset(instead)


def _renamed(text: str, instead: dict[str, str]) -> str:
    return instead.get(parse_value(text).node, text)


def _equal_reads(graph_def: GraphDef, handles: Container[str]) -> Iterator[list[str]]:
    """Reads of one variable that wait for the same, with no update among them.

    Not of a variable whose rows are accessed one by one, each read of which is a copy, nor of one
    that a function takes or another node hands on.
    """
    for nodes in users_in_order(graph_def, handles).values():
        if all(_is_dense(node.op) for node in nodes):
            yield from _between_updates(nodes)


def users_in_order(graph_def: GraphDef, handles: Container[str]) -> dict[str, list[NodeDef]]:
    """The nodes that take each of the handles, in a topological order."""
    users: dict[str, list[NodeDef]] = {}
    for node in topological(graph_def.node):
        sources = {parse_value(text).node for text in node.input if text[0] != "^"}
        for name in sorted(sources):
            if name in handles:
                users.setdefault(name, []).append(node)
    return users


def _is_dense(op: str) -> bool:
    facts = facts_of(op)
    return facts.uses_variable and not facts.is_sparse


def _between_updates(nodes: Iterable[NodeDef]) -> Iterator[list[str]]:
    groups: dict[tuple[int, str, frozenset[str]], list[str]] = {}
    updates = 0
    for node in nodes:
        if node.op != READ:
            updates += 1
            continue
        after = frozenset(text for text in node.input if text[0] == "^")
        groups.setdefault((updates, node.device, after), []).append(node.name)
    yield from groups.values()
