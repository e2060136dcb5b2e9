"""Data sets that a function makes and runs itself: what their functions take."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.captures import captured_from, only

SIDE = 256


def _workspace(calls: int | None) -> int:
    weight = tf.Variable(tf.ones([SIDE, SIDE]))

    @tf.function
    def step(rows):
        data = tf.data.Dataset.from_tensor_slices(rows)
        total = tf.constant(0.0)
        for x in data.map(lambda x: tf.reduce_sum(tf.exp(x @ weight)), num_parallel_calls=calls):
            total += x
        return total

    captured = captured_from(step, tf.ones([4, SIDE, SIDE]))
    return captured.workspace[only(captured, "ReduceDataset").name]


@pytest.mark.parametrize("calls", [2, 8])
def test_what_a_data_set_makes_at_once_counts_as_often(calls: int):
    alone, together = _workspace(None), _workspace(calls)
    product = SIDE * SIDE * 4
    assert alone >= product
    assert together >= calls * product
    assert together <= calls * alone
