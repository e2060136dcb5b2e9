"""Long sums: whole under a budget that has room for all they add, in parts under others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfmem

STEPS, SIDE = 40, 128
GRADIENT = 4 * SIDE * SIDE


@pytest.mark.parametrize(("gradients", "is_whole"), [(56, True), (25, False)])
def test_a_long_sum_is_whole_where_it_has_room(gradients: int, is_whole: bool) -> None:
    weight = tf.Variable(tf.eye(SIDE))
    x = tf.random.stateless_normal([4, SIDE], [1, 2])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.convert_to_tensor(weight)
            for _ in range(STEPS):
                x = tf.tanh(tf.matmul(x, value))
            loss = tf.reduce_sum(x)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    wanted = [tf.function(step)(x).numpy(), weight.numpy()]
    weight.assign(tf.eye(SIDE))
    budget = gradients * GRADIENT
    step_in = tfmem.optimize(tf.function(step), budget=budget, host="")
    plan = step_in.plan(x)
    assert plan.order
    sums = [name for name in plan.order if name.endswith("/part0")]
    assert len(sums) == (0 if is_whole else 1)
    assert plan.peak_bytes <= budget
    found = [step_in(x).numpy(), weight.numpy()]
    np.testing.assert_array_equal(wanted[0], found[0])
    np.testing.assert_array_equal(wanted[1], found[1])
    assert step_in.plans[-1].order == plan.order
