"""Bodies of loops and branches, planned as graphs of their own and charged to their callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tfmem.bodies import Bodies, Body, charged_elsewhere
from tfmem.costs import Costs, body_costs
from tfmem.ir import Graph
from tfmem.plan import BodyPlan, Plan
from tfmem.simulate import simulate

_HOLES = 1.05
"""How much more a planned body takes than in an allocator of its own: the buffers of its caller
leave holes there (a loop over a training step: 44 MB measured, 42 alone)."""


def costs_of(body: Body, costs: Costs, device: str) -> Costs:
    """Prices of a body's nodes, in buffers as coarse as its caller's."""
    return replace(body_costs(body, device), granularity=costs.granularity)


def room_beside(graph: Graph, costs: Costs, device: str, budget: int) -> Mapping[str, int]:
    """Bytes of a budget that each node finds free of everything but its own workspace."""
    found = simulate(graph, costs, Plan(device=device))
    return {
        name: budget - int(nbytes) + costs.allocated(costs.workspace.get(name, 0))
        for name, nbytes in zip(found.order, found.timeline, strict=True)
    }


def plan_bodies(
    graph: Graph,
    costs: Costs,
    bodies: Bodies,
    room: Mapping[str, int | None],
    plan: Callable[[Body, int | None], Plan],
) -> tuple[BodyPlan, ...]:
    """Plans each body that takes memory of its own.

    Args:
      graph: whose nodes run the bodies.
      costs: its prices; the workspace of a caller is what its bodies take now.
      bodies: of each node.
      room: bytes that a caller may take beside its inputs and outputs; None for no bound. Nodes
        that are not named keep their bodies.
      plan: makes a body's plan for a budget.
    """
    made = []
    for name, functions in bodies.items():
        if name not in room or not costs.workspace.get(name):
            continue
        for branch, body in enumerate(functions):
            elsewhere = charged_elsewhere(graph.by_name[name], body, costs.allocated)
            free = room[name]
            found = plan(body, None if free is None else max(1, int((free + elsewhere) / _HOLES)))
            if not found.is_noop:
                made.append(BodyPlan(name, branch, found))
    return tuple(made)


def charge(
    graph: Graph, costs: Costs, bodies: Bodies, plans: tuple[BodyPlan, ...], device: str
) -> Costs:
    """Costs in which callers take and last what the plans of their bodies say."""
    if not plans:
        return costs
    planned = {(one.node, one.branch): one.plan for one in plans}
    workspace, seconds = dict(costs.workspace), dict(costs.seconds)
    for name in {one.node for one in plans}:
        most, slowdown = 0, 1.0
        for branch, body in enumerate(bodies[name]):
            plan = planned.get((name, branch))
            if plan is None:
                priced = costs_of(body, costs, device)
                peak = simulate(body.graph, priced, Plan(device=device)).peak_bytes
            else:
                peak = plan.peak_bytes
                slowdown = max(slowdown, plan.step_seconds / (plan.baseline_step_seconds or 1.0))
            elsewhere = charged_elsewhere(graph.by_name[name], body, costs.allocated)
            most = max(most, int(_HOLES * peak) - elsewhere)
        workspace[name] = most
        seconds[name] = seconds.get(name, 0.0) * slowdown
    return replace(costs, workspace=workspace, seconds=seconds)
