"""Train steps with state in unusual places: each is hard to put back in a way of its own.

A case is a function without arguments that builds a model and returns its `Odd`; they are made
under `SEED`, and behave alike in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

SEED = 11


@dataclass(frozen=True)
class Odd:
    """A step, ready to train.

    Attributes:
      function: what is optimised.
      call: makes one step, `call(function)`, of the optimised function or another; its loss.
      variables: everything that a step updates.
    """

    function: Any
    call: Callable[[Any], tf.Tensor]
    variables: Sequence[tf.Variable]


def weights_of(layers: int, width: int) -> list[tf.Variable]:
    """Square matrices."""
    return [
        tf.Variable(tf.random.stateless_normal([width, width], [i, 1]) * 1.5 / width**0.5)
        for i in range(layers)
    ]


def drawn(rows: int, width: int) -> tf.data.Dataset:
    """Batches without end, other numbers in each."""
    return tf.data.Dataset.counter().map(
        lambda i: tf.random.stateless_normal([rows, width], tf.stack([i, 2]))
    )


def descended(
    loss_of: Callable[..., tf.Tensor], weights: Sequence[tf.Variable]
) -> Callable[..., tf.Tensor]:
    """A step of gradient descent."""

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                weight.scatter_sub(gradient)
            else:
                weight.assign_sub(0.05 * gradient)
        return loss

    return step


def by_arguments(
    step: Callable[..., tf.Tensor], batches: tf.data.Dataset, variables: Sequence[tf.Variable]
) -> Odd:
    """A step that is given its batch."""
    source = iter(batches)
    return Odd(tf.function(step), lambda function: function(next(source)), variables)


def dropout_with_a_seed() -> Odd:
    """Kernels count the random numbers that they have given out."""
    weights = weights_of(12, 256)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            x = tf.nn.dropout(tf.nn.gelu(x @ weight), 0.2, seed=4)
        return tf.reduce_mean(x**2)

    return by_arguments(descended(loss_of, weights), drawn(2048, 256), weights)


def noise_of_a_generator() -> Odd:
    """The state of a tf.random.Generator is a variable that is read and moved on."""
    weights, source = weights_of(12, 256), tf.random.Generator.from_seed(5)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            x = tf.tanh(x @ weight) + 0.1 * source.normal(tf.shape(x))
        return tf.reduce_mean(x**2)

    step = descended(loss_of, weights)
    return by_arguments(step, drawn(2048, 256), [*weights, source.state])


def iterator_as_an_argument() -> Odd:
    """Two batches of an iterator in each step, of which an error would use them up."""
    weights = weights_of(10, 256)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            x = tf.nn.relu(x @ weight)
        return tf.reduce_mean(x**2)

    one, source = descended(loss_of, weights), iter(drawn(4096, 256))
    function = tf.function(lambda batches: one(next(batches)) + one(next(batches)))
    return Odd(function, lambda step: step(source), weights)


def iterator_within() -> Odd:
    """The step captures the iterator; it is called without arguments."""
    weights = weights_of(12, 256)
    source = iter(drawn(2048, 256).prefetch(2))

    def loss_of() -> tf.Tensor:
        x = next(source)
        for weight in weights:
            x = tf.nn.silu(x @ weight)
        return tf.reduce_mean(x**2)

    return Odd(tf.function(descended(loss_of, weights)), lambda step: step(), weights)


def rows_of_a_table() -> Odd:
    """Sparse gradients into an embedding, whose updates copy it on read; Keras 3's SGD."""
    import keras

    table, weights = (
        tf.Variable(tf.random.stateless_normal([8000, 256], [3, 1])),
        weights_of(8, 256),
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([table, *weights])
    ids = tf.data.Dataset.counter().map(
        lambda i: tf.random.stateless_uniform([2048], tf.stack([i, 2]), 0, 8000, tf.int32)
    )

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.gather(table, ids)
            for weight in weights:
                x = tf.nn.gelu(x @ weight)
            loss = tf.reduce_mean(x**2)
        gradients = tape.gradient(loss, [table, *weights])
        optimizer.apply_gradients(zip(gradients, [table, *weights], strict=True))
        return loss

    return by_arguments(step, ids, [table, *weights])


def two_players() -> Odd:
    """A GAN: two networks and two optimizers with slots in one step."""
    import tf_keras

    makes, judges = weights_of(8, 256), weights_of(8, 256)
    optimizers = [tf_keras.optimizers.Adam(1e-3) for _ in range(2)]
    for optimizer, weights in zip(optimizers, (makes, judges), strict=True):
        optimizer.build(weights)

    def through(x: tf.Tensor, weights: Sequence[tf.Variable]) -> tf.Tensor:
        for weight in weights:
            x = tf.nn.leaky_relu(x @ weight)
        return x

    def step(x: tf.Tensor) -> tf.Tensor:
        noise = tf.random.uniform(tf.shape(x), seed=6)
        with tf.GradientTape(persistent=True) as tape:
            false = tf.reduce_mean(through(through(noise, makes), judges), 1)
            true = tf.reduce_mean(through(x, judges), 1)
            gain = -tf.reduce_mean(tf.nn.softplus(false))
            loss = tf.reduce_mean(tf.nn.softplus(-true)) + tf.reduce_mean(tf.nn.softplus(false))
        for optimizer, target, weights in zip(
            optimizers, (gain, loss), (makes, judges), strict=True
        ):
            optimizer.apply_gradients(zip(tape.gradient(target, weights), weights, strict=True))
        return loss + gain

    variables = [*makes, *judges, *(v for one in optimizers for v in one.variables)]
    return by_arguments(step, drawn(1024, 256), variables)


def averages_and_a_branch() -> Odd:
    """Moving averages of the weights, and a count that chooses a branch."""
    weights, count = weights_of(12, 256), tf.Variable(0)
    averages = [tf.Variable(weight) for weight in weights]

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:
            x = tf.nn.gelu(x @ weight)
        odd = tf.equal(count % 2, 1)
        return tf.cond(odd, lambda: tf.reduce_mean(x**2), lambda: tf.reduce_mean(tf.abs(x)))

    descend = descended(loss_of, weights)

    def step(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        loss = descend(x)
        for average, weight in zip(averages, weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return loss

    return by_arguments(step, drawn(2048, 256), [*weights, *averages, count])


def gradients_in_parts() -> Odd:
    """Gradients of three parts of a batch are summed in variables, and used at the third."""
    weights, turn = weights_of(10, 256), tf.Variable(0)
    sums = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.gelu(y @ weight)
            loss = tf.reduce_mean(y**2)
        turn.assign_add(1)
        is_last = tf.cast(tf.equal(turn % 3, 0), tf.float32)
        for total, weight, gradient in zip(
            sums, weights, tape.gradient(loss, weights), strict=True
        ):
            total.assign_add(gradient)
            weight.assign_sub(0.05 * is_last * total)
            total.assign((1.0 - is_last) * total)
        return loss

    return by_arguments(step, drawn(2048, 256), [*weights, *sums, turn])


def own_gradients() -> Odd:
    """A custom gradient, and a part that the user recomputes."""
    weights = weights_of(12, 256)

    @tf.custom_gradient
    def clipped(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda g: tf.clip_by_norm(g, 1.0)

    def part(x: tf.Tensor) -> tf.Tensor:
        for weight in weights[:4]:
            x = tf.nn.gelu(x @ weight)
        return x

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        x = clipped(tf.recompute_grad(part)(x))
        for weight in weights[4:]:
            x = tf.nn.gelu(x @ weight)
        return tf.reduce_mean(x**2)

    return by_arguments(descended(loss_of, weights), drawn(2048, 256), weights)


def pictures_of_tf_keras() -> Odd:
    """A MobileNetV2 with moving statistics and RMSprop, of tf-keras."""
    import tf_keras

    model = tf_keras.applications.MobileNetV2(
        (64, 64, 3), weights=None, classes=10, classifier_activation=None
    )
    optimizer = tf_keras.optimizers.RMSprop(1e-4)
    optimizer.build(model.trainable_variables)
    losses = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: tf.Tensor) -> tf.Tensor:
        labels = tf.argmax(x[:, 0, :10, 0], 1)
        with tf.GradientTape() as tape:
            loss = losses(labels, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    pictures = drawn(24, 64 * 64 * 3).map(lambda x: tf.reshape(x, [24, 64, 64, 3]))
    return by_arguments(step, pictures, [*model.variables, *optimizer.variables])


STEPS: dict[str, Callable[[], Odd]] = {
    build.__name__: build
    for build in (
        dropout_with_a_seed,
        noise_of_a_generator,
        iterator_as_an_argument,
        iterator_within,
        rows_of_a_table,
        two_players,
        averages_and_a_branch,
        gradients_in_parts,
        own_gradients,
        pictures_of_tf_keras,
    )
}
"""The odd steps by name."""
