"""Ops of functions that are made at random: of a tensor [ROWS, WIDTH], another of that shape.

Each is given the maker of the function, for its `random`, its `seed`, one of its variables
[WIDTH, WIDTH] (`weight()`), one of bfloat16 (`narrow`), a counter (`steps`) and the name of another
device (`elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, WIDTH = 1024, 128


def dense(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return x @ weight


def twice(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.nn.relu(x @ weight) @ tf.transpose(weight)


def attention(make: Any, x: tf.Tensor) -> tf.Tensor:
    heads = tf.reshape(x, [8, ROWS // 8, WIDTH])
    scores = tf.nn.softmax(tf.einsum("bik,bjk->bij", heads, heads))
    return tf.reshape(scores @ heads, [ROWS, WIDTH])


def convolution(make: Any, x: tf.Tensor) -> tf.Tensor:
    image = tf.reshape(x, [-1, 32, 32, 8])
    kernel = tf.reshape(make.weight()[: 3 * 3 * 8 * 8 // WIDTH + 1], [-1])[: 3 * 3 * 8 * 8]
    return tf.reshape(
        tf.nn.conv2d(image, tf.reshape(kernel, [3, 3, 8, 8]), 1, "SAME"), [ROWS, WIDTH]
    )


def pooled(make: Any, x: tf.Tensor) -> tf.Tensor:
    image = tf.nn.max_pool2d(tf.reshape(x, [-1, 32, 32, 8]), 2, 2, "SAME")
    return tf.reshape(tf.image.resize(image, [32, 32], "nearest"), [ROWS, WIDTH])


def normalised(make: Any, x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def batch_norm(make: Any, x: tf.Tensor) -> tf.Tensor:
    image, ones = tf.reshape(x, [-1, 32, 32, 8]), tf.ones([8])
    made, _, _ = tf.compat.v1.nn.fused_batch_norm(image, ones, 0.0 * ones, is_training=True)
    return tf.reshape(made, [ROWS, WIDTH])


def parts(make: Any, x: tf.Tensor) -> tf.Tensor:
    pieces = tf.split(x, 4, axis=1)
    make.random.shuffle(pieces)
    return tf.concat([tf.sin(piece) for piece in pieces], axis=1)


def stacked(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.stack([x, tf.cos(x), x * x]), axis=0)


def sums(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.cumsum(x, axis=make.random.randint(0, 1)) / WIDTH


def sorted_rows(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.sort(x, axis=1) - tf.reverse(x, [0])


def largest(make: Any, x: tf.Tensor) -> tf.Tensor:
    values, places = tf.math.top_k(x, WIDTH // 2)
    return tf.concat([values, tf.cast(places, tf.float32) / WIDTH], axis=1)


def gathered(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.argsort(x[:, 0]))


def looked_up(make: Any, x: tf.Tensor) -> tf.Tensor:
    rows = tf.cast(tf.abs(x[:, 0]) * (WIDTH - 1), tf.int32) % WIDTH
    return tf.nn.embedding_lookup(make.weight(), rows)


def masked(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > 0, x, 0.1 * tf.nn.elu(x))


def in_half(make: Any, x: tf.Tensor) -> tf.Tensor:
    dtype = make.random.choice((tf.float64, tf.bfloat16, tf.float16))
    return tf.cast(tf.nn.sigmoid(tf.cast(x, dtype)), tf.float32)


def spectrum(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.math.real(tf.signal.ifft(tf.signal.fft(tf.cast(x, tf.complex64)) * 0.5))


def padded(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.pad(x, [[3, 0], [0, 0]])[:ROWS] * tf.tile(x[:1], [ROWS, 1])


def dropped(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.experimental.stateless_dropout(x, 0.2, seed=[make.seed, 3])


def written(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    weight.assign_add(1e-3 * tf.ones_like(weight))
    return x @ weight


def chosen(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.cond(tf.reduce_mean(x) > 0, lambda: tf.sin(x @ weight), lambda: x * 0.5)


def switched(make: Any, x: tf.Tensor) -> tf.Tensor:
    index = tf.cast(tf.abs(x[0, 0]) * 3, tf.int32)
    branches = [lambda: tf.tanh(x), lambda: tf.exp(-x * x), lambda: x @ tf.transpose(x) @ x / 99]
    return tf.switch_case(index, branches)


def repeated(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight, turns = make.weight(), make.random.randint(2, 5)
    return tf.while_loop(
        lambda i, _: i < turns,
        lambda i, y: (i + 1, tf.tanh(y @ weight)),
        (tf.constant(0), x),
        maximum_iterations=turns,
    )[1]


def mapped(make: Any, x: tf.Tensor) -> tf.Tensor:
    slices = tf.reshape(x, [4, ROWS // 4, WIDTH])
    return tf.reshape(tf.map_fn(lambda part: tf.nn.softmax(part) * 3, slices), [ROWS, WIDTH])


def scanned(make: Any, x: tf.Tensor) -> tf.Tensor:
    slices = tf.reshape(x, [8, ROWS // 8, WIDTH])
    return tf.reshape(tf.scan(lambda a, b: 0.5 * a + tf.sin(b), slices), [ROWS, WIDTH])


def nested(make: Any, x: tf.Tensor) -> tf.Tensor:
    attributes = {"_noinline": True} if make.random.random() < 0.3 else None
    inner = tf.function(lambda y: dense(make, tf.sin(y)), experimental_attributes=attributes)
    return inner(x)


def given(make: Any, x: tf.Tensor) -> tf.Tensor:
    inner = tf.function(lambda y, variable: y @ tf.tanh(variable))
    return inner(x, make.weight())


def elsewhere(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    with tf.device(make.elsewhere):
        return tf.sin(x) @ weight


def narrow(make: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(x, tf.bfloat16) @ make.narrow, tf.float32)


def numbered(make: Any, x: tf.Tensor) -> tf.Tensor:
    number = make.steps.assign_add(1)
    return x / tf.cast(number + 1, tf.float32)


def without_outputs(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()

    @tf.function
    def inner(y: tf.Tensor) -> None:
        weight.assign_sub(1e-4 * weight * y[0, 0])

    inner(x)
    return x @ weight


def own_gradient(make: Any, x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def half(y: tf.Tensor) -> Any:
        return tf.sin(y), lambda gradient: 0.5 * gradient * tf.cos(y)

    return half(x)


def recomputed(make: Any, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.recompute_grad(lambda y: tf.nn.gelu(y @ weight))(x)


def checked(make: Any, x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 1e9)]):
        return tf.debugging.check_numerics(x * 1.5, "finite")


def solved(make: Any, x: tf.Tensor) -> tf.Tensor:
    gram = tf.matmul(x, x, transpose_a=True) / ROWS + tf.eye(WIDTH)
    return tf.transpose(tf.linalg.solve(gram, tf.transpose(x)))


def counted(make: Any, x: tf.Tensor) -> tf.Tensor:
    values, index = tf.unique(tf.cast(10 * x[:, 0], tf.int32))
    return x + tf.cast(tf.gather(values, index), tf.float32)[:, None] / 10


def selected(make: Any, x: tf.Tensor) -> tf.Tensor:
    rows = tf.boolean_mask(x, x[:, 0] > 0)
    return x + tf.reduce_sum(rows, axis=0) / ROWS


def python(make: Any, x: tf.Tensor) -> tf.Tensor:
    mean = tf.numpy_function(lambda y: np.float32(y.mean()), [x], tf.float32)
    return x - tf.ensure_shape(mean, [])


OPS: Sequence[Callable[[Any, tf.Tensor], tf.Tensor]] = (
    dense, dense, twice, attention, convolution, pooled, normalised, batch_norm, parts, stacked,
    sums, sorted_rows, largest, gathered, looked_up, masked, in_half, spectrum, padded, dropped,
    written, chosen, switched, repeated, mapped, scanned, nested, given, elsewhere, narrow,
    numbered, without_outputs, own_gradient, recomputed, checked, solved, counted, selected,
    python,
)  # fmt: skip
