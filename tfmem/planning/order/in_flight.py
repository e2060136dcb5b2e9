"""How many nodes may be in flight out of an order."""

from __future__ import annotations

from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.simulation.simulate import simulate

WINDOWS = (16, 8)
"""Nodes in flight out of order, the most first: on two cores 16 give 96 % of the speed of no order
at all, one by one 92 %, and 2 or 4 less than that: a window's barriers cost time too."""

SLACK = 0.04
"""Part of the peak that running nodes out of order may add to it at worst. More is faster and keeps
fewer budgets; what is added at worst rarely comes true."""


def widest_window(graph: Graph, costs: Costs, plan: Plan) -> int:
    """Most nodes that may be in flight out of a plan's order and hardly add to its peak."""
    for window in WINDOWS:
        found = simulate(graph, costs, replace(plan, window=window))
        if found.window_peak_bytes <= (1 + SLACK) * found.peak_bytes:
            return window
    return 1
