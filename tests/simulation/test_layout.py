"""Chunks that are kept apart where much more is free than steps take."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs
from tfmem.errors import BudgetError
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.candidate import PADDED
from tfmem.planning.request import Request
from tfmem.planning.search import choose
from tfmem.simulation.layout import LEAST_OWN, layout, within
from tfmem.simulation.simulate import step_of

MIB = 2**20
MUCH = (4096 * MIB,)
SMALL = MIB // 2
"""Bytes that walls and holes take, and more."""


def padded(scale: int) -> str:
    """`d` finds where `b` was, of which less than half is too much: 9 instead of 7 are in use.

    | b b b b b | c |     then    | d d d . . | c | e e e |
    """
    return f"""
    x = _Arg() [1024] @{DEVICE}
    b = MatMul(x:0) [{5 * scale}] @{DEVICE}
    c = MatMul(b:0) [{scale}] @{DEVICE}
    d = MatMul(c:0) [{3 * scale}] @{DEVICE}
    e = MatMul(d:0) [{3 * scale}] @{DEVICE}
    f = MatMul(c:0, d:0, e:0) [1024] @{DEVICE}
    return f:0"""


def test_buffers_that_would_be_padded_have_chunks_of_their_own() -> None:
    step, steps = step_of(parse(padded(MIB)), Costs(), Plan(device=DEVICE), 7 * MIB + SMALL)
    pieces = (step.piece,) * step.pieces
    assert step.within_apart(MUCH, pieces, steps).worst_bytes > 9 * MIB
    found = within(step, MUCH, steps)
    assert found.fits
    assert found.worst_bytes <= 7 * MIB + SMALL
    apart = Counter(layout([(step, steps)], MUCH) or ())
    assert apart >= Counter({5 * MIB: 1, 3 * MIB: 2, MIB: 1})


def test_they_have_them_where_padding_is_within_what_is_allowed_too() -> None:
    step, steps = step_of(parse(padded(MIB)), Costs(), Plan(device=DEVICE), 10 * MIB)
    assert within(step, MUCH, steps).worst_bytes <= 7 * MIB + SMALL


def test_nothing_is_kept_apart_where_nothing_is_padded_or_bounded() -> None:
    exact = f"""
    x = _Arg() [1024] @{DEVICE}
    b = MatMul(x:0) [{MIB}] @{DEVICE}
    return b:0"""
    for text, most in ((exact, 10.0 * MIB), (padded(MIB), math.inf)):
        step, steps = step_of(parse(text), Costs(), Plan(device=DEVICE), most)
        assert layout([(step, steps)], MUCH) == (step.piece,) * step.pieces


def test_functions_that_take_turns_share_chunks_of_their_own() -> None:
    plans = [
        step_of(parse(padded(scale)), Costs(), Plan(device=DEVICE), 7 * scale + SMALL)
        for scale in (MIB, 5 * MIB)
    ]
    apart = layout(plans, MUCH)
    assert apart
    assert Counter(apart)[5 * MIB] == 1  # the largest of one, the least of the other
    for step, steps in plans:
        assert step.within_apart(MUCH, apart, steps).worst_bytes <= step.most


def test_where_much_is_free_few_ways_are_tried() -> None:
    step, steps = step_of(parse(padded(MIB)), Costs(), Plan(device=DEVICE), MIB)
    with mock.patch.object(step, "within_apart", wraps=step.within_apart) as tried:
        assert layout([(step, steps)], MUCH)
    assert 1 < tried.call_count <= 1 + len(LEAST_OWN)


def test_the_least_that_is_named_is_hardly_padded() -> None:
    graph = parse(padded(MIB))
    request = Request(device=DEVICE, budget=MIB, techniques=frozenset({"order"}), room=MUCH)
    with pytest.raises(BudgetError) as refused:
        choose(graph, Costs(), request)
    least = refused.value.least_bytes or 0
    assert 7 * MIB < least <= 7 * MIB * (1 + PADDED) + SMALL
    assert choose(graph, Costs(), replace(request, budget=least)).keeps(least)
