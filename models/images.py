"""Pictures of digits that every machine has: drawn from a font of 5 x 7 dots, moved and noisy."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

CLASSES = 10

_FONT = """
    .###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
    #...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
    #..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
    #.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
    ##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
    #...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
    .###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""


def digits(batch: int, side: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (images, labels): (batch, side, side, 1) float32 and (batch,) int32.

    Each picture is a digit three fifths of the side high, somewhere in the picture, under
    noise; the same ones in every run.
    """
    font = _glyphs()
    height = side * 3 // 5
    glyphs = tf.image.resize(tf.constant(font), (height, height * 5 // 7))
    width = glyphs.shape[2]

    def draw(random: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = tf.stack([random, tf.constant(seed, tf.int64)])
        label = tf.cast(tf.math.floormod(random, CLASSES), tf.int32)
        top = tf.random.stateless_uniform((), key, 0, side - height, tf.int32)
        left = tf.random.stateless_uniform((), key + 1, 0, side - width, tf.int32)
        image = tf.image.pad_to_bounding_box(glyphs[label], top, left, side, side)
        noise = tf.random.stateless_normal((side, side, 1), key + 2, stddev=0.2)
        return tf.ensure_shape(image + noise, (side, side, 1)), label

    return tf.data.Dataset.random(seed).map(draw).batch(batch, drop_remainder=True).prefetch(1)


def _glyphs() -> np.ndarray:
    """The font as (10, 7, 5, 1) zeros and ones."""
    rows = [line.split() for line in _FONT.strip().splitlines()]
    dots = [[[mark == "#" for mark in row[digit]] for row in rows] for digit in range(CLASSES)]
    return np.array(dots, np.float32)[..., np.newaxis]
