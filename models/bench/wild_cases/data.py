"""Batches as users make them: a new one each step, from NumPy or through tf.data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

Draw = Callable[[np.random.Generator], np.ndarray]
"""Makes one array of a batch."""

_KEPT = 4
"""Batches of which a tf.data pipeline's arrays consist."""


def batches(*draws: Draw, seed: int = 0) -> Iterator[tuple[tf.Tensor, ...]]:
    """Tensors made by tf.constant from new NumPy arrays, one from each of `draws`."""
    random = np.random.default_rng(seed)
    while True:
        yield tuple(tf.constant(draw(random)) for draw in draws)


def dataset(*draws: Draw, seed: int = 0) -> tf.data.Dataset:
    """A shuffled, endless tf.data pipeline over arrays whose rows make batches of one size."""
    random = np.random.default_rng(seed)
    drawn = [[draw(random) for draw in draws] for _ in range(_KEPT)]
    size = len(drawn[0][0])
    arrays = tuple(map(np.concatenate, zip(*drawn, strict=True)))
    rows = tf.data.Dataset.from_tensor_slices(arrays)
    shuffled = rows.shuffle(_KEPT * size, seed=seed).repeat().batch(size, drop_remainder=True)
    return shuffled.prefetch(1)


def normals(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Draw:
    """Normally distributed numbers."""
    return lambda random: (scale * random.standard_normal(shape)).astype(dtype)


def images(batch: int, size: int, channels: int = 3) -> Draw:
    """Images of noise, [batch, size, size, channels] in 0 to 1."""
    return lambda random: random.random((batch, size, size, channels), np.float32)


def integers(*shape: int, below: int) -> Draw:
    """Whole numbers of 32 bits from 0 on: labels, tokens, ids."""
    return lambda random: random.integers(0, below, shape, np.int32)


def ones(*shape: int) -> Draw:
    """32-bit ones, as an attention mask that hides nothing."""
    return lambda random: np.ones(shape, np.int32)
