"""Functions as people write them, without a library but TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, integers, normals

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


def mlp(x: tf.Tensor, weights: Sequence[tf.Variable]) -> tf.Tensor:
    """Layers with gelu."""
    for w in weights:
        x = tf.nn.gelu(x @ w)
    return x


def stepping(
    loss_of: Callable[..., tf.Tensor], weights: Sequence[tf.Variable], *draws: Any
) -> Work:
    """A step of gradient descent down a loss of the batch."""

    @tf.function
    def step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, batches(*draws))


@case("tensorflow")
def mlp_gelu() -> Work:
    """An MLP with gelu and a mean, whose gradient holds constants that TensorFlow folds."""
    weights = layers(12)
    return stepping(lambda x: tf.reduce_mean(mlp(x, weights) ** 2), weights, normals(4096, _WIDTH))


# Effects.


@case("tensorflow")
def assertions() -> Work:
    """A step that checks its numbers."""
    weights = layers(12)

    def loss_of(x):
        y = mlp(x, weights)
        tf.debugging.assert_less(tf.reduce_max(y), 1e6)
        loss = tf.reduce_mean(y**2)
        tf.debugging.assert_all_finite(loss, "the loss")
        return loss

    return stepping(loss_of, weights, normals(2048, _WIDTH))


@case("tensorflow")
def prints() -> Work:
    """A step that prints its loss, and numerics that are checked on the way."""
    weights = layers(10)

    def loss_of(x):
        y = tf.debugging.check_numerics(mlp(x, weights), "activations")
        loss = tf.reduce_mean(y**2)
        tf.print("loss", loss, tf.reduce_max(y))
        return loss

    return stepping(loss_of, weights, normals(4096, _WIDTH))


@case("tensorflow")
def python_inside() -> Work:
    """A metric by tf.numpy_function and a hash table for the labels."""
    weights = layers(10)
    keys, values = np.arange(100, dtype=np.int64), np.arange(100, dtype=np.int64)[::-1] % 10
    start = tf.lookup.KeyValueTensorInitializer(keys, values.copy())
    table = tf.lookup.StaticHashTable(start, 0)

    @tf.function
    def step(x, ids):
        labels = table.lookup(tf.cast(ids, tf.int64))
        with tf.GradientTape() as tape:
            logits = mlp(x, weights)[:, :10]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        descend(weights, tape.gradient(loss, weights))
        spread = tf.numpy_function(lambda a: np.float32(a.std()), [logits], tf.float32)
        return loss, spread

    return Work(step, batches(normals(4096, _WIDTH), integers(4096, below=100)))


# Randomness.


@case("tensorflow")
def random_generator() -> Work:
    """Noise and dropout from a tf.random.Generator."""
    weights = layers(10)
    generator = tf.random.Generator.from_seed(5)

    def loss_of(x):
        x += 0.1 * generator.normal(tf.shape(x))
        for w in weights:
            x = tf.nn.relu(x @ w)
            x *= tf.cast(generator.uniform(tf.shape(x)) < 0.9, tf.float32) / 0.9
        return tf.reduce_mean(x**2)

    return stepping(loss_of, weights, normals(2048, _WIDTH))


@case("tensorflow")
def stateful_randomness() -> Work:
    """tf.nn.dropout and tf.random.shuffle, seeded by the global seed."""
    weights = layers(10)

    def loss_of(x):
        x = tf.random.shuffle(x)
        for w in weights:
            x = tf.nn.dropout(tf.nn.relu(x @ w), 0.2)
        return tf.reduce_mean(x**2)

    return stepping(loss_of, weights, normals(2048, _WIDTH))


# State beside the weights.


@case("tensorflow")
def averaged_weights() -> Work:
    """Momentum, and an average of the weights by tf.train.ExponentialMovingAverage."""
    weights = layers(10, 512)
    speeds = [tf.Variable(tf.zeros_like(w)) for w in weights]
    average = tf.train.ExponentialMovingAverage(0.99)
    average.apply(weights)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(mlp(x, weights) ** 2)
        for speed, gradient in zip(speeds, tape.gradient(loss, weights), strict=True):
            speed.assign(0.9 * speed + gradient)
        descend(weights, [speed.read_value() for speed in speeds])
        average.apply(weights)
        return loss

    return Work(step, batches(normals(2048, 512)))


@case("tensorflow")
def one_tensor_for_two_variables() -> Work:
    """A snapshot of a gradient that two variables are assigned."""
    weights = layers(12)
    one, other = tf.Variable(tf.zeros_like(weights[0])), tf.Variable(tf.zeros_like(weights[0]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(mlp(x, weights) ** 2)
        gradients = tape.gradient(loss, weights)
        descend(weights, gradients)
        seen = gradients[0] + 1.0
        one.assign(seen)
        other.assign(seen)
        return loss

    return Work(step, batches(normals(4096, _WIDTH)))


@case("tensorflow")
def gradients_over_calls() -> Work:
    """Gradients are added up and used at every fourth call, by tf.cond."""
    weights = layers(10, 384)
    sums = [tf.Variable(tf.zeros_like(w)) for w in weights]
    count = tf.Variable(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(mlp(x, weights) ** 2)
        for one, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            one.assign_add(gradient / 4)
        count.assign_add(1)
        if count % 4 == 0:
            descend(weights, [one.read_value() for one in sums])
            for one in sums:
                one.assign(tf.zeros_like(one))
        return loss

    return Work(step, batches(normals(2048, 384)))


@case("tensorflow")
def variables_from_numpy() -> Work:
    """Weights made from NumPy arrays, which lie in NumPy's memory until they are updated."""
    random = np.random.default_rng(3)
    weights = [
        tf.Variable((random.standard_normal((1024, 1024)) / 24).astype(np.float32))
        for _ in range(6)
    ]
    return stepping(lambda x: tf.reduce_mean(mlp(x, weights) ** 2), weights, normals(512, 1024))


# Ways to call.


@case("tensorflow")
def several_signatures() -> Work:
    """Batches of three sizes, in turn: three traces of one function."""
    weights = layers(10)
    work = stepping(lambda x: tf.reduce_mean(mlp(x, weights) ** 2), weights)
    sizes = [batches(normals(size, _WIDTH)) for size in (4096, 2048, 3072)]
    return Work(work.functions, (next(one) for one in itertools.cycle(sizes)))


@case("tensorflow")
def open_batch_dimension() -> Work:
    """An input signature that leaves the batch open; the first batch is the largest."""
    weights = layers(10)

    @tf.function(input_signature=[tf.TensorSpec([None, _WIDTH], tf.float32)])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(mlp(x, weights) ** 2)
        descend(weights, tape.gradient(loss, weights))
        return loss

    sizes = [batches(normals(size, _WIDTH)) for size in (4096, 2048, 4096, 3584)]
    return Work(step, (next(one) for one in itertools.cycle(sizes)))


@case("tensorflow")
def methods_of_two_instances() -> Work:
    """A method that is a tf.function, of two objects in turn."""

    class Network(tf.Module):
        def __init__(self, count: int) -> None:
            self.weights = layers(count)

        @tf.function
        def step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(mlp(x, self.weights) ** 2)
            descend(self.weights, tape.gradient(loss, self.weights))
            return loss

    one, other = Network(10), Network(8)

    def turn(functions, x):
        (method,) = functions
        return method.__get__(one, Network)(x), method.__get__(other, Network)(x)

    return Work(Network.step, batches(normals(4096, _WIDTH)), turn)


@case("tensorflow")
def nested_functions() -> Work:
    """tf.functions within a tf.function, with a dict for an argument and a keyword."""
    weights = layers(10)

    @tf.function
    def half(x, which):
        return mlp(x, weights[5 * which : 5 * which + 5])

    @tf.function
    def step(batch, rate=0.1):
        with tf.GradientTape() as tape:
            y = half(half(batch["x"], 0), 1)
            loss = tf.reduce_mean((y - batch["y"]) ** 2)
        gradients = tape.gradient(loss, weights)
        descend(weights, [rate * one for one in gradients])
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}

    def turn(functions, x, y):
        return functions[0]({"x": x, "y": y}, rate=0.5)

    return Work(step, batches(normals(4096, _WIDTH), normals(4096, _WIDTH)), turn)


@case("tensorflow")
def ragged_texts() -> Work:
    """A RaggedTensor for an argument, words looked up and averaged."""
    table = tf.Variable(tf.random.stateless_normal([20_000, 64], [1, 2]) * 0.1)
    weights = [*layers(2, 64), table]

    @tf.function
    def step(words):
        with tf.GradientTape() as tape:
            seen = tf.gather(table, words)
            loss = tf.reduce_mean(mlp(tf.reduce_mean(seen, 1), weights[:2]) ** 2)
        descend(weights, [tf.convert_to_tensor(one) for one in tape.gradient(loss, weights)])
        return loss

    def texts():
        random = np.random.default_rng(1)
        while True:
            words = random.integers(0, 20_000, 200_000, np.int32)
            yield (tf.RaggedTensor.from_row_lengths(words, np.full(4000, 50, np.int64)),)

    return Work(step, texts())


@case("tensorflow")
def inference() -> Work:
    """No gradient: features of a batch, returned whole and kept as a mean."""
    weights = layers(8, 512)

    @tf.function
    def step(x):
        wide = [tf.nn.softmax(mlp(x, [w])) for w in weights]
        return tf.reduce_mean(tf.concat(wide, 1) ** 2)

    return Work(step, batches(normals(4096, 512)))
