"""What nodes that run functions (loops, branches, calls) take of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfmem.costs.static import static_costs
from tfmem.costs.types import Costs, Requests
from tfmem.graph.bodies import Bodies, Body
from tfmem.graph.ir import Graph, Node
from tfmem.plan import Plan
from tfmem.simulation.liveness import Lifetimes, lifetimes
from tfmem.simulation.program import program
from tfmem.simulation.requests import most_of, requests, scratch


def with_bodies(costs: Costs, graph: Graph, bodies: Bodies, device: str) -> Costs:
    """Costs in which callers take what their bodies, run as they are, ask for; from sizes.

    Args:
      costs: of the graph's own nodes.
      graph: whose nodes run the bodies.
      bodies: of each node; of several the largest counts.
      device: full name of the device.
    """
    asked = {}
    for name, functions in bodies.items():
        if functions and name in graph.by_name:
            caller = graph.by_name[name]
            asked[name] = [
                body_requests(caller, body, body_costs(body, device), Plan()) for body in functions
            ]
    return with_requests(costs, graph, asked)


def body_costs(body: Body, device: str) -> Costs:
    """Costs, from sizes, of the nodes of a function that a loop or branch runs."""
    made = static_costs(body.graph, flops=body.flops, workspace=body.workspace, device=device)
    return with_bodies(made, body.graph, body.bodies, device)


def body_requests(caller: Node, body: Body, costs: Costs, plan: Plan) -> Requests:
    """What a planned body asks of the allocator beside its caller's inputs."""
    steps = program(body.graph, plan)
    found = lifetimes(steps, costs.granularity)
    shared = inputs_shared(caller, body, found)
    return requests(found, *scratch(steps, costs), held=shared, kept=shared)


def with_requests(costs: Costs, graph: Graph, asked: Mapping[str, Sequence[Requests]]) -> Costs:
    """Costs in which callers take what the largest of their bodies asks for."""
    largest = {name: max(bodies, key=most_of) for name, bodies in asked.items()}
    workspace = {
        name: max(0, most_of(one) - sum(map(costs.allocated, graph.by_name[name].nbytes)))
        for name, one in largest.items()
    }
    return replace(
        costs,
        workspace={**costs.workspace, **workspace},
        requests={**costs.requests, **largest},
    )


def inputs_shared(caller: Node, body: Body, found: Lifetimes) -> frozenset[int]:
    """Buffers of a body that are its caller's inputs.

    A branch reads the node's inputs themselves. A loop does so in its first iteration only:
    from then on its variables are buffers of their own, but for those handed on unchanged.
    """
    is_loop, outputs = caller.op.endswith("While"), set(body.graph.outputs)
    return frozenset(
        buffer
        for buffer, number in enumerate(found.owner.tolist())
        if found.is_input(buffer) and (not is_loop or found.program.value(number) in outputs)
    )
