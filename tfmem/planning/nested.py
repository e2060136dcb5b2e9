"""Bodies of loops and branches, planned as graphs of their own and charged to their callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph, Node
from tfmem.plan import BodyPlan, Plan
from tfmem.simulation.callers import body_costs, body_requests, inputs_shared, with_requests
from tfmem.simulation.liveness import lifetimes
from tfmem.simulation.program import program
from tfmem.simulation.simulate import simulate


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
            free = room[name]
            elsewhere = _elsewhere(graph.by_name[name], body, costs)
            found = plan(body, None if free is None else max(1, free + elsewhere))
            if not found.is_noop:
                made.append(BodyPlan(name, branch, found))
    return tuple(made)


def _elsewhere(caller: Node, body: Body, costs: Costs) -> int:
    """Bytes of a body that count as its caller's inputs and outputs already."""
    found = lifetimes(program(body.graph, Plan()), costs.granularity)
    shared = int(found.nbytes[sorted(inputs_shared(caller, body, found))].sum())
    return shared + sum(map(costs.allocated, caller.nbytes))


def charge(
    graph: Graph, costs: Costs, bodies: Bodies, plans: tuple[BodyPlan, ...], device: str
) -> Costs:
    """Costs in which callers take and last what the plans of their bodies say."""
    if not plans:
        return costs
    planned = {(one.node, one.branch): one.plan for one in plans}
    seconds, asked = dict(costs.seconds), {}
    for name in {one.node for one in plans}:
        chosen = [planned.get((name, branch), Plan()) for branch in range(len(bodies[name]))]
        asked[name] = [
            body_requests(graph.by_name[name], body, _costs_within(body, costs, plan, device), plan)
            for body, plan in zip(bodies[name], chosen, strict=True)
        ]
        slowdown = max(one.step_seconds / (one.baseline_step_seconds or 1.0) for one in chosen)
        seconds[name] = seconds.get(name, 0.0) * max(1.0, slowdown)
    return replace(with_requests(costs, graph, asked), seconds=seconds)


def _costs_within(body: Body, costs: Costs, plan: Plan, device: str) -> Costs:
    """Prices of a body's nodes, what is planned for its own bodies included."""
    return charge(body.graph, costs_of(body, costs, device), body.bodies, plan.bodies, device)
