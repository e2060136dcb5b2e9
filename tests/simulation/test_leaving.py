"""What variables leave: chunks that join what is free beside them, padding that is over."""

from __future__ import annotations

import pytest

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs, Home
from tfmem.graph.text import parse
from tfmem.plan import Placement, Plan
from tfmem.simulation.leaving import padding, with_left
from tfmem.simulation.simulate import step_of

ROOM = (100, 200, 300)
PLACED = {"a": 8, "b": 16}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((), (8, 16, 100, 200, 300)),  # nothing is known of them
        (((Home("a", 10), 0),), (16, 110, 200, 300)),  # its chunk was padded
        (((0, Home("a", 10), 1),), (16, 310, 0, 300)),
        (((0, Home("a", 10), Home("b", 20), 2),), (430, 200, 0)),
        (((1, Home("a", 10), Home("stays", 50), Home("b", 20)),), (20, 100, 210, 300)),
        (((Home("stays", 50), 2),), (8, 16, 100, 200, 300)),
        (((Home("a", 10),), (Home("b", 20), 1)), (10, 100, 220, 300)),
    ],
)
def test_what_leaves_joins_what_is_free_beside_it(
    blocks: tuple[tuple[int | Home, ...], ...], expected: tuple[int, ...]
) -> None:
    assert with_left(ROOM, blocks, PLACED) == expected


def test_what_variables_are_padded_by_counts_until_they_leave() -> None:
    graph = parse(f"""
    w = _Arg() [1000] @{DEVICE}
    b = MatMul(w:0) [4096] @{DEVICE}
    return b:0""")
    costs, stays = Costs(blocks=((Home("w", 1536), 0),)), Plan(device=DEVICE)
    placed = Plan(device=DEVICE, placements=(Placement("w"),))
    assert padding(graph, costs, stays) == 512  # a value takes whole grains
    assert padding(graph, costs, placed) == 0
    room, peaks = (2**20,), []
    for known in (Costs(), costs):
        step, steps = step_of(graph, known, stays)
        peaks.append(step.within_apart(room, (step.piece,) * step.pieces, steps).worst_bytes)
    assert peaks[1] == peaks[0] + 512
