"""Replays end as soon as nothing more is worth knowing."""

from __future__ import annotations

import pytest

from tests.simulation.test_allocator import IN_THE_MIDDLE, step_of
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.simulation.allocator import Bfc, NoRoom


def test_an_allocator_may_raise_where_it_has_no_room() -> None:
    pool = Bfc((1024,), raises=True)
    pool.allocate(512)
    with pytest.raises(NoRoom):
        pool.allocate(1024)
    assert (pool.fits, pool.in_use) == (False, 512)


def test_a_replay_ends_where_no_less_is_worth_knowing() -> None:
    step = step_of(parse(IN_THE_MIDDLE), Costs())
    whole = step.within_apart((2**24,), (), 3)
    assert whole.fits
    most = whole.worst_bytes
    assert step.within_apart((2**24,), (), 3, bound=most + 1) == whole
    assert most // 2 <= step.within_apart((2**24,), (), 3, bound=most // 2).worst_bytes <= most
