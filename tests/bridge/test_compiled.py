"""Calls of functions that XLA compiles."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.captures import captured_from
from tests.support.functions import matrix
from tfmem.bridge import compiled
from tfmem.bridge.rebuild import rebuild
from tfmem.errors import UnsupportedFunctionError
from tfmem.runtime.devices import full_name

CPU = full_name("CPU:0")


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


def test_compiled_functions_that_update_variables_are_opened():
    weight, rate = tf.Variable(matrix(0, 64, 64)), tf.Variable(0.1)

    @tf.function(jit_compile=True)
    def descend(gradient):
        weight.assign_sub(scaled(gradient))

    @tf.function(jit_compile=True)
    def scaled(gradient):
        return rate * gradient

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weight))
        descend(tape.gradient(loss, weight))
        return loss

    captured = captured_from(step, matrix(1, 32, 64))
    assert {"AssignSubVariableOp", "Mul"} <= {node.op for node in captured.graph.nodes}
    assert not captured.bodies
    start = weight.numpy()
    expected = [step(matrix(1, 32, 64)).numpy() for _ in range(3)]
    weight.assign(start)
    made = rebuild(captured, captured.graph, captured.bodies)
    found = [made.function(matrix(1, 32, 64)).numpy() for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("updates", [False, True])
def test_compiled_functions_on_a_gpu_are_opened(updates: bool):
    total = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def summed(x):
        return total.assign_add(tf.reduce_sum(x)) if updates else tf.reduce_sum(x)

    def step(x):
        with tf.device(f"{CPU[:-5]}GPU:0"):
            return summed(x) * 2.0

    graph_def = tf.function(step).get_concrete_function(tf.ones([2])).graph.as_graph_def()
    call = next(node for node in graph_def.node if compiled.is_compiled(node))
    assert compiled.open_calls(graph_def, CPU) == (call.name,)
    assert not any(map(compiled.is_compiled, (*graph_def.node, *graph_def.library.function)))


def test_compiled_functions_that_only_xla_can_run_stay_as_they_are():
    compiled_sum = tf.function(tf.reduce_sum, jit_compile=True)

    def step(x):
        with tf.device(f"{CPU[:-5]}GPU:0"):
            return compiled_sum(x)

    graph_def = tf.function(step).get_concrete_function(tf.ones([2])).graph.as_graph_def()
    (function,) = graph_def.library.function
    next(node for node in function.node_def if node.op == "Sum").op = "XlaHostCompute"
    assert compiled.open_calls(graph_def, CPU) == ()
    assert compiled.is_compiled(function)


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


def test_compiled_functions_in_loops_are_opened():
    weight = tf.Variable(matrix(0, 8, 8))

    @tf.function(jit_compile=True)
    def halved():
        weight.assign(weight * 0.5)

    @tf.function
    def step(x):
        for _ in tf.range(3):
            halved()
            x = x @ weight
        return x

    captured = captured_from(step, matrix(1, 4, 8))
    start = weight.numpy()
    expected = step(matrix(1, 4, 8)).numpy()
    weight.assign(start)
    made = rebuild(captured, captured.graph, {})
    np.testing.assert_allclose(made.function(matrix(1, 4, 8)).numpy(), expected, rtol=1e-6)
