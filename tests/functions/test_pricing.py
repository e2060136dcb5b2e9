"""What a function's prices are made of."""

from __future__ import annotations

import pytest

from tests.support.graphs import DEVICE
from tfmem.functions import pricing
from tfmem.graph.text import parse
from tfmem.planning.request import Request

HOST = "/job:localhost/replica:0/task:0/device:CPU:1"


@pytest.mark.parametrize(
    ("home", "techniques", "is_probed"),
    [
        (HOST, {"order"}, True),  # its reads cross whatever the plan does
        (DEVICE, {"order"}, False),
        (DEVICE, {"order", "swap"}, True),
    ],
)
def test_a_link_is_probed_where_anything_may_cross_it(
    home: str, techniques: set[str], is_probed: bool
) -> None:
    graph = parse(f"""
        w = _Variable() [4096] @{home}
        r = ReadVariableOp(w:0) [4096] @{home}
        y = Relu(r:0) [4096] @{DEVICE}
        return y:0""")
    request = Request(device=DEVICE, host=HOST, budget=2**20, techniques=frozenset(techniques))
    assert pricing._crosses(graph, request) == is_probed
    assert not pricing._crosses(graph, Request(device=DEVICE, techniques=request.techniques))
