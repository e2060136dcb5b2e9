"""Functions with open dimensions, which TensorFlow runs for all sizes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

import tfmem

SIDE, BRANCHES = 16, 6
SMALL, LARGE = tf.ones([8, SIDE]), tf.ones([32, SIDE])


def dropped(seed: int | None) -> Any:
    """A tf.function that draws numbers, of whose branches an order runs one after the other."""

    @tf.function(input_signature=[tf.TensorSpec([None, SIDE])])
    def step(x: tf.Tensor) -> tf.Tensor:
        kept = tf.nn.dropout(x, 0.5, seed=seed)
        products = [kept @ (i * tf.eye(SIDE)) for i in range(BRANCHES)]
        return tf.add_n([tf.reduce_sum(tf.exp(-tf.abs(one))) for one in products])

    return step


@pytest.mark.parametrize(
    ("seed", "calls", "is_told"),
    [(7, (SMALL, LARGE), True), (7, (LARGE, SMALL, LARGE), False), (None, (SMALL, LARGE), False)],
    ids=["small first", "large first", "no seed"],
)
def test_random_numbers_of_a_function_for_each_size_are_told_of(
    seed: int | None, calls: Sequence[tf.Tensor], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tf.random.set_seed(seed)  # which gives ops without one theirs
    step = tfmem.optimize(dropped(seed), techniques=["order"], strategy=tfmem.TensorFlowMem())
    with caplog.at_level(logging.WARNING, "tfmem"):
        found = [float(step(x)) for x in calls]
    assert all(plan.order for plan in step.plans)
    said = "call it with the largest arguments first"
    assert (said in caplog.text) == is_told
    tf.random.set_seed(seed)
    plain = dropped(seed)
    are_equal = found == [float(plain(x)) for x in calls]
    assert are_equal == (seed is not None and not is_told)
