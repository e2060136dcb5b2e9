"""Best fit in C is best fit in Python."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from typing import Any

import pytest

from tfmem.simulation import best_fit

compiled = pytest.importorskip(
    "tfmem.simulation._best_fit", reason="no compiler where tfmem was installed"
)

LARGE = 3 * best_fit.MOST_PADDING


def pool_of(module: Any, spans: list[tuple[int, int, bool]]) -> Any:
    """A pool with chunks, behind which it adds one of a size asked for, and one that is large."""

    class Pool(module.BestFit):
        end = 10**12

        def extend(self, size: int) -> None:
            self.lay([(self.end, size + LARGE * (size % 512 > 0), True)])
            self.end += 10**12

    pool = Pool()
    return pool, pool.lay(spans)


def laid(choose: random.Random) -> list[tuple[int, int, bool]]:
    """Chunks by address, some of them side by side: address, bytes, whether they are free."""
    found, end = [], 1
    for _ in range(choose.randint(0, 12)):
        begin, size = end + choose.choice((0, 0, 256)), 256 * choose.randint(1, 12)
        found.append((begin, size, choose.random() < 0.5))
        end = begin + size
    return found


def asked_for(choose: random.Random, count: int, scale: int) -> tuple[tuple[int, int], ...]:
    """Requests: ends of buffers that are there, that are not there, and that are adopted."""
    held, asked = set[int](), []
    for _ in range(count):
        number, size = choose.randrange(12), choose.choice((-1, 0, *range(1, 9)))
        is_end = number in held or size <= 0
        asked.append((number, -256 if size < 0 else 0 if is_end else scale * size))
        (held.discard if is_end else held.add)(number)
    return tuple(asked)


@pytest.mark.parametrize("scale", [256, LARGE // 2])
def test_both_do_the_same(scale: int) -> None:
    for seed in range(300):
        choose = random.Random(seed)
        spans, asked = laid(choose), asked_for(choose, 60, scale)
        begin, bound, served = choose.randrange(9), choose.choice((20.0, 60.0, math.inf)), []
        for module in (best_fit, compiled):
            pool, made = pool_of(module, spans)
            seen, chunks, position, most = [repr(made)], {}, begin, pool.in_use
            for chunk in [one for one in made if not one.is_free][::2]:
                pool.release(chunk)
            while position < len(asked) and most < scale * bound:
                position, most = pool.serve(asked, chunks, position, most, scale * bound)
                places = {number: (one.begin, one.size) for number, one in chunks.items()}
                seen.append((position, most, places, pool.in_use, pool.free_places))
                number, nbytes = asked[position] if position < len(asked) else (-1, 0)
                if nbytes < 0 and number in chunks:
                    pool.release(chunks.pop(number))
                position += 1
            seen.append([pool.has(scale * size) for size in range(12)])
            served.append(seen)
        assert served[0] == served[1]
    assert compiled.MOST_PADDING == best_fit.MOST_PADDING


@pytest.mark.parametrize("module", [best_fit, compiled], ids=["Python", "C"])
def test_what_no_pool_can_do_is_told(module: Any) -> None:
    pool, (first, second) = pool_of(module, [(1, 256, False), (257, 256, False)])
    pool.release(second)
    with pytest.raises(ValueError, match="Released twice"):
        pool.release(second)
    with pytest.raises(NotImplementedError):
        module.BestFit().allocate(256)
    pool.release(first)
    assert (pool.in_use, pool.free_places) == (0, ((512, 1),))


def test_a_chunk_outlives_its_pool_and_is_none_of_another() -> None:
    pool, (first, second) = pool_of(compiled, [(1, 256, False), (257, 256, False)])
    other, _ = pool_of(compiled, [])
    with pytest.raises(ValueError, match="elsewhere"):
        other.release(first)
    with pytest.raises(TypeError, match="Not a chunk"):
        pool.release(None)
    pool.release(second)
    pool.release(first)  # the second is a part of it now
    del pool
    gc.collect()
    assert (first.begin, first.size, second.begin) == (1, 512, 257)
    with pytest.raises(ValueError, match="elsewhere"):
        other.release(second)


def test_nothing_is_left_of_pools_that_are_gone() -> None:
    kind = type(pool_of(compiled, [])[0])

    def pools(count: int) -> int:
        for _ in range(count):
            pool = kind()
            pool.lay([(1, 2**20, True)])
            chunks: dict[int, Any] = {}
            asked = tuple((number % 50, 256 * (number % 3)) for number in range(200))
            pool.serve(asked, chunks, 0, 0, math.inf)
            del pool, chunks, asked
        gc.collect()
        here = tracemalloc.Filter(True, __file__)
        left = tracemalloc.take_snapshot().filter_traces([here]).statistics("filename")
        return sum(one.size for one in left)

    tracemalloc.start()
    try:
        before = pools(10)
        assert pools(500) < before + 5000  # 10 bytes of each
    finally:
        tracemalloc.stop()
