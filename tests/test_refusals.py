"""What is said of functions that cannot be planned."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

import tfmem

LAST = tf.Variable(3.0)
"""What follows from a variable is known only in the step."""


def test_sizes_that_cannot_be_known_are_refused():
    @tf.function
    def step(text):
        texts = tf.strings.join([text, tf.strings.as_string(LAST)], " ")
        return tf.strings.to_number(tf.strings.split([texts], " ").flat_values) * 2.0

    with pytest.raises(tfmem.UnsupportedFunctionError, match="size"):
        tfmem.optimize(step)(tf.constant("1 2"))


def of_python(x):
    return tf.reduce_sum(tf.reshape(tf.numpy_function(np.square, [x], tf.float32), [-1, 4]))


def with_its_shape(x):
    return tf.reduce_sum(tf.ensure_shape(tf.numpy_function(np.square, [x], tf.float32), x.shape))


def of_numbers(x):
    return tf.reduce_sum(tf.range(tf.cast(tf.reduce_max(x) + LAST, tf.int32)))


def unbounded(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda y: tf.reduce_sum(y) < 1.0, lambda y: [tf.tanh(y)], [x])
    return tape.gradient(y, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            of_python,
            r"PyFunc, .*test_refusals.py:\d+\).* give its result a shape by tf.ensure_shape",
        ),
        (of_numbers, r"Range, .*test_refusals.py:\d+\).* of numbers of Python"),
        (unbounded, r"pass maximum_iterations to .* \(.*test_refusals.py:\d+\)$"),
    ],
)
def test_the_users_line_and_what_helps_are_said_within_two_seconds(function, message):
    step, x = tfmem.optimize(tf.function(function), budget="1GB"), tf.ones([64, 4])
    start = time.perf_counter()
    with pytest.raises(tfmem.UnsupportedFunctionError, match=message):
        step.plan(x)
    assert time.perf_counter() - start < 2
    assert tfmem.optimize(tf.function(with_its_shape), budget="1GB").plan(x).peak_bytes > 0


def without_memory(count, x):
    raise tf.errors.ResourceExhaustedError(None, None, f"OOM when allocating {count} bytes")


def test_a_function_without_a_name_has_a_reason_too():
    step = tfmem.optimize(functools.partial(without_memory, 7), budget="1GB")
    with pytest.raises(tfmem.BudgetError, match=r"^function is out of memory while it is traced"):
        step.plan(tf.ones([64]))
