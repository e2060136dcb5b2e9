"""Which orders are looked at beside one another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.graphs import DEVICE, HOST, training_chain
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.planning.alternatives import COMPARED, _faster
from tfmem.planning.candidates import SMALL, Candidates
from tfmem.planning.request import TECHNIQUES, Request


@dataclass
class Known:
    """Candidates whose peak and seconds under each of the limits are known."""

    peak_bytes: int
    seconds: Mapping[int, float]

    @property
    def unlimited(self) -> Any:
        return SimpleNamespace(peak_bytes=self.peak_bytes)

    def limit(self, number: int) -> int:
        return number

    def seconds_within(self, limit: int, most: float = math.inf) -> float:
        return self.seconds[limit] if self.seconds[limit] < most else math.inf


def seconds(*each: float) -> Mapping[int, float]:
    return dict(zip(COMPARED, each, strict=True))


@pytest.mark.parametrize(
    ("little", "shrinking", "expected"),
    [
        # An unrolled LSTM with its weights on the host: 28 MB in 1.1 s, or less at all costs.
        ((math.inf, math.inf, math.inf, 1.1), (math.inf, math.inf, 5.6, 4.8), ["much", "little"]),
        ((math.inf, math.inf, math.inf, 1.1), (math.inf, math.inf, 5.6, 1.15), ["much"]),
        ((math.inf, 1.3, 1.2, 1.1), (math.inf, 1.5, 1.4, 1.3), ["little"]),
        ((math.inf,) * 4, (math.inf,) * 4, ["little"]),
    ],
)
def test_an_order_that_takes_little_by_itself_is_looked_at_beside_one_that_can_be_made_smaller(
    little: tuple[float, ...], shrinking: tuple[float, ...], expected: list[str]
) -> None:
    found = {"little": Known(28, seconds(*little)), "much": Known(107, seconds(*shrinking))}
    made: list[Candidates] = list(found.values())  # type: ignore[arg-type]
    chosen = _faster(made)
    assert [name for one in chosen for name, known in found.items() if one is known] == expected


@pytest.mark.parametrize(("layers", "ends"), [(12, False), (64, True)])
def test_the_search_of_a_graph_that_is_not_small_ends_at_the_first_plan_that_keeps_the_budget(
    layers: int, ends: bool
) -> None:
    graph = training_chain(layers, 1 << 20)
    assert (len(graph) > SMALL) == ends
    costs = Costs({node.name: 1.0 for node in graph.nodes if not node.is_input}, {})
    request = Request(techniques=frozenset({"order", "recompute"}), device=DEVICE)
    found = Candidates(graph, costs, request, [node.name for node in graph.nodes])
    budget = int(0.9 * found.unlimited.peak_bytes)
    kept = [one.keeps(budget) for one in found.below(budget)]
    assert any(kept)
    assert (True not in kept[:-1]) == ends


@pytest.mark.parametrize(("link", "copies"), [(1e3, False), (1e5, True), (1e7, True)])
def test_the_fastest_plan_for_a_limit_is_found_though_not_every_schedule_is_simulated(
    link: float, copies: bool
) -> None:
    graph = training_chain(24, 1 << 16)
    seconds = {node.name: 1.0 for node in graph.nodes if not node.is_input}
    costs = Costs(seconds, to_host=link, from_host=link)
    request = Request(techniques=frozenset(TECHNIQUES), device=DEVICE, host=HOST)
    found = Candidates(graph, costs, request, [node.name for node in graph.nodes])
    limit = found.limit(8)
    made = [found._rehearse(limit, factor, math.inf) for factor in found._copy_factors()]
    ranks = [found._candidate(one, limit).rank for one in made if one]
    best = found.at(limit)
    assert best
    assert best.rank == min(ranks)
    assert bool(best.plan.transfers) == copies


def test_what_another_device_makes_is_no_eviction_where_there_is_no_host() -> None:
    """The body of a branch on a GPU, one of whose nodes has a kernel for the CPU alone."""
    graph = parse("""
        x = _Arg() [100] @cpu
        a = MatMul(x:0) [100] @cpu
        b = MatMul(a:0) [100] @cpu
        mask = MatMul() [40] @elsewhere
        c = MatMul(b:0, mask:0) [100] @cpu
        d = MatMul(c:0, a:0) [100] @cpu
        return d:0""")
    costs = Costs(dict.fromkeys(("a", "b", "mask", "c", "d"), 1.0), {}, granularity=1)
    request = Request(budget=10_000, techniques=frozenset({"order", "recompute"}), device=DEVICE)
    order = [node.name for node in graph.nodes]
    found = Candidates(graph, costs, request, order)
    assert found.problem.on_host[graph.form.number["mask"]]
    assert found.unlimited_candidate.plan.evictions == ()
