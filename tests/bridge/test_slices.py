"""What is cut where the places depend on data: no larger than the whole, often smaller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from, only

ROWS, WIDTH = 24, 16
X = tf.reshape(tf.range(ROWS * WIDTH, dtype=tf.float32), [ROWS, WIDTH]) / ROWS


def _cut(cut: Callable[..., tf.Tensor], *numbers: int) -> int:
    """Elements that are counted for what is cut out of `X` at places given in the step."""
    captured = captured_from(
        tf.function(lambda x, *places: tf.exp(cut(x, *places))), X, *map(tf.constant, numbers)
    )
    return only(captured, "Exp").nbytes[0] // 4


CUTS: dict[str, tuple[Callable[..., tf.Tensor], int]] = {
    "first": (lambda x, i: x[:i], ROWS * WIDTH),
    "rest": (lambda x, i: x[i:], ROWS * WIDTH),
    "part": (lambda x, i: x[i * 4 : (i + 1) * 4], 4 * WIDTH),
    "backwards": (lambda x, i: x[(i + 1) * 4 : i * 4], ROWS * WIDTH),
    "reversed": (lambda x, i: x[i + 4 : i : -1], ROWS * WIDTH),
    "every other": (lambda x, i: x[i : i + 5 : 2], 3 * WIDTH),
    "to the end": (lambda x, i: x[-i : 4 - i], 4 * WIDTH),
    "longer": (lambda x, i: x[i : i + 99], ROWS * WIDTH),
    "last": (lambda x, i: x[..., i:], ROWS * WIDTH),
    "both": (lambda x, i: x[:5, i : i + 3], 5 * 3),
    "column": (lambda x, i: x[i:, 3], ROWS),
    "row": (lambda x, i: x[i, 2 : i + 4], WIDTH),
    "more": (lambda x, i: x[tf.newaxis, i : 3 + i, ..., :8], 3 * 8),
    "sizes": (lambda x, i: tf.slice(x, [2, 0], tf.stack([i, 5])), ROWS * 5),
    "rows": (lambda x, i: tf.gather(x, tf.range(i * 4, 4 * i + 4)), 4 * WIDTH),
    "steps": (lambda x, i: tf.gather(x, tf.range(i + 7, i, -2)), 4 * WIDTH),
}


@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_is_no_larger_than_the_whole(name: str):
    cut, most = CUTS[name]
    assert _cut(cut, 1) == most
    for i in range(-ROWS - 3, ROWS + 4):
        with contextlib.suppress(tf.errors.InvalidArgumentError):  # of a row that is not there
            assert tf.size(cut(X, tf.constant(i))) <= most


def test_ends_that_have_nothing_to_do_with_each_other_leave_the_whole():
    assert _cut(lambda x, i, j: x[i : j + 4], 1, 1) == ROWS * WIDTH
    assert _cut(lambda x, i, j: x[i * j : i * j + 4], 1, 1) == 4 * WIDTH
    assert _cut(lambda x, i: x[2 * i : i + 4], 1) == ROWS * WIDTH


def test_a_range_between_two_numbers_from_elsewhere_is_refused():
    with pytest.raises(tfmem.UnsupportedFunctionError, match="Range"):
        _cut(lambda x, i, j: tf.gather(x, tf.range(i, j)), 1, 3)


def test_numbers_that_are_drawn_have_ends():
    def step(x):
        n = tf.random.uniform([], 2, 7, tf.int32)
        return tf.exp(x[n:]), tf.sin(tf.zeros([n, 3])), tf.cos(x[n - 4 :])

    captured = captured_from(tf.function(step), X)
    assert only(captured, "Exp").nbytes == ((ROWS - 2) * WIDTH * 4,)
    assert only(captured, "Sin").nbytes == (6 * 3 * 4,)
    assert only(captured, "Cos").nbytes == (ROWS * WIDTH * 4,)


def test_a_table_has_a_value_for_each_key():
    numbers = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    vectors = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0, 1.0, 2.0])

    def step(keys):
        few = tf.boolean_mask(keys, keys > 2)
        return tf.exp(numbers.lookup(keys)), tf.sin(vectors.lookup(keys)), tf.cos(vectors[few])

    captured = captured_from(tf.function(step), tf.range(7, dtype=tf.int64))
    found = {op: only(captured, op).nbytes[0] // 4 for op in ("Exp", "Sin", "Cos")}
    assert found == {"Exp": 7, "Sin": 21, "Cos": 21}


WEIGHTS = [tf.Variable(tf.eye(WIDTH) * (i + 1) / 3) for i in range(2)]


def _descend(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.tanh(x @ WEIGHTS[0]) @ WEIGHTS[1]))
    for one, gradient in zip(WEIGHTS, tape.gradient(loss, WEIGHTS), strict=True):
        one.assign_sub(0.1 * gradient)


def _by_parts(x: tf.Tensor, n: tf.Tensor) -> None:
    for i in tf.range(n):
        _descend(x[i * 4 : (i + 1) * 4])


def _by_rows(x: tf.Tensor, n: tf.Tensor) -> None:
    for i in tf.range(n):
        _descend(tf.gather(x, tf.range(i * 4, (i + 1) * 4)))


def _of_first(x: tf.Tensor, n: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square((x @ WEIGHTS[0])[:n]))
    WEIGHTS[0].assign_sub(0.1 * tape.gradient(loss, WEIGHTS[0]))


def _masked(x: tf.Tensor, n: tf.Tensor) -> None:
    def turn(pair):
        rows, count = pair
        return tf.reduce_mean(tf.exp(rows @ WEIGHTS[0] / 9.0)[:count], 0)

    with tf.GradientTape() as tape:
        items = tf.reshape(x, [6, 4, WIDTH]), tf.range(n - 4, n + 2) % 4 + 1
        means = tf.map_fn(turn, items, fn_output_signature=tf.TensorSpec([WIDTH]))
        loss = tf.reduce_mean(tf.square(means))
    WEIGHTS[0].assign_sub(0.1 * tape.gradient(loss, WEIGHTS[0]))


@pytest.mark.parametrize("step", [_by_parts, _by_rows, _of_first, _masked])
def test_steps_that_cut_give_what_they_gave(step: Callable[..., None]):
    kept = [one.numpy() for one in WEIGHTS]
    found = []
    for make in (tf.function, lambda one: tfmem.optimize(one, budget="1GiB")):
        made = make(step)
        for n in (6, 5):
            made(X, tf.constant(n))
        found.append([one.numpy() for one in WEIGHTS])
        for one, before in zip(WEIGHTS, kept, strict=True):
            one.assign(before)
    for plain, optimized in zip(*found, strict=True):
        tf.debugging.assert_equal(plain, optimized)
