"""Real text that every machine has: the source files of Python's standard library, as bytes.

A token is a byte, so every vocabulary of 256 or more fits. The whole text is one string tensor,
whose payload TensorFlow's allocators do not count, and a batch is cut out of it at random places.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import tensorflow as tf

VOCABULARY = 256

_MAX_BYTES = 16 * 2**20  # plenty for the steps made here, read in a tenth of a second


@functools.cache
def corpus() -> bytes:
    """The first 16 MiB of the standard library's sources, files in sorted order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    installed = ("site-packages", "dist-packages")
    files = sorted(p for p in root.rglob("*.py") if not any(part in installed for part in p.parts))

    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= _MAX_BYTES:
            break
    return bytes(text[:_MAX_BYTES])


def windows(batch: int, length: int, seed: int = 0) -> tf.data.Dataset:
    """Endless batches of windows of the text: (batch, length) int32, the same in every run."""
    text = corpus()
    source = tf.constant(text)
    last = len(text) - length

    def cut(random: tf.Tensor) -> tf.Tensor:
        place = tf.cast(tf.math.floormod(random, last), tf.int32)
        window = tf.io.decode_raw(tf.strings.substr(source, place, length), tf.uint8)
        return tf.reshape(tf.cast(window, tf.int32), (length,))

    return tf.data.Dataset.random(seed).map(cut).batch(batch, drop_remainder=True).prefetch(1)


def batches(batch: int, length: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (tokens, targets), each (batch, length) int32; a target is the byte that follows."""
    return windows(batch, length + 1, seed).map(lambda tokens: (tokens[:, :-1], tokens[:, 1:]))


def pairs(batch: int, source: int, target: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (source, inputs, targets) for an encoder and a decoder that continues the text.

    The decoder's targets follow the source; its inputs are the targets one byte earlier. Shapes
    (batch, source), (batch, target), (batch, target), int32.
    """
    return windows(batch, source + target, seed).map(
        lambda tokens: (tokens[:, :source], tokens[:, source - 1 : -1], tokens[:, source:])
    )
