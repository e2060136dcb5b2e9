"""Minimum cuts against all of them, tried one by one."""

from __future__ import annotations

import itertools
import random

import pytest

from tfmem.graph.cut import Network


def least_target_side(
    edges: dict[tuple[str, str], int | None], inner: list[str]
) -> tuple[float, set[str]]:
    """The cheapest cut, and of equal ones the smallest side of the target, by trying all."""
    best = (float("inf"), len(inner) + 1, set())
    for count in range(len(inner) + 1):
        for chosen in itertools.combinations(inner, count):
            side = {"t", *chosen}
            crossing = [c for (a, b), c in edges.items() if a not in side and b in side]
            cost = float("inf") if None in crossing else sum(c for c in crossing if c is not None)
            best = min(best, (cost, len(side), side), key=lambda one: one[:2])
    return best[0], best[2]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("scale", [1, 2**40])
def test_the_cut_is_the_cheapest_one(seed: int, scale: int) -> None:
    """Scaled by 2**40 capacities no longer fit in 32 bits, and are cut in coarser units."""
    rng = random.Random(seed)
    inner = [f"n{i}" for i in range(6)]
    edges: dict[tuple[str, str], int | None] = {}
    for _ in range(14):
        a, b = rng.sample(["s", "t", *inner], 2)
        if b != "s" and a != "t":
            is_free = a != "s" and b != "t" and rng.random() < 0.2
            edges[a, b] = None if is_free else scale * rng.randint(1, 9)
    network = Network()
    for (a, b), capacity in edges.items():
        network.add(a, b, capacity)
    cost, side = least_target_side(edges, inner)
    assert cost < float("inf")
    assert network.target_side("s", "t") == side


def test_what_has_no_edge_is_on_no_side() -> None:
    network = Network()
    assert network.target_side("s", "t") == {"t"}


@pytest.mark.parametrize("seed", range(20))
def test_small_capacities_among_large_ones_are_not_lost(seed: int) -> None:
    """The cut costs at most what rounding adds, and what costs nothing is still cut for nothing."""
    rng = random.Random(seed)
    inner = [f"n{i}" for i in range(6)]
    network, edges = Network(), {}
    for _ in range(14):
        a, b = rng.sample(["s", "t", *inner], 2)
        if b != "s" and a != "t":
            edges[a, b] = rng.choice((rng.randint(1, 1600), rng.randint(10**11, 10**12)))
            network.add(a, b, edges[a, b])
    side = network.target_side("s", "t")
    cost = sum(c for (a, b), c in edges.items() if a not in side and b in side)
    best, _ = least_target_side(dict(edges), inner)
    assert "t" in side
    assert "s" not in side
    assert cost <= best + len(edges) * sum(edges.values()) // 2**29
    assert bool(cost) == bool(best)
