"""Keys of calls, as tf.function tells them apart."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfmem.functions.signature import signature_of


def test_numbers_of_numpy_count_by_type_as_arrays_do() -> None:
    """TensorFlow traces them as tensors: a learning rate that changes makes no new trace."""
    assert signature_of((np.float64(0.1),), {}) == signature_of((np.float64(0.2),), {})
    assert signature_of((np.float64(0.1),), {}) != signature_of((np.float32(0.1),), {})
    assert signature_of((0.1,), {}) != signature_of((0.2,), {})


def test_ragged_and_sparse_arguments_count_by_what_their_parts_hold() -> None:
    short, long = (tf.ragged.constant([[1.0] * length, [2.0]]) for length in (3, 400))
    assert signature_of((short,), {}) == signature_of((short + 1.0,), {})
    assert signature_of((short,), {}) != signature_of((long,), {})
    few, many = (tf.sparse.from_dense(np.eye(8)[:rows]) for rows in (3, 5))
    few = tf.SparseTensor(few.indices, few.values, many.dense_shape)
    assert signature_of((few,), {}) != signature_of((many,), {})


def test_no_number_is_the_same_as_no_number() -> None:
    assert signature_of((float("nan"),), {}) == signature_of((float("nan"),), {})
    assert signature_of((float("nan"),), {}) != signature_of((0.0,), {})


def test_a_variable_in_the_place_of_one_that_is_gone_is_another() -> None:
    keys = set()
    for _ in range(20):  # each is gone before the next one is made, at the same address
        keys.add(signature_of((tf.Variable(1.0),), {}))
    assert len(keys) == 20
    variable = tf.Variable(1.0)
    assert signature_of((variable,), {}) == signature_of((variable,), {})
