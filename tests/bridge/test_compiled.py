"""Calls of functions that XLA compiles."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.captures import captured_from
from tests.support.functions import matrix
from tfmem.bridge.rebuild import rebuild
from tfmem.errors import UnsupportedFunctionError


def test_a_compiled_function_is_refused():
    @tf.function(jit_compile=True)
    def compiled(x):
        return x * 2.0

    with pytest.raises(
        UnsupportedFunctionError, match=r"^compiled is compiled by XLA.*compile=Fal"
    ):
        captured_from(compiled, tf.ones([2]))


def test_calls_of_compiled_functions_are_one_node_with_what_xla_holds():
    weight = tf.Variable(matrix(0, 64, 64))

    @tf.function(jit_compile=True)
    def sorted_product(x):
        return tf.sort(x @ weight) @ weight  # two buffers between

    captured = captured_from(tf.function(lambda x: sorted_product(x) + 1.0), matrix(1, 32, 64))
    call = next(node for node in captured.graph.nodes if "Call" in node.op)
    assert call.nbytes == (32 * 64 * 4,)
    assert call.name not in captured.bodies
    assert 32 * 64 * 4 <= captured.workspace[call.name] <= 8 * 32 * 64 * 4


def test_compiled_functions_that_update_variables_are_refused():
    total = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def summed(x):
        return total.assign_add(tf.reduce_sum(x))

    with pytest.raises(UnsupportedFunctionError, match=r"XLA.*to AssignAdd.*jit_compile=False"):
        captured_from(tf.function(lambda x: summed(x) * 2.0), tf.ones([2]))


def test_a_step_with_a_compiled_call_gives_the_same_when_it_is_rebuilt():
    weight = tf.Variable(matrix(0, 64, 64))
    compiled = tf.function(lambda x: tf.nn.relu(x @ weight), jit_compile=True)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(compiled(x) ** 2)
        return loss, tape.gradient(loss, weight)

    captured = captured_from(step, matrix(1, 32, 64))
    made = rebuild(captured, captured.graph, captured.bodies)
    again, expected = made.function(matrix(1, 32, 64)), step(matrix(1, 32, 64))
    tf.nest.map_structure(np.testing.assert_array_equal, list(again), list(expected))
