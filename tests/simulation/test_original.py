"""Originals as TensorFlow runs them, and functions that odd loops and lists are in."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import tfmem
from tfmem.costs.types import Costs
from tfmem.graph.text import parse
from tfmem.graph.verify import verify
from tfmem.simulation.original import as_original

SUM = """
    x = _Arg() [256]
    s/part0 = AddN(x:0, x:0) [256]
    y = Exp(x:0{}) [256]
    s/part1 = AddN(x:0, y:0) [256]
    s = AddV2(s/part0:0, s/part1:0) [256]
    return s:0"""


def test_a_sum_is_taken_whole_unless_an_order_has_its_parts() -> None:
    """Of several devices that are planned one after the other the first one's order stays."""
    graph = parse(SUM.format(""))
    whole, _ = as_original(graph, Costs({}))
    assert [node.op for node in whole.nodes] == ["_Arg", "Exp", "AddN"]
    ordered = parse(SUM.format(", ^s/part0"))
    found, _ = as_original(ordered, Costs({}))
    verify(found)
    assert found == ordered


def test_what_one_of_a_loops_branches_does_not_make_is_not_returned() -> None:
    """One keeps a value for its gradient, the other two."""
    first, second = (tf.Variable(0.01 * tf.ones([128, 128])) for _ in range(2))

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for i in tf.range(4):
                y = tf.cond(
                    i % 2 == 0,
                    lambda y=y: tf.tanh(y @ first),
                    lambda y=y: tf.sigmoid(tf.tanh(tf.tanh(y @ second) @ second)),
                )
            loss = tf.reduce_mean(y)
        for one, gradient in zip(
            (first, second), tape.gradient(loss, (first, second)), strict=True
        ):
            one.assign_sub(gradient)
        return loss

    x = tf.ones([256, 128])
    peak = tfmem.optimize(step).plan(x).baseline_peak_bytes
    with pytest.raises(tfmem.BudgetError, match="least reachable"):
        tfmem.optimize(step, budget=peak // 3).plan(x)


def test_elements_that_are_set_anywhere_in_a_list_that_grows_are_all_kept() -> None:
    @tf.function
    def step(x: tf.Tensor, places: tf.Tensor) -> Any:
        kept = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=x.shape)
        for i in tf.range(8):
            kept = kept.write(places[i], tf.tanh(x) * tf.cast(i, tf.float32))
        return tf.reduce_sum(kept.read(places[0]))

    x = tf.ones([256, 1024])
    plan = tfmem.optimize(step).plan(x, tf.range(8))
    assert plan.peak_bytes >= 9 * 2**20
