"""What is known of devices."""

from __future__ import annotations

import tensorflow as tf

from tfmem.runtime import devices


def test_a_cpu_is_fed_as_long_as_an_iterator_of_a_data_set_is_held() -> None:
    cpu = devices.full_name("CPU:0")
    iterator = iter(tf.data.Dataset.range(3).batch(2))
    assert devices.is_fed(cpu)
    assert not devices.is_fed("/job:localhost/replica:0/task:0/device:GPU:0")
    assert next(iterator).shape == (2,)
