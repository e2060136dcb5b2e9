"""Rows and parts of the batch that a step is given, or takes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfmem.bridge import batches
from tfmem.bridge.capture import capture


def test_rows_are_those_of_the_arguments() -> None:
    signature = [tf.TensorSpec([None, 4]), tf.TensorSpec([]), tf.TensorSpec([2, 8])]
    function = tf.function(lambda x, rate, y: (x * rate, y), input_signature=signature)
    args = [tf.zeros([6, 4]), tf.constant(1.0), tf.zeros([2, 8])]
    captured = capture(function.get_concrete_function(), device="CPU:0", args=args)
    assert batches.rows(captured) == ((16, 6), (4, 1), (32, 2))
    assert batches.taken(captured) == ()


def test_what_a_step_takes_from_an_iterator_is_its_batch() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros((12, 5, 2), np.float32), np.arange(12)))

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        x, y = next(iterator)
        return tf.reduce_sum(x) + tf.cast(tf.reduce_sum(y), tf.float32)

    iterator = iter(data.batch(4, drop_remainder=True))
    captured = capture(step.get_concrete_function(iterator), device="CPU:0")
    assert batches.rows(captured) == ((40, 4), (8, 4))
    assert batches.taken(captured) == (160, 32)
