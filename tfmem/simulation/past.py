"""What ran before in a process whose allocator grows."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tfmem.costs.types import GRAIN
from tfmem.simulation.allocator import Bfc

LARGE_HOLES = 6
"""Large holes that what ran before left in all growing allocators but the first. More pad more."""

SMALL_HOLES, SMALL_HOLE_SIZES = 16, tuple(GRAIN << shift for shift in range(7))
"""Small holes of each size (bytes) that building a model leaves. Without them small tensors break
up large free chunks more than was measured: a ResNet-50 was predicted 3 % too high."""


def with_past(seed: int, sizes: Sequence[int]) -> Bfc:
    """An allocator of a process that has built a model, and but for seed 0 run others before.

    What ran before had tensors of such sizes, and small ones of less than a thousandth of the
    largest.
    """
    choose, pool = random.Random(seed), Bfc()
    sizes = [size for size in sizes if size >= GRAIN] or [GRAIN]
    holes = [
        size for size in SMALL_HOLE_SIZES for _ in range(SMALL_HOLES) if size * 1024 < max(sizes)
    ]
    if seed:
        holes += [choose.choice(sizes) for _ in range(LARGE_HOLES)]
    pool.leave_holes(holes)
    return pool
