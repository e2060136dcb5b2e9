"""Loops and branches under a tape, and others that fill something."""

from __future__ import annotations

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, normals
from models.bench.wild_cases.styles import descend, layers


@case("tensorflow")
def range_under_a_tape() -> Work:
    """A for loop over tf.range, differentiated."""
    (w,) = weights = layers(1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for _ in tf.range(20):
                x = tf.tanh(x @ w)
            loss = tf.reduce_mean(x**2)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, batches(normals(4096, 256)))
