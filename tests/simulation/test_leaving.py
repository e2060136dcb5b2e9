"""What is free once variables have left, beside what was free before."""

from __future__ import annotations

import pytest

from tfmem.costs.types import Home
from tfmem.simulation.leaving import with_left

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
