"""Bodies of loops and branches, planned as graphs of their own and charged to their callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tfmem.costs.types import Costs
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph
from tfmem.plan import BodyPlan, Plan
from tfmem.simulation.callers import asked_of, body_costs, with_requests
from tfmem.simulation.requests import most_of
from tfmem.simulation.simulate import simulate


def costs_of(body: Body, costs: Costs, device: str) -> Costs:
    """Prices of a body's nodes, in buffers as coarse as its caller's."""
    return replace(body_costs(body, device), granularity=costs.granularity)


def room_beside(graph: Graph, costs: Costs, device: str, budget: int) -> dict[str, int]:
    """Bytes of a budget that each node finds free of everything but its own workspace."""
    found = simulate(graph, costs, Plan(device=device))
    return {
        name: budget - int(nbytes) + costs.allocated(costs.workspace.get(name, 0))
        for name, nbytes in zip(found.order, found.timeline, strict=True)
    }


def plan_bodies(
    bodies: Bodies,
    costs: Costs,
    room: Mapping[str, int | None],
    given: Mapping[tuple[str, int], int],
    plan: Callable[[Body, int | None], Plan],
) -> tuple[BodyPlan, ...]:
    """Plans each body that takes memory of its own.

    Args:
      bodies: of each node.
      costs: prices of the graph whose nodes run them.
      room: bytes that a caller may take beside its inputs and outputs; None for no bound. Nodes
        that are not named keep their bodies.
      given: from `bytes_given`; not asked where there is no bound.
      plan: makes a body's plan for a budget.
    """
    made = []
    for name, functions in bodies.items():
        if name not in room or name not in costs.requests:
            continue
        for branch, body in enumerate(functions):
            free = room[name]
            found = plan(body, None if free is None else max(1, free + given[name, branch]))
            if not found.is_noop:
                made.append(BodyPlan(name, branch, found))
    return tuple(made)


def without_budgets(plans: tuple[BodyPlan, ...]) -> tuple[BodyPlan, ...]:
    """The plans of bodies, those equal that do the same for several budgets."""
    return tuple(
        replace(one, plan=replace(one.plan, budget=None, bodies=without_budgets(one.plan.bodies)))
        for one in plans
    )


def bytes_given(
    graph: Graph, costs: Costs, bodies: Bodies, device: str
) -> dict[tuple[str, int], int]:
    """By how much each body's own peak is above what its caller takes above its outputs.

    A body counts what it is given, which is there before; the caller counts what other turns of a
    loop keep, and what they give back.

    Args:
      graph: whose nodes run the bodies.
      costs: its prices; the workspace of a caller is what its bodies take now.
      bodies: of each node.
      device: full name of the device.

    Returns:
      Bytes by node and number of the body, of the nodes whose bodies ask for memory.
    """
    form, found = graph.form, {}
    for name, functions in bodies.items():
        if name not in costs.requests:
            continue
        node = form.number[name]
        outputs = form.nbytes[form.first[node] : form.first[node + 1]]
        for branch, body in enumerate(functions):
            alone = simulate(body.graph, costs_of(body, costs, device), Plan()).peak_bytes
            asked = asked_of(graph, name, functions, costs.granularity, {}, branch)
            most = most_of(asked, frozenset(one for one, *_ in asked.given))
            found[name, branch] = alone - most + sum(map(costs.allocated, outputs))
    return found


def overlapping(bodies: Bodies, costs: Costs, device: str) -> int:
    """Bytes that turns of loops may take beyond what one turn after the other does.

    Turns overlap where one does not need the other's results, such as numbers drawn at random; each
    then holds temporaries of its own.
    """
    found = 0
    for body in (body for functions in bodies.values() for body in functions):
        inner = overlapping(body.bodies, costs, device)
        found += inner
        if body.turns > 1:
            priced = costs_of(body, costs, device)
            inputs = (node for node in body.graph.nodes if node.is_input)
            given = sum(priced.allocated(nbytes) for node in inputs for nbytes in node.nbytes)
            own = simulate(body.graph, priced, Plan()).peak_bytes - given
            found += (body.turns - 1) * (inner + max(0, own))
    return found


def charge(
    graph: Graph, costs: Costs, bodies: Bodies, plans: tuple[BodyPlan, ...], device: str
) -> Costs:
    """Costs in which callers take and last what the plans of their bodies say."""
    if not plans:
        return costs
    planned = {(one.node, one.branch): one.plan for one in plans}
    callers = {one.node for one in plans}
    made = with_requests(costs, graph, {name: bodies[name] for name in callers}, planned)
    seconds = dict(costs.seconds)
    for name in callers:
        chosen = (planned.get((name, branch), Plan()) for branch in range(len(bodies[name])))
        slowdown = max(one.step_seconds / (one.baseline_step_seconds or 1.0) for one in chosen)
        seconds[name] = seconds.get(name, 0.0) * max(1.0, slowdown)
    return replace(made, seconds=seconds)
