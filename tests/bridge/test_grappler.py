"""What Grappler made of a graph is made once."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tfmem.bridge import grappler
from tfmem.bridge.capture import capture

OPTIMIZE = grappler.tf_optimizer.OptimizeGraph


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    monkeypatch.setattr(grappler, "_MADE", grappler._Made())
    counted = mock.Mock(side_effect=OPTIMIZE)
    monkeypatch.setattr(grappler.tf_optimizer, "OptimizeGraph", counted)
    return counted


def layer(seed: int, width: int = 32) -> Callable[[tf.Tensor], tf.Tensor]:
    """With a constant of 128 bytes times the width."""
    weight = np.random.default_rng(seed).normal(size=[32, width]).astype(np.float32)
    return tf.function(lambda x: tf.nn.relu(tf.matmul(x, weight) + 1.0))


def test_a_function_that_is_captured_again_is_optimised_once(runs: mock.Mock) -> None:
    spec = tf.TensorSpec([4, 32])
    concrete = layer(0).get_concrete_function(spec)
    first, again = (capture(concrete, device="CPU:0") for _ in range(2))
    assert runs.call_count == 1
    assert again.graph == first.graph
    assert again.node_defs == first.node_defs
    other = layer(1).get_concrete_function(spec)
    assert capture(other, device="CPU:0").node_defs != first.node_defs
    assert runs.call_count == 2
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        capture(concrete, device="CPU:0")
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})
    assert runs.call_count == 3  # another setting, another graph


def test_the_oldest_are_let_go_and_what_is_large_is_not_kept(
    runs: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grappler, "_MOST_KEPT", 13_000)
    spec = tf.TensorSpec([4, 32])
    first, second, third = (layer(seed).get_concrete_function(spec) for seed in range(3))
    large = layer(3, width=128).get_concrete_function(spec)
    found = []
    for concrete in (first, second, first, large, large, third, first, second):
        before = runs.call_count
        capture(concrete, device="CPU:0")
        found.append(runs.call_count - before)
    assert found == [1, 1, 0, 1, 1, 1, 0, 1]
