"""Keys of calls, as tf.function tells them apart."""

from __future__ import annotations

import numpy as np

from tfmem.functions.signature import signature_of


def test_numbers_of_numpy_count_by_type_as_arrays_do() -> None:
    """TensorFlow traces them as tensors: a learning rate that changes makes no new trace."""
    assert signature_of((np.float64(0.1),), {}) == signature_of((np.float64(0.2),), {})
    assert signature_of((np.float64(0.1),), {}) != signature_of((np.float32(0.1),), {})
    assert signature_of((0.1,), {}) != signature_of((0.2,), {})
