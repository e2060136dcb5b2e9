"""What steps of a program take in the allocator, over several replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfmem.simulation.allocator import Bfc

USUAL = 0.9
"""Part of the steps of a usual run whose peaks are within the predicted one. Runs are measured by
their largest step of a few; nearer to 1 predicts what is rarely seen."""


@dataclass(frozen=True)
class Allocation:
    """What a program takes in the allocator.

    Attributes:
      worst_bytes: most bytes in use, as `get_memory_info` counts them, in any of the steps.
      usual_bytes: the most in nine steps of ten of a usual run: the padding differs from step to
        step.
      reserved_bytes: bytes of all regions at the end.
      fits: whether the room, if it is bounded, was enough.
    """

    worst_bytes: int
    usual_bytes: int
    reserved_bytes: int
    fits: bool


def allocation_of(
    pools: Sequence[Bfc], peaks: Sequence[Sequence[int]], usual: Sequence[Sequence[int]]
) -> Allocation:
    """What replays took.

    Args:
      pools: the allocator of each.
      peaks: of each, its peak in each step.
      usual: those of the replays that are usual; the first if none is.
    """
    most = max(int(np.quantile(one, USUAL, method="higher")) for one in usual or peaks[:1])
    worst = max(map(max, peaks))
    return Allocation(worst, most, pools[0].reserved, all(pool.fits for pool in pools))
