"""How far numbers are from others that should be the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from models.bench.experiment import Row


def difference(before: str, after: str) -> float | None:
    """Largest difference of two files of variables, relative to each variable's largest value."""
    if not Path(before).exists():
        return None
    with np.load(before) as first, np.load(after) as second:
        return max(relative_difference(first[name], second[name]) for name in first.files)


def relative_difference(before: Any, after: Any) -> float:
    """Largest difference over the largest value; 0 where both are the same bitwise."""
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if before.shape != after.shape:
        return math.inf
    largest_value = max(float(np.abs(before).max(initial=0.0)), 1e-30)
    return float(np.abs(before - after).max(initial=0.0)) / largest_value


def loss_difference(plain: Row, row: Row) -> float | None:
    """How far the losses of a row are from plain TensorFlow's, relative; None if they differ."""
    if not plain.losses or len(plain.losses) != len(row.losses):
        return None
    largest = max(map(abs, plain.losses))
    return max(abs(a - b) for a, b in zip(plain.losses, row.losses, strict=True)) / largest
