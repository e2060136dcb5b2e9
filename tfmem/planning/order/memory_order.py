"""Orders of a graph's nodes, and among them one that needs little memory.

`memory_order` works in four steps, the same letters in the code:

A. *Candidates*: program order, depth-first, breadth-first, demand-driven, greedy.
B. *Sweeps* (`sweep`): each candidate swept backwards and forwards until that no longer helps.
C. *Windows* (`window`): the best one searched exactly around its peak, as long as that lowers it.
   A small graph is one window, and the result is then the optimum of the model.
D. *Judgement*: the least simulated peak wins, plain candidates included; on a tie the one nearest
   to what the user wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tfmem.costs.types import Costs
from tfmem.graph.compact import Compact
from tfmem.graph.ir import Graph
from tfmem.graph.topology import first_ready_first, last_ready_first, post_order
from tfmem.plan import Plan
from tfmem.planning.order.pressure import Pressure, pressure
from tfmem.planning.order.stretch import Stretch
from tfmem.planning.order.sweep import backwards, forwards
from tfmem.simulation.simulate import simulate

# Constants; what others do to plans is measured by `python -m models.bench.constants`.

SETS = 6000
"""Sets of nodes that one `memory_order` may look at in windows: about a second in all. More find
lower peaks in graphs whose best order is far from any candidate."""

SETS_OF_A_STRETCH = 1500
"""Sets of nodes that are looked at in one window before it is given up."""

WIDTHS = (12, 20, 32)
"""Nodes in a window around the peak, tried in turn; each set looked at takes time in proportion."""

WHOLE = 48
"""Most nodes of a graph that is searched as one window (with 20, at most some 600 sets)."""


def program_order(graph: Graph) -> tuple[str, ...]:
    """Every node as the user's code made them."""
    return tuple(node.name for node in graph.nodes)


def breadth_first(graph: Graph) -> tuple[str, ...]:
    """Every node, the one that became ready first first (the executor's queue)."""
    form = graph.form
    return _named(form, first_ready_first(form.predecessors, form.successors))


def depth_first(graph: Graph) -> tuple[str, ...]:
    """Every node, the one that became ready last first (TensorFlowMem's stack)."""
    form = graph.form
    return _named(form, last_ready_first(form.predecessors, form.successors))


def memory_order(graph: Graph, costs: Costs, device: str) -> tuple[str, ...]:
    """Every node, function inputs first, in an order of small peak on the device.

    The peak is never above that of program order, depth-first or breadth-first order. The result
    depends on the graph and the costs alone, and not on names. Near-linear in the graph's size.

    Args:
      graph: nodes in program order.
      costs: workspace and granularity count, seconds do not.
      device: full name of the device whose memory is scarce.
    """
    form = graph.form
    edges = form.predecessors, form.successors
    plain = [list(range(len(form.names))), last_ready_first(*edges), first_ready_first(*edges)]
    found = _search(pressure(graph, costs, device), plain)

    def peak(order: Sequence[int]) -> int:
        return simulate(graph, costs, Plan(order=_named(form, order), device=device)).peak_bytes

    return _named(form, _inputs_first(form, min([*plain, found], key=peak)))  # D


def _search(model: Pressure, plain: Iterable[list[int]]) -> list[int]:
    form = model.graph
    candidates = [*plain, _demand(form)]  # A
    candidates.append(forwards(model, candidates[0], math.inf, greedy=True))
    swept = [_sweep(model, _inputs_first(form, order)) for order in candidates]  # B
    best = min(swept, key=lambda order: max(model.timeline(order), default=0))
    sets = SETS if len(best) > sum(form.is_input) else 0  # else every window is empty
    while sets > 0:  # C
        before = max(model.timeline(best), default=0)
        best, sets = _search_windows(model, best, sets)
        best = _sweep(model, best)
        if max(model.timeline(best), default=0) == before:
            break
    return best


def _sweep(model: Pressure, order: list[int]) -> list[int]:
    peak = max(model.timeline(order), default=0)
    while True:
        swept = backwards(model, order, peak)
        swept = forwards(model, swept, max(model.timeline(swept), default=0))
        reached = max(model.timeline(swept), default=0)
        if reached >= peak:
            return order if reached > peak else swept
        order, peak = _inputs_first(model.graph, swept), reached


def _search_windows(model: Pressure, order: list[int], sets: int) -> tuple[list[int], int]:
    """Searches windows around the peak until none lowers it or no sets are left to look at."""
    first = sum(model.graph.is_input)
    widths = (WHOLE, *WIDTHS) if len(order) - first <= WHOLE else WIDTHS
    found: list[int] | None = order
    while found is not None and sets > 0:
        order, found = found, None
        timeline = model.timeline(order)
        peak = max(range(len(order)), key=timeline.__getitem__, default=0)
        for width in widths:
            for begin in (peak - width // 2, peak - width + 3, peak - 2):
                begin = max(first, min(begin, len(order) - width))
                better, looked = _search_window(model, order, begin, begin + width, sets)
                sets -= looked
                if better is not None:
                    found = [*order[:begin], *better, *order[begin + width :]]
                    break
            if found is not None:
                break
    return order, sets


def _search_window(
    model: Pressure, order: list[int], begin: int, end: int, sets: int
) -> tuple[list[int] | None, int]:
    place = [0] * len(order)
    for position, node in enumerate(order):
        place[node] = position
    return Stretch(model, order, place, begin, end).search(min(sets, SETS_OF_A_STRETCH))


def _demand(form: Compact) -> list[int]:
    """Each node with nothing after it in turn, and before each node what it waits for."""
    last = (node for node, after in enumerate(form.successors) if not after)
    return post_order(last, form.predecessors.__getitem__)


def _inputs_first(form: Compact, order: Sequence[int]) -> list[int]:
    inputs = [node for node, given in enumerate(form.is_input) if given]
    return [*inputs, *(node for node in order if not form.is_input[node])]


def _named(form: Compact, order: Iterable[int]) -> tuple[str, ...]:
    return tuple(form.names[node] for node in order)
