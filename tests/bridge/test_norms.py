"""Batch norms fused with what follows: taken apart where shape inference refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from
from tfmem.bridge import kernels
from tfmem.bridge.capture import capture
from tfmem.bridge.rebuild import rebuild

FUSED = "_FusedBatchNormEx"


class Model:
    """A convolution, a batch norm and a ReLU with so many channels, and a step of training."""

    def __init__(self, channels: int) -> None:
        self.filters = tf.Variable(tf.random.stateless_normal((3, 3, 3, channels), (1, 2)))
        self.scale = tf.Variable(tf.ones(channels))
        self.offset = tf.Variable(tf.random.stateless_normal((channels,), (3, 4)))
        self.variables = self.filters, self.scale, self.offset

    def normed(self, x: tf.Tensor) -> tf.Tensor:
        found = tf.nn.conv2d(x, self.filters, 1, "SAME")
        scale, offset = tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.offset)
        made, *_ = tf.compat.v1.nn.fused_batch_norm(found, scale, offset, is_training=True)
        return tf.nn.relu(made)

    def step(self, x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            made = self.normed(x)
            loss = tf.reduce_mean(made**2)
        for one, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss, made

    def in_a_branch(self, x: tf.Tensor) -> Any:
        return tf.cond(tf.reduce_sum(x) < 1e9, lambda: self.normed(x)[..., :3], lambda: x)


def ops_of(function: Callable[..., Any]) -> list[str]:
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec((4, 19, 19, 3)))
    return [node.op for node in capture(concrete, device="CPU:0").graph.nodes]


@pytest.mark.parametrize("channels", [11, 12])
def test_one_is_taken_apart_where_it_could_not_be_imported(channels: int) -> None:
    """On a CPU it is oneDNN that fuses them."""
    ops = ops_of(Model(channels).step)
    is_apart = channels % 4 > 0 or not kernels.onednn_types()
    assert ops.count(FUSED) == (not is_apart)
    assert (ops.count("FusedBatchNormV3"), ops.count("Relu")) == (is_apart, is_apart)


@pytest.mark.parametrize("name", ["step", "in_a_branch"])
def test_its_numbers_are_those_of_the_fused_one(name: str) -> None:
    plain, planned = Model(11), Model(11)
    x = tf.random.stateless_normal((4, 19, 19, 3), (5, 6))
    function = tfmem.optimize(tf.function(getattr(planned, name)), techniques={"order"})
    expected, found = tf.function(getattr(plain, name)), function
    for _ in range(3):
        for one, other in zip(*map(tf.nest.flatten, (expected(x), found(x))), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(plain.variables, planned.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_norms_in_a_loop_keep_for_their_gradients_has_a_size() -> None:
    """The last output of each, whose shape only the kernel knows, goes through a list."""
    scale, images = tf.ones([3]), tf.random.stateless_normal([2, 4, 4, 3], [1, 2])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = tf.sin(tf.compat.v1.nn.fused_batch_norm(y, scale, 0.5 * scale)[0])
            loss = tf.reduce_sum(y**2)
        return tape.gradient(loss, x)

    captured = captured_from(step, images)
    tf.debugging.assert_equal(rebuild(captured, captured.graph)(images), step(images))
