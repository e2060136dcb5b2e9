"""Branches and calls that draw random numbers, told as such.

TensorFlow takes a `tf.switch_case` for pure whose branches draw numbers by ops that count them in
their kernels (`cond_v2._build_case` asks `auto_control_deps.op_is_stateful`, which leaves those
out), and so what such a case stands in. Computed again it would give other numbers.
"""

from __future__ import annotations

from tfmem.bridge.graphdefs import GraphDef, functions_of
from tfmem.graph.ops import facts_of

_STATEFUL = {
    "StatelessCase": "Case",
    "StatelessIf": "If",
    "StatelessWhile": "While",
    "PartitionedCall": "StatefulPartitionedCall",
}
"""Ops of the same kernels that TensorFlow takes for stateful."""


def tell(graph_def: GraphDef) -> None:
    """Changes nodes of a graph and its functions that run random ops to their stateful ops."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    drawing: dict[str, bool] = {}

    def draws(name: str) -> bool:
        if name not in drawing:
            drawing[name] = False  # of a function that runs itself
            nodes = functions[name].node_def if name in functions else ()
            drawing[name] = any(
                facts_of(node.op).is_random or any(map(draws, functions_of(node))) for node in nodes
            )
        return drawing[name]

    for nodes in (graph_def.node, *(function.node_def for function in functions.values())):
        for node in nodes:
            if node.op in _STATEFUL and any(map(draws, functions_of(node))):
                node.op = _STATEFUL[node.op]
