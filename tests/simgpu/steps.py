"""Small train steps of many kinds, for a device whose kernels are the CPU's on its own memory.

A case is a function without arguments that makes its `Step`; numbers are the same in each process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from models.bench.odd_steps import descended

ROWS, WIDTH = 1024, 128
"""Of a batch: half a megabyte of float32."""


@dataclass(frozen=True)
class Step:
    """A step, ready to train.

    Attributes:
      function: what is optimised.
      args: its arguments.
      variables: everything that it updates.
    """

    function: Callable[..., Any]
    args: tuple[tf.Tensor, ...]
    variables: Sequence[tf.Variable]


def numbers(*shape: int, seed: int = 1) -> tf.Tensor:
    """Normally distributed."""
    return tf.random.stateless_normal(shape, [seed, 2])


def weights(*shapes: tuple[int, ...]) -> list[tf.Variable]:
    """Variables, so large that activations keep their scale."""
    return [
        tf.Variable(1.4 * numbers(*shape, seed=i) / math.prod(shape[:-1]) ** 0.5)
        for i, shape in enumerate(shapes)
    ]


def descent(
    loss_of: Callable[..., tf.Tensor], variables: Sequence[tf.Variable], *args: tf.Tensor
) -> Step:
    """A step of gradient descent."""
    return Step(descended(loss_of, variables), args, variables)


def through(matrices: Sequence[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    """What dense layers make of their input."""
    for matrix in matrices:
        x = tf.nn.relu(x @ matrix)
    return x


def chain(
    layer: Callable[[tf.Tensor, tf.Variable], tf.Tensor], count: int = 8, width: int = WIDTH
) -> Step:
    """A layer several times, each with a square matrix of its own."""
    matrices = weights(*[(width, width)] * count)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for matrix in matrices:
            x = layer(x, matrix)
        return tf.reduce_mean(tf.cast(x, tf.float32) ** 2)

    return descent(loss_of, matrices, numbers(ROWS, width))


# Layers of chains.


def with_stateless_dropout(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.nn.experimental.stateless_dropout(tf.tanh(x @ w), 0.1, [1, 2])


def complex_numbers(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.math.real(tf.signal.ifft(tf.signal.fft(tf.complex(x @ w, x))))


def normalised(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.relu(tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3) @ w)


def cut_and_joined(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    first, second = tf.split(x @ w, 2, axis=1)
    return tf.concat([tf.sigmoid(first) * second, tf.nn.relu(first)], 1)


def largest_of_each(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    values, indices = tf.math.top_k(x @ w, WIDTH // 2)
    return tf.concat([values, tf.gather(x, indices, batch_dims=1)], 1)


def branches(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    y = x @ w
    y = tf.cond(tf.reduce_mean(y) > 0, lambda: tf.tanh(y) + y, lambda: tf.nn.relu(y) - y)
    return tf.sin(tf.sigmoid(y))


def a_choice_of_three(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    y, index = x @ w, tf.cast(tf.abs(10 * x[0, 0]), tf.int32) % 3
    return tf.switch_case(index, [lambda: tf.sin(y), lambda: tf.nn.relu(y), lambda: -y])


def checked(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    tf.debugging.assert_less(tf.reduce_max(x), 1e6, "too large")
    return tf.debugging.check_numerics(tf.nn.relu(x @ w), "not a number")


# Steps of other forms.


def a_batch_of_the_host() -> Step:
    matrices, first = weights(*[(WIDTH, WIDTH)] * 8), numbers(16 * WIDTH, WIDTH)
    with tf.device("CPU:0"):
        batch = numbers(ROWS, 16 * WIDTH)
    return descent(lambda x: tf.reduce_mean(through(matrices, x @ first) ** 2), matrices, batch)


def nested_functions() -> Step:
    @tf.function
    def layer(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ w) + x

    return chain(lambda x, w: layer(x, w) / 2)


def gradients_of_their_own() -> Step:
    @tf.custom_gradient
    def straight(x: tf.Tensor) -> Any:
        return tf.round(4 * x) / 4, lambda upstream: upstream * tf.cast(tf.abs(x) < 1, tf.float32)

    return chain(lambda x, w: straight(tf.tanh(x @ w)))


def recomputed_by_hand() -> Step:
    return chain(lambda x, w: tf.recompute_grad(lambda x: tf.nn.relu(x @ w) + x)(x) / 2, count=4)


def a_loop() -> Step:
    matrices = weights(*[(WIDTH, WIDTH)] * 8)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        (y,) = tf.while_loop(
            lambda y: tf.reduce_sum(y) > -1e9,
            lambda y: (tf.tanh(y @ matrices[0]),),
            (through(matrices, x),),
            maximum_iterations=3,
        )
        return tf.reduce_mean(y**2)

    return descent(loss_of, matrices, numbers(ROWS, WIDTH))


def a_recurrence() -> Step:
    inner, outer = weights((WIDTH, WIDTH), (WIDTH, WIDTH))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        states = tf.scan(
            lambda state, now: tf.tanh(now @ inner + state @ outer), x, tf.zeros([64, WIDTH])
        )
        return tf.reduce_mean(states**2)

    return descent(loss_of, [inner, outer], numbers(16, 64, WIDTH))


def mapped() -> Step:
    (matrix,) = weights((WIDTH, WIDTH))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.map_fn(lambda row: tf.nn.relu(row @ matrix), x) ** 2)

    return descent(loss_of, [matrix], numbers(8, 128, WIDTH))


def attention() -> Step:
    matrices = weights(*[(WIDTH, WIDTH)] * 6)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for i in range(0, len(matrices), 3):
            query, key, value = (tf.einsum("bsd,de->bse", x, w) for w in matrices[i : i + 3])
            scores = tf.einsum("bqd,bkd->bqk", query, key) / WIDTH**0.5
            x += tf.einsum("bqk,bkd->bqd", tf.nn.softmax(scores), value)
        return tf.reduce_mean(x**2)

    return descent(loss_of, matrices, numbers(8, 128, WIDTH))


def pictures() -> Step:
    kernels = weights((3, 3, 3, 16), *[(3, 3, 16, 16)] * 4)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return tf.reduce_mean(tf.nn.max_pool2d(x, 2, 2, "SAME") ** 2)

    return descent(loss_of, kernels, numbers(4, 48, 48, 3))


def normalised_pictures() -> Step:
    kernels = weights((3, 3, 3, 16), *[(3, 3, 16, 16)] * 3)
    scale, offset = tf.Variable(tf.ones([16])), tf.Variable(tf.zeros([16]))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            x = tf.nn.conv2d(x, kernel, 1, "SAME")
            x = tf.nn.relu(tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0])
        return tf.reduce_mean(tf.nn.avg_pool2d(x, 2, 2, "SAME") ** 2)

    return descent(loss_of, [*kernels, scale, offset], numbers(4, 48, 48, 3))


def separable_pictures() -> Step:
    kernels = weights((3, 3, 16, 1), (1, 1, 16, 16), (3, 3, 16, 1), (1, 1, 16, 16))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for deep, flat in zip(kernels[::2], kernels[1::2], strict=True):
            x = tf.nn.relu(tf.nn.separable_conv2d(x, deep, flat, [1, 1, 1, 1], "SAME"))
        return tf.reduce_mean(x**2)

    return descent(loss_of, kernels, numbers(4, 48, 48, 16))


def enlarged_pictures() -> Step:
    kernels = weights((3, 3, 8, 8), (3, 3, 8, 8))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        up = tf.nn.conv2d_transpose(x, kernels[0], [4, 48, 48, 8], 2)
        large = tf.image.resize(tf.nn.relu(up), [96, 96])
        return tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(large, kernels[1], 2, "SAME")) ** 2)

    return descent(loss_of, kernels, numbers(4, 24, 24, 8))


def volumes() -> Step:
    kernels = weights((3, 3, 3, 8, 8), (3, 3, 3, 8, 8))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            x = tf.nn.relu(tf.nn.conv3d(x, kernel, [1] * 5, "SAME"))
        return tf.reduce_mean(tf.nn.max_pool3d(x, 2, 2, "SAME") ** 2)

    return descent(loss_of, kernels, numbers(2, 16, 16, 16, 8))


def rows_of_a_table() -> Step:
    table, matrix = weights((4096, WIDTH), (WIDTH, WIDTH))
    ids = tf.random.stateless_uniform([ROWS], [1, 2], 0, 4096, tf.int32)

    def loss_of(ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.relu(tf.nn.embedding_lookup(table, ids) @ matrix) ** 2)

    return descent(loss_of, [table, matrix], ids)


def segments() -> Step:
    first, second = weights((WIDTH, WIDTH), (WIDTH, WIDTH))
    of = tf.sort(tf.random.stateless_uniform([ROWS], [1, 2], 0, 64, tf.int32))

    def loss_of(x: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
        sums = tf.math.unsorted_segment_sum(tf.nn.relu(x @ first), of, 64)
        return tf.reduce_mean((tf.gather(sums, of) @ second - x) ** 2)

    return descent(loss_of, [first, second], numbers(ROWS, WIDTH), of)


def labels() -> Step:
    first, last = weights((WIDTH, WIDTH), (WIDTH, 1000))
    found = tf.random.stateless_uniform([ROWS], [1, 2], 0, 1000, tf.int32)

    def loss_of(x: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        logits = tf.nn.relu(x @ first) @ last
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(found, logits)
        hits = tf.reduce_mean(tf.cast(tf.nn.in_top_k(found, logits, 5), tf.float32))
        return tf.reduce_mean(losses) + tf.stop_gradient(hits)

    return descent(loss_of, [first, last], numbers(ROWS, WIDTH), found)


def penalised_gradients() -> Step:
    first, second = weights((WIDTH, WIDTH), (WIDTH, WIDTH))

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(tf.tanh(x @ first) @ second)
        return tf.reduce_mean(y**2) + tf.reduce_mean((tape.gradient(y, x) - 1.0) ** 2)

    return descent(loss_of, [first, second], numbers(ROWS, WIDTH))


def adam() -> Step:
    matrices = weights(*[(256, 256)] * 6)
    slots = [[tf.Variable(tf.zeros_like(w)) for w in matrices] for _ in range(2)]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(through(matrices, x) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, matrices), 1.0)
        for matrix, mean, square, gradient in zip(matrices, *slots, gradients, strict=True):
            mean.assign(0.9 * mean + 0.1 * gradient)
            square.assign(0.99 * square + 0.01 * gradient**2)
            matrix.assign_sub(1e-3 * mean / (tf.sqrt(square) + 1e-6))
        return loss

    return Step(step, (numbers(256, 256),), [*matrices, *slots[0], *slots[1]])


def gathered_gradients() -> Step:
    matrices = weights(*[(WIDTH, WIDTH)] * 6)
    sums = [tf.Variable(tf.zeros_like(w)) for w in matrices]
    count = tf.Variable(0, dtype=tf.int64)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(through(matrices, x) ** 2)
        for total, gradient in zip(sums, tape.gradient(loss, matrices), strict=True):
            total.assign_add(gradient)
        if tf.equal(count.assign_add(1) % 2, 0):
            for matrix, total in zip(matrices, sums, strict=True):
                matrix.assign_sub(0.05 * total)
                total.assign(tf.zeros_like(total))
        return loss

    return Step(step, (numbers(ROWS, WIDTH),), [*matrices, *sums, count])


def two_losses() -> Step:
    first, second = weights((WIDTH, WIDTH), (WIDTH, WIDTH))

    def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            y = tf.nn.relu(x @ first)
            losses = [tf.reduce_mean((y - x) ** 2), tf.reduce_mean(tf.abs(y @ second))]
        first.assign_sub(0.05 * tape.gradient(losses[0], first))
        second.assign_sub(0.05 * tape.gradient(losses[1], second))
        return {"losses": tf.stack(losses), "rows": tf.reduce_sum(y, 1)}

    return Step(step, (numbers(ROWS, WIDTH),), [first, second])


_CHAINS: dict[str, Callable[[tf.Tensor, tf.Variable], tf.Tensor]] = {
    "dense": lambda x, w: tf.nn.relu(x @ w),
    "dropout": lambda x, w: tf.nn.dropout(tf.nn.gelu(x @ w), 0.1, seed=3),
    "half precision": lambda x, w: tf.nn.silu(tf.cast(tf.cast(x, tf.float32) @ w, tf.float16)),
    "brain floats": lambda x, w: tf.nn.elu(tf.cast(tf.cast(x, tf.float32) @ w, tf.bfloat16)),
    "double precision": lambda x, w: tf.nn.elu(tf.cast(x, tf.float64) @ tf.cast(w, tf.float64)),
    "sorted rows": lambda x, w: tf.sort(tf.nn.relu(x @ w), axis=-1),
    "sums of all before": lambda x, w: tf.cumsum(tf.tanh(x @ w), axis=1) / WIDTH,
    "where": lambda x, w: tf.where(x @ w > 0, x @ w, 0.1 * tf.roll(x, 1, axis=1)),
    "products of rows": lambda x, w: tf.nn.l2_normalize(x @ w, -1) * tf.reduce_sum(x, 1, True),
    "with stateless dropout": with_stateless_dropout,
    "complex numbers": complex_numbers,
    "normalised": normalised,
    "cut and joined": cut_and_joined,
    "largest of each": largest_of_each,
    "branches": branches,
    "a choice of three": a_choice_of_three,
    "checked": checked,
}

STEPS: dict[str, Callable[[], Step]] = {
    **{name: functools.partial(chain, layer) for name, layer in _CHAINS.items()},
    "a batch of the host": a_batch_of_the_host,
    "nested functions": nested_functions,
    "gradients of their own": gradients_of_their_own,
    "recomputed by hand": recomputed_by_hand,
    "a loop": a_loop,
    "a recurrence": a_recurrence,
    "mapped": mapped,
    "attention": attention,
    "pictures": pictures,
    "normalised pictures": normalised_pictures,
    "separable pictures": separable_pictures,
    "enlarged pictures": enlarged_pictures,
    "volumes": volumes,
    "rows of a table": rows_of_a_table,
    "segments": segments,
    "labels": labels,
    "penalised gradients": penalised_gradients,
    "adam": adam,
    "gathered gradients": gathered_gradients,
    "two losses": two_losses,
}
