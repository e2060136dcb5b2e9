"""Print a graph as text and read it back: ``parse(str(graph)) == graph``.

One line for each node, in execution order, and one for the values returned::

    x = _Arg() [64] @cpu
    h = MatMul(x:0, w:0, ^init) [64] @cpu
    h/clone1 = MatMul(x:0, w:0) [64] @cpu origin=h
    return h:0

In brackets stand the bytes of each output, after ``@`` the device, ``^name`` is a control input.
``origin=`` and ``shares=`` follow only where a node has them. Empty lines and lines that start
with ``#`` are skipped when reading.
"""

from __future__ import annotations

import re

from tfmem.errors import Error
from tfmem.graph.ir import Graph, Node, Value

_NODE = re.compile(
    r"(?P<name>\S+) = (?P<op>[^\s(]+)\((?P<inputs>[^)]*)\) \[(?P<nbytes>[\d, ]*)\]"
    r"( @(?P<device>\S+))?( origin=(?P<origin>\S+))?( shares=(?P<shares>\d+))?"
)


def to_text(graph: Graph) -> str:
    """The graph as text."""
    lines = [node_to_text(node) for node in graph.nodes]
    return "\n".join([*lines, f"return {', '.join(map(str, graph.outputs))}".rstrip(), ""])


def node_to_text(node: Node) -> str:
    """One node as a line of text."""
    inputs = ", ".join([*map(str, node.inputs), *(f"^{name}" for name in node.after)])
    line = f"{node.name} = {node.op}({inputs}) {list(node.nbytes)}"
    line += f" @{node.device}" if node.device else ""
    line += f" origin={node.origin}" if node.origin else ""
    return line + (f" shares={node.shares}" if node.shares is not None else "")


def parse(text: str) -> Graph:
    """The graph that a text describes.

    Raises:
      tfmem.Error: a line is no node, or the last one does not say what is returned.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or lines[-1].split(" ")[0] != "return":
        raise Error("graph text must end with a line 'return VALUE, ...' (or 'return')")
    outputs = tuple(map(_value, _items(lines[-1].removeprefix("return"))))
    return Graph(tuple(map(_node, lines[:-1])), outputs)


def _node(line: str) -> Node:
    match = _NODE.fullmatch(line)
    if match is None:
        raise Error(f"not a node: {line!r}; write 'name = Op(input:0, ^control) [bytes] @device'")
    items = _items(match["inputs"])
    return Node(
        name=match["name"],
        op=match["op"],
        inputs=tuple(_value(item) for item in items if not item.startswith("^")),
        after=tuple(item[1:] for item in items if item.startswith("^")),
        nbytes=tuple(map(int, _items(match["nbytes"]))),
        device=match["device"] or "",
        origin=match["origin"] or "",
        shares=int(match["shares"]) if match["shares"] else None,
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _value(text: str) -> Value:
    node, colon, index = text.rpartition(":")
    if not colon or not index.isdigit():
        raise Error(f"not a value: {text!r}; write 'node:index'")
    return Value(node, int(index))
