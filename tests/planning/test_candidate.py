"""What a plan is predicted to take."""

from __future__ import annotations

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.candidate import candidate
from tfmem.planning.request import Request
from tfmem.runtime.memory import MIB


def test_what_is_kept_back_does_not_hide_the_chunk_that_a_buffer_takes() -> None:
    """Of the larger chunk less is left than the other has; `a` takes that one, and all of it."""
    graph = parse(f"""
        a = MatMul() [{4 * MIB}] @{DEVICE}
        b = MatMul(a:0) [1024] @{DEVICE}
        return b:0""")
    room = (9 * MIB, 8 * MIB - 1024)
    for window in (1, 2):
        plan = Plan(order=("a", "b"), window=window, device=DEVICE)
        found = candidate(graph, Costs(), plan, Request(device=DEVICE, room=room))
        assert found.fits
        assert 7 * MIB < found.worst_bytes < 9 * MIB
