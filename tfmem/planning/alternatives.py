"""The orders, and the choices of what lives on the host, whose candidates a search looks at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.candidates import Candidates
from tfmem.planning.order.early import (
    movable_nodes,
    small_first,
    updates_after_reads,
    updates_first,
)
from tfmem.planning.order.memory_order import memory_order, program_order
from tfmem.planning.placement import moved_nodes, placement_levels, variables_on
from tfmem.planning.request import Request
from tfmem.simulation.simulate import simulate

# Constants as in `candidates`: measured by `python -m models.bench.constants`.

COMPARED = (16, 8, 4, 0)
"""Numbers of the limits by which orders are compared: from a quarter of the bytes above those that
stay to all of them."""

MUCH_FASTER = 0.9
"""Part of another order's seconds that one takes which is looked at, too. More plans longer."""


def least_peak_order(graph: Graph, costs: Costs, request: Request) -> tuple[str, ...]:
    """The order with the least peak that may be had; updates keep their place in it."""
    if "order" in request.techniques:
        return memory_order(graph, costs, request.device)
    return program_order(graph)


def candidate_sets(
    graph: Graph,
    costs: Costs,
    request: Request,
    least_peak: tuple[str, ...],
    observe: Callable[[], object] = lambda: None,
) -> Iterator[Candidates]:
    """The candidates of every choice of what lives on the host, that with the least there first.

    Args:
      graph: what is planned.
      costs: its prices.
      request: for where, and with which techniques; its budget does not matter.
      least_peak: from `least_peak_order`.
      observe: called whenever a limit has been looked at.
    """

    def made(order: tuple[str, ...], away: Sequence[str], beside: dict[str, str]) -> Candidates:
        return Candidates(graph, costs, request, order, away, beside, observe)

    order, may_order = least_peak, "order" in request.techniques
    if may_order:
        order = _with_updates(graph, costs, request.device, least_peak)
        order = updates_after_reads(graph, order)
    orders = [small_first(graph, order)]
    there = variables_on(graph, request.host) if request.host else ()
    levels: list[tuple[str, ...]] = [()]
    if request.host and "place" in request.techniques:
        levels = placement_levels(graph, request.device)
    if may_order:
        early = updates_after_reads(graph, updates_first(graph, program_order(graph)))
        orders.append(small_first(graph, early))
    if not there:
        held = _held(graph, costs, request.device, orders)
        # What is put off until after the peak costs nothing there, and much under a limit below it.
        compared = orders[::-1] if held[-1] < held[0] else orders[:1]
        yield from _faster([made(one, (), {}) for one in compared])
        levels = levels[1:]
    for level in levels:
        away = (*there, *level)
        besides = [moved_nodes(graph, away, by) for by in (costs, None)]
        for beside in besides if besides[0] != besides[1] else besides[:1]:
            yield from _faster([made(order, away, beside) for order in orders])


def _faster(found: Sequence[Candidates]) -> list[Candidates]:
    """Those whose order is the faster one under the tightest limit that any of them can keep.

    Also those that are much faster where the limit is the least unlimited peak: an order that takes
    little by itself may be one that no eviction makes smaller.
    """
    if len(found) == 1:
        return list(found)
    least = min(found, key=lambda one: one.unlimited.peak_bytes)
    chosen = least
    for limit in map(least.limit, COMPARED):
        seconds = math.inf
        for one in found:
            if (faster := one.seconds_within(limit, seconds)) < seconds:
                chosen, seconds = one, faster
        if seconds < math.inf:
            break
    loose = least.limit(0)
    is_slow = least.seconds_within(loose) < MUCH_FASTER * chosen.seconds_within(loose)
    return [chosen, least] if is_slow else [chosen]


def _with_updates(
    graph: Graph, costs: Costs, device: str, least_peak: tuple[str, ...]
) -> tuple[str, ...]:
    """The order with early updates, if fewer bytes are in use beside the nodes that keep theirs."""
    late, early = orders = least_peak, updates_first(graph, least_peak)
    held = _held(graph, costs, device, orders)
    return early if held[1] < held[0] else late


def _held(graph: Graph, costs: Costs, device: str, orders: Sequence[tuple[str, ...]]) -> list[int]:
    """Bytes in use beside each node of each order, in all, but for the nodes that `early` moves."""
    movable, found = movable_nodes(graph), []
    for order in orders:
        simulation = simulate(graph, costs, Plan(order=order, device=device))
        rows = zip(simulation.order, simulation.timeline.tolist(), strict=True)
        found.append(sum(nbytes for name, nbytes in rows if name not in movable))
    return found
