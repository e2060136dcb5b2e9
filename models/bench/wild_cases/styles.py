"""Functions as people write them, without a library but TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, normals

_WIDTH = 256


def layers(count: int, width: int = _WIDTH, seed: int = 1) -> list[tf.Variable]:
    """Square matrices."""
    scale = 1.5 / width**0.5
    return [
        tf.Variable(scale * tf.random.stateless_normal([width, width], [number, seed]))
        for number in range(count)
    ]


def descend(variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]) -> None:
    """Plain gradient descent."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)


@case("tensorflow")
def mlp_gelu() -> Work:
    """An MLP with gelu and a mean, whose gradient holds constants that TensorFlow folds."""
    weights = layers(12)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.gelu(y @ w)
            loss = tf.reduce_mean(y**2)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, batches(normals(4096, _WIDTH)))


@case("tensorflow")
def assertions() -> Work:
    """A step that checks its numbers."""
    weights = layers(12)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.gelu(y @ w)
            tf.debugging.assert_less(tf.reduce_max(y), 1e6)
            loss = tf.reduce_mean(y**2)
        tf.debugging.assert_all_finite(loss, "the loss")
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, batches(normals(2048, _WIDTH)))
