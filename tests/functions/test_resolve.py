"""What is asked of the planner: the room that an allocator has."""

from __future__ import annotations

import pytest

from tfmem.functions import resolve
from tfmem.planning.request import Request
from tfmem.runtime import host

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "budget", "is_far"),
    [
        (64 * GIB, 2 * GIB, True),  # far above the budget
        (64 * GIB, 60 * GIB, True),  # a CPU's default limit, above what the machine has
        (20 * GIB, 10 * GIB, False),
        (20 * GIB, None, True),
    ],
)
def test_a_limit_that_is_far_away_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, limit: int, budget: int | None, is_far: bool
) -> None:
    """To claim what the machine does not have takes ten seconds, and fails."""
    monkeypatch.setattr(host, "free_bytes", lambda _: 24 * GIB)
    monkeypatch.setattr(resolve.memory, "memory_info", lambda _: (GIB, GIB))
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert resolve._is_far(limit, Request(budget=budget, device=device)) == is_far
