"""What steps of a program take in the allocator, over several replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfmem.simulation.allocator import Bfc

USUAL = 0.9
"""Part of the steps of the first process whose peaks are within the predicted one. Runs are
measured by their largest step of a few; nearer to 1 predicts what is rarely seen."""


@dataclass(frozen=True)
class Allocation:
    """What a program takes in the allocator.

    Attributes:
      worst_bytes: most bytes in use, as `get_memory_info` counts them, in any of the steps.
      usual_bytes: the most in nine steps of ten of the first process: the padding differs from step
        to step.
      reserved_bytes: bytes of all regions at the end.
      fits: whether the room, if it is bounded, was enough.
    """

    worst_bytes: int
    usual_bytes: int
    reserved_bytes: int
    fits: bool


def allocation_of(pools: Sequence[Bfc], peaks: Sequence[Sequence[int]]) -> Allocation:
    """What replays took: the allocator of each, and its peak in each step."""
    usual = int(np.quantile(peaks[0], USUAL, method="higher"))
    worst = max(map(max, peaks))
    return Allocation(worst, usual, pools[0].reserved, all(pool.fits for pool in pools))
