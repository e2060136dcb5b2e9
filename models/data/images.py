"""Handwritten digits that come with scikit-learn (1,797 of 8 x 8), enlarged, moved and noisy.

Where scikit-learn is not installed the pictures are noise of the same sizes, as good for measuring.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

CLASSES = 10

_NOISE = 0.05


@functools.cache
def _scans() -> tuple[np.ndarray, np.ndarray]:
    """All digits, (1797, 8, 8, 1) uint8 from 0 to 16, and their labels, int32."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        random = np.random.default_rng(0)
        scans = random.integers(0, 17, (1797, 8, 8, 1), np.uint8)
        return scans, random.integers(0, CLASSES, 1797, np.int32)

    scans = load_digits()
    return scans.images.astype(np.uint8)[..., np.newaxis], scans.target.astype(np.int32)


def digits(batch: int, side: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (images, labels): (batch, side, side, 1) float32 and (batch,) int32.

    Each picture is a digit seven eighths of the side high, somewhere in the picture, under
    noise; the same ones in every run. Ink is 1, paper 0.
    """
    height = side * 7 // 8

    def place(scan: tf.Tensor, label: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scan = tf.image.resize(scan, (height, height)) / 16.0
        top, left = (
            tf.random.stateless_uniform((), key + i, 0, side - height, tf.int32) for i in range(2)
        )
        image = tf.image.pad_to_bounding_box(scan, top, left, side, side)
        noise = tf.random.stateless_normal((side, side, 1), key + 2, stddev=_NOISE)
        return tf.ensure_shape(image + noise, (side, side, 1)), label

    return _drawn(seed).map(place).batch(batch, drop_remainder=True).prefetch(1)


def coloured(batch: int, side: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (images,): (batch, side, side, 3) float32 from -1 to 1, each digit of some colour."""

    def paint(scan: tf.Tensor, _: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor]:
        colour = tf.random.stateless_uniform((3,), key)
        return (tf.image.resize(scan, (side, side)) / 8.0 * colour - 1.0,)

    return _drawn(seed).map(paint).batch(batch, drop_remainder=True).prefetch(1)


def _drawn(seed: int) -> tf.data.Dataset:
    """Endless (scan, label, key for random numbers) of digits drawn at random."""
    scans, labels = (tf.constant(array) for array in _scans())

    def draw(random: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        number = tf.math.floormod(random, len(labels))
        key = tf.stack([random, tf.constant(seed, tf.int64)])
        return scans[number], labels[number], key

    return tf.data.Dataset.random(seed).map(draw)
