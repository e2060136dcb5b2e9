"""The allocator's rules, and what they add to a simulated peak."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import DEVICE, graphs, training_chain
from tfmem.allocator import Bfc
from tfmem.costs import Costs
from tfmem.ir import Graph
from tfmem.plan import Plan
from tfmem.simulate import allocate, simulate

MIB = 2**20


def test_a_chunk_is_split_only_if_it_is_twice_the_request() -> None:
    pool = Bfc()
    first = pool.allocate(2 * MIB)  # the whole first region
    pool.release(first)
    assert pool.allocate(MIB + 256).size == 2 * MIB
    assert pool.in_use == 2 * MIB
    pool = Bfc()
    assert pool.allocate(MIB).size == MIB
    assert pool.reserved == 2 * MIB


def test_regions_double_and_neighbours_join() -> None:
    pool = Bfc()
    chunks = [pool.allocate(MIB // 2) for _ in range(4)]
    pool.allocate(256)
    assert pool.reserved == 2 * MIB + 4 * MIB
    for chunk in chunks[1:3]:
        pool.release(chunk)
    assert pool.allocate(MIB).begin == chunks[1].begin
    assert pool.allocate(30 * MIB).size == 32 * MIB
    assert pool.reserved == (2 + 4 + 32) * MIB


def test_a_limit_is_one_region_and_is_not_passed() -> None:
    pool = Bfc(limit=5 * MIB)
    chunks = [pool.allocate(2 * MIB) for _ in range(2)]
    assert pool.fits
    assert pool.reserved == 5 * MIB
    pool.release(chunks[0])
    pool.allocate(2 * MIB + 256)  # three MiB are free, but not together
    assert not pool.fits


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4000), st.booleans()), max_size=60))
def test_chunks_never_overlap_and_everything_comes_back(
    requests: list[tuple[int, bool]],
) -> None:
    pool, held = Bfc(), []
    for size, is_release in requests:
        if is_release and held:
            pool.release(held.pop(size % len(held)))
        else:
            held.append(pool.allocate(256 * size))
        spans = sorted((c.begin, c.begin + c.size) for c in (*held, *pool.chunks.values()))
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert sum(end - begin for begin, end in spans) == pool.reserved
        assert pool.in_use == sum(chunk.size for chunk in held)
    for chunk in held:
        pool.release(chunk)
    assert pool.in_use == 0


@settings(max_examples=50, deadline=None)
@given(graphs)
def test_padding_only_adds(graph: Graph) -> None:
    plan = Plan(device=DEVICE)
    found, exact = allocate(graph, Costs(), plan), simulate(graph, Costs(), plan)
    assert exact.peak_bytes <= found.peak_bytes <= found.reserved_bytes
    assert found.peak_bytes < 2 * exact.peak_bytes + 1
    assert found.fits


def test_equal_sizes_need_no_padding_and_a_limit_at_the_peak_is_enough() -> None:
    graph, plan = training_chain(8, 4 * MIB), Plan(device=DEVICE)
    exact = simulate(graph, Costs(), plan).peak_bytes
    assert allocate(graph, Costs(), plan).peak_bytes == exact
    assert not allocate(graph, Costs(), plan, limit=exact - MIB).fits
