"""When what comes back begins to."""

from __future__ import annotations

import pytest

from tests.support.graphs import DEVICE, HOST
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.planning.alternatives import candidate_sets, least_peak_order
from tfmem.planning.request import Request


@pytest.mark.parametrize(
    ("node", "trigger"),
    [
        ("a = MatMul(x:0, k:0) [256]", "a"),
        ("a = MatMul(k:0) [256]", ""),  # nobody reads the argument
    ],
)
def test_nothing_comes_back_before_arguments_that_lie_on_the_host(node: str, trigger: str) -> None:
    """Their copies begin with the step, and one of a weight that begins first holds them up."""
    assert fetched(node, {"k": 0.01, "a": 0.1, "b": 0.1}) == {"v1": trigger}


def test_what_is_read_late_is_not_waited_for() -> None:
    """If the first node that reads an argument begins after that would have come in any case."""
    assert fetched("a = MatMul(x:0, k:0) [256]", {"k": 9.0, "a": 0.1, "b": 0.1}) == {"v1": ""}


def fetched(node: str, seconds: dict[str, float]) -> dict[str, str]:
    """The trigger of each value that comes from the host: of a large weight, over a slow link."""
    graph = parse(f"""
        x = _Arg() [2048] @{DEVICE}
        v = _Variable() [8192] @{HOST}
        v1 = ReadVariableOp(v:0) [8192] @{HOST}
        k = MatMul() [256] @{DEVICE}
        {node} @{DEVICE}
        b = MatMul(a:0) [256] @{DEVICE}
        c = MatMul(b:0, v1:0) [256] @{DEVICE}
        return c:0""")
    costs = Costs(seconds, to_host=1024.0, from_host=1024.0, latency=0.0)
    request = Request(device=DEVICE, host=HOST, techniques=frozenset({"order", "swap"}))
    (found,) = candidate_sets(graph, costs, request, least_peak_order(graph, costs, request))
    made = found.at(found.limit(-20))
    assert made is not None
    return {one.value.node: one.fetches[0].trigger for one in made.plan.transfers}
