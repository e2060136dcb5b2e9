"""Orders of a graph's nodes, and among them one that needs little memory."""

from __future__ import annotations

from tfmem.compact import Compact, compact
from tfmem.costs import Costs
from tfmem.ir import Graph
from tfmem.plan import Plan
from tfmem.program import fifo
from tfmem.simulate import simulate


def depth_first(graph: Graph) -> tuple[str, ...]:
    """Every node, the one that became ready last first (TensorFlowMem's stack)."""
    form = compact(graph)
    waiting = [len(before) for before in form.predecessors]
    stack = [node for node, count in enumerate(waiting) if not count][::-1]
    order = []
    while stack:
        node = stack.pop()
        order.append(node)
        ready = []
        for reader in form.successors[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
        stack.extend(reversed(ready))
    return _named(form, order)


def breadth_first(graph: Graph) -> tuple[str, ...]:
    """Every node, the one that became ready first first (the executor's queue)."""
    form = compact(graph)
    return _named(form, fifo(form))


def program_order(graph: Graph) -> tuple[str, ...]:
    """Every node as the user's code made them."""
    return tuple(node.name for node in graph.nodes)


def memory_order(graph: Graph, costs: Costs, device: str) -> tuple[str, ...]:
    """Every node in an order of small peak on the device."""
    candidates = (program_order(graph), depth_first(graph), breadth_first(graph))
    return min(
        candidates,
        key=lambda order: simulate(graph, costs, Plan(order=order, device=device)).peak_bytes,
    )


def _named(form: Compact, order: list[int]) -> tuple[str, ...]:
    return tuple(form.names[node] for node in order)
