"""Reads of one variable: one serves until the next update, and the numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.rebuild import rebuild
from tfmem.graph.ir import Graph, Node

X = tf.random.stateless_normal([8, 8], [1, 2])


def captured_from(function: Callable[..., object]) -> Captured:
    return capture(tf.function(function).get_concrete_function(X), device="CPU:0")


def reads(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "ReadVariableOp"]


def test_one_read_serves_until_the_next_update() -> None:
    weight, other = (tf.Variable(tf.random.stateless_normal([8, 8], [3, i])) for i in range(2))

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(tf.matmul(x, weight), other)
        y = y * tf.reduce_sum(tf.square(weight.read_value()))
        weight.assign_sub(0.1 * y)
        return y + weight.read_value() @ weight.read_value()

    captured = captured_from(step)
    graph = captured.graph
    (update,) = [node for node in graph.nodes if node.op == "AssignSubVariableOp"]
    assert len(reads(graph)) == 3  # of weight on both sides of its update, and of other
    before, after = (node for node in reads(graph) if node.inputs[0] == update.inputs[0])
    assert graph.consumers[before.values[0]] == ("MatMul", "Square")
    assert update.name in after.after

    start = weight.numpy()
    wanted = [tf.function(step)(X).numpy(), weight.numpy()]
    weight.assign(start)
    found = [rebuild(captured, graph)(X).numpy(), weight.numpy()]
    np.testing.assert_array_equal(wanted, found)


def test_reads_that_are_returned_stay() -> None:
    weight = tf.Variable(tf.eye(8))

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        one, other = (
            tf.raw_ops.ReadVariableOp(resource=weight.handle, dtype=tf.float32) for _ in range(2)
        )
        return one + x, other

    concrete = tf.compat.v1.wrap_function(step, [tf.TensorSpec([8, 8])])
    captured = capture(concrete, device="CPU:0")
    assert len(reads(captured.graph)) == 2
    both, alone = rebuild(captured, captured.graph)(X)
    np.testing.assert_array_equal(both, X + weight)
    np.testing.assert_array_equal(alone, weight)


def test_variables_that_rows_or_functions_take_keep_their_reads() -> None:
    table, weight = tf.Variable(tf.eye(8)), tf.Variable(tf.eye(8))

    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(table, [1, 2]) + tf.reduce_sum(table.read_value() + table.read_value())
        (turned,) = tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: [y @ weight + 1], [x])
        return rows, turned + weight.read_value() + weight.read_value()

    assert len(reads(captured_from(step).graph)) == 4
