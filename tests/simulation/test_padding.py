"""What the allocator hands out beside what was asked for only adds to the simulated peak."""

from __future__ import annotations

from hypothesis import given, settings

from tests.support.graphs import DEVICE, graphs
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.simulation.liveness import lifetimes
from tfmem.simulation.program import program
from tfmem.simulation.simulate import allocate, simulate


@settings(max_examples=50, deadline=None)
@given(graphs)
def test_padding_only_adds(graph: Graph) -> None:
    plan = Plan(device=DEVICE)
    found, exact = allocate(graph, Costs(), plan), simulate(graph, Costs(), plan)
    assert max(exact.peak_bytes, found.usual_bytes) <= found.worst_bytes <= found.reserved_bytes
    if not variables_share(graph, plan):  # they take less than in the first step from then on
        assert exact.peak_bytes <= found.usual_bytes
    given = sum(sum(node.nbytes) for node in graph.nodes if node.op == "_Arg")
    kept = given + sum(map(graph.nbytes, graph.outputs))  # by the caller, for the next step
    assert found.worst_bytes < 2 * (exact.peak_bytes + kept) + 1
    assert found.fits


def variables_share(graph: Graph, plan: Plan) -> bool:
    """Whether a variable is assigned another one's value, and so has its buffer, after a step."""
    after = [new for _, new in lifetimes(program(graph, plan), Costs().granularity).variables]
    return len(set(after)) < len(after)
