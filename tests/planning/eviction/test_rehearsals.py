"""Rehearsals under many limits: none is made twice, none goes on that is slower than another."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.eviction.test_rehearsal import EXAMPLE, SWAP_ONLY, problem_of, problem_of_graph
from tests.support.graphs import DEVICE, HOST, graphs, unet
from tfmem.costs.static import static_costs
from tfmem.errors import BudgetError
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.planning.eviction import rehearsals
from tfmem.planning.eviction.floor import floor_bytes
from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.rehearsal import Slower, Unreachable, rehearse
from tfmem.planning.eviction.rehearsals import Rehearsals
from tfmem.planning.eviction.schedule import Schedule
from tfmem.planning.eviction.scores import Scoring
from tfmem.planning.request import TECHNIQUES, Request
from tfmem.planning.search import choose


@settings(max_examples=60, deadline=None)
@given(graphs, st.integers(0, 10**6))
def test_they_are_what_each_limit_alone_would_give(graph: Graph, seed: int) -> None:
    problem, choose = problem_of_graph(graph), random.Random(seed)
    known = Rehearsals(problem)
    most = rehearse(problem, math.inf, Scoring()).peak_bytes
    for _ in range(12):
        limit = choose.randint(problem.fixed_bytes, most + 1)
        for scoring in (Scoring(), Scoring(1.0, 0.5), SWAP_ONLY):
            alone = _made(rehearse, problem, limit, scoring)
            assert _made(known.under, limit, scoring) == alone


def _made(make: Callable[..., Schedule], *arguments: object) -> Schedule | None:
    try:
        return make(*arguments)
    except Unreachable:
        return None


@settings(max_examples=100, deadline=None)
@given(graphs, st.integers(0, 10**6))
def test_nothing_is_rehearsed_below_the_floor(graph: Graph, seed: int) -> None:
    """What is kept at all is at or above it; it is above what is there for the whole step."""
    problem, choose = problem_of_graph(graph), random.Random(seed)
    scoring = choose.choice((Scoring(), SWAP_ONLY, Scoring(copy_factor=1.0)))
    floor = floor_bytes(problem, scoring.may_recompute, scoring.copy_factor < math.inf)
    assert floor >= problem.fixed_bytes
    for limit in range(floor - 1, max(problem.fixed_bytes, floor - 40), -7):
        with pytest.raises(Unreachable):
            rehearse(problem, limit, scoring)


def test_the_floor_of_an_example() -> None:
    """`c` is made from `b` beside what cannot leave: `a`, if nothing may run again."""
    problem = problem_of(EXAMPLE)
    assert floor_bytes(problem, may_recompute=True, may_swap=False) == 8
    assert floor_bytes(problem, may_recompute=False, may_swap=True) == 8
    assert floor_bytes(problem, may_recompute=False, may_swap=False) == 12
    returned = problem_of(EXAMPLE.replace("return", "return a:0"))
    assert floor_bytes(returned, may_recompute=True, may_swap=True) == 12


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits under which something is rehearsed, as that is done."""
    found: list[float] = []

    def counted(problem: EvictionProblem, limit: float, *others: object) -> Schedule:
        found.append(limit)
        return rehearse(problem, limit, *others)

    monkeypatch.setattr(rehearsals, "rehearse", counted)
    return found


def test_what_keeps_a_lower_limit_too_is_not_rehearsed_for_it(limits: list[float]) -> None:
    known = Rehearsals(problem_of(EXAMPLE))
    for limit in (11, 10, 9, 8, 11.5, math.inf):
        assert known.under(limit, Scoring()).peak_bytes == (8 if limit < math.inf else 12)
    assert limits == [11, 11.5, math.inf]


def test_no_limit_is_below_what_is_there_as_the_step_begins(limits: list[float]) -> None:
    x, a = parse(f"x = _Arg() [100] @{DEVICE}\na = MatMul() [] @{DEVICE}\nreturn").nodes
    graph = Graph((dataclasses.replace(x, is_owned=True), a), ())
    known = Rehearsals(problem_of_graph(graph))
    assert [known.under(limit, Scoring()).peak_bytes for limit in (200, 99, 5)] == [100] * 3
    assert limits == [200]


@pytest.mark.parametrize("seconds", [5.0, 4.5])
def test_one_that_is_slower_than_another_is_given_up(seconds: float) -> None:
    """At 8 bytes `a` runs twice: five seconds, one behind the plain order."""
    problem = problem_of(EXAMPLE)
    assert rehearse(problem, 8, Scoring(), 5.5).seconds == 5.0
    for known in (Rehearsals(problem), _that_know(problem)):
        with pytest.raises(Slower):
            known.under(8, Scoring(), seconds)
    with pytest.raises(Unreachable):
        Rehearsals(problem).under(7, Scoring(), seconds)


def _that_know(problem: EvictionProblem) -> Rehearsals:
    known = Rehearsals(problem)
    assert known.under(8, Scoring()).seconds == 5.0
    return known


def test_what_a_limit_rules_out_is_not_tried_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: dict[tuple[int, float], dict[float, bool]] = {}
    under = Rehearsals.under

    def watched(self: Rehearsals, limit: float, scoring: Scoring, *seconds: float) -> Schedule:
        tried = outcomes.setdefault((id(self), scoring.copy_factor), {})
        assert all(known or limit >= other for other, known in tried.items())
        tried.setdefault(limit, False)
        try:
            made = under(self, limit, scoring, *seconds)
        except Slower:  # than another that keeps it, however that counts copies
            of_all = [known for (problem, _), known in outcomes.items() if problem == id(self)]
            assert any(known.get(limit) for known in of_all)
            tried[limit] = True
            raise
        tried[limit] = True
        return made

    monkeypatch.setattr(Rehearsals, "under", watched)
    graph = unet(8, 1 << 16)
    costs = static_costs(graph, flops={}, device=DEVICE)
    request = Request(device=DEVICE, host=HOST, budget=1, techniques=frozenset(TECHNIQUES))
    with pytest.raises(BudgetError):
        choose(graph, costs, request)
    assert any(not all(tried.values()) for tried in outcomes.values())
