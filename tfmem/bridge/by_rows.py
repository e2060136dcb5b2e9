"""Variables that functions access by rows: what is given to a branch, a loop or a call.

From then on each whole read of them is a copy, in the graph around the caller too: Keras 3 reads an
embedding there, and under loss scaling updates it by rows within a branch. And the other way round:
what the graph around accesses by rows is in that mode in the functions that it is given to (a table
of tf-keras, which Adam updates as a whole within that branch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfmem.bridge.graphdefs import BODIES, FunctionDef, NodeDef, functions_of
from tfmem.graph.bodies import BRANCHES, Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.graph.ops import facts_of


def by_rows(node: NodeDef, functions: Mapping[str, FunctionDef]) -> tuple[int, ...]:
    """Indices of a node's inputs whose variables its functions access by rows.

    Args:
      node: one that runs functions; () for any other.
      functions: that nodes run, by name.
    """
    if node.op not in BODIES:
        return ()
    first, found = int(node.op in BRANCHES), set[int]()
    for name in functions_of(node):
        if name in functions:
            found.update(first + number for number in _arguments(functions[name], functions))
    return tuple(sorted(found))


def _arguments(function: FunctionDef, functions: Mapping[str, FunctionDef]) -> set[int]:
    """Numbers of the arguments whose variables a function accesses by rows."""
    number = {argument.name: i for i, argument in enumerate(function.signature.input_arg)}
    found = set[int]()
    for node in function.node_def:
        facts = facts_of(node.op)
        places = facts.writes if facts.reads is None else (facts.reads,)
        accessed = places if facts.is_sparse else by_rows(node, functions)
        found.update(number[node.input[i]] for i in accessed if node.input[i] in number)
    return found


def told(graph: Graph, bodies: Bodies) -> Bodies:
    """Bodies whose variables say that the graph around accesses them by rows (`Node.rows`)."""
    form, found = graph.form, dict[str, tuple[Body, ...]]()
    copied = set(map(form.handle, form.copied))
    for name, functions in bodies.items():
        node = graph.by_name[name]
        given = node.inputs[int(node.op in BRANCHES) :]
        by_rows = [form.root(form.number_of(value)) in copied for value in given]
        found[name] = tuple(_told(one, by_rows) for one in functions)
    return found


def _told(body: Body, by_rows: Sequence[bool]) -> Body:
    """A body of whose inputs these are variables that the graph around accesses by rows."""
    inputs, rest = body.graph.nodes[: len(by_rows)], body.graph.nodes[len(by_rows) :]
    marked = [
        replace(node, rows=(0,)) if is_so else node
        for node, is_so in zip(inputs, by_rows, strict=True)
    ]
    graph = Graph((*marked, *rest), body.graph.outputs)
    return replace(body, graph=graph, bodies=told(graph, body.bodies))
