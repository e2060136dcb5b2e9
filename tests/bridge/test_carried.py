"""What loops carry and nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.support.captures import captured_from
from tfmem.bridge.capture import Captured
from tfmem.bridge.rebuild import rebuild
from tfmem.graph.bodies import LOOPS

Turn = Callable[[tf.Tensor], tf.Tensor]


def gradient_of(turn: Turn, x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in tf.range(5):
            y = turn(y)
    return tape.gradient(y, x)


def ops_in_loops(captured: Captured) -> list[str]:
    nodes = (node for node in captured.graph.nodes if node.op in LOOPS)
    bodies = (captured.bodies[node.name][1] for node in nodes)
    return [node.op for body in bodies for node in body.graph.nodes]


def rebuilt(function: Any, *args: tf.Tensor) -> tuple[Captured, Any]:
    captured = captured_from(function, *args)
    return captured, rebuild(captured, captured.graph)


@pytest.mark.parametrize(
    ("turn", "kept"),
    [
        (lambda y: tf.tanh(y / 0.1), 1),  # the gradient of 0.1 would read y
        (lambda y: tf.tanh(y * 0.1), 1),
        (lambda y: y / 0.1, 0),
        (lambda y: tf.tanh(y) * tf.sin(y), 3),
    ],
)
def test_what_no_gradient_reads_is_not_kept(turn: Turn, kept: int) -> None:
    step = tf.function(lambda x: gradient_of(turn, x))
    x = tf.random.stateless_normal([8, 8], [1, 2])
    captured, rewritten = rebuilt(step, x)
    ops = ops_in_loops(captured)
    assert (ops.count("TensorListPushBack"), ops.count("TensorListPopBack")) == (kept, kept)
    tf.debugging.assert_equal(rewritten(x), step(x))


def test_what_one_variable_of_a_loop_needs_of_another_is_kept() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        first, second, unread = x, x + 1.0, x
        for _ in tf.range(3):
            first, second, unread = tf.sin(second), tf.cos(second), tf.tanh(unread) @ first
        return first

    x = tf.random.stateless_normal([4, 4], [1, 2])
    captured, rewritten = rebuilt(step, x)
    ops = ops_in_loops(captured)
    assert ops.count("Sin") == ops.count("Cos") == 1
    assert not {"Tanh", "MatMul"}.intersection(ops)
    tf.debugging.assert_equal(rewritten(x), step(x))


def test_what_ends_a_loop_or_has_an_effect_is_kept() -> None:
    seen = tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        size, total = 1.0, 0.0
        while size < 9.0:
            size *= 2.0
            total += size
            seen.assign(total)
            x = tf.sin(x)
        return x

    x = tf.random.stateless_normal([4, 4], [1, 2])
    _, rewritten = rebuilt(step, x)
    tf.debugging.assert_equal(rewritten(x), step(x))
    assert seen.numpy() == 2.0 + 4.0 + 8.0 + 16.0


def test_what_an_effect_reads_is_kept_where_the_condition_reads_nothing() -> None:
    turns, seen = tf.Variable(0.0), tf.Variable(0.0)
    tf.random.set_seed(1)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def turn(total: tf.Tensor) -> tf.Tensor:
            turns.assign_add(1.0)
            seen.assign(total)
            return total + 1.0

        tf.while_loop(lambda _: tf.random.uniform([], seed=1) < 0.9, turn, [tf.zeros([])])
        return x + 1.0

    x = tf.zeros([4, 4])
    _, rewritten = rebuilt(step, x)
    tf.debugging.assert_equal(rewritten(x), x + 1.0)
    assert seen.numpy() == turns.numpy() - 1.0 > 1.0


def test_a_loop_in_a_branch_keeps_what_is_read() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) < 1e9:
            y, unread = x, x
            for _ in tf.range(3):
                y, unread = tf.sin(y), tf.cos(unread)
        else:
            y = tf.tanh(x)
        return y

    x = tf.random.stateless_normal([4, 4], [1, 2])
    captured, rewritten = rebuilt(step, x)
    tf.debugging.assert_equal(rewritten(x), step(x))
    ((taken, _),) = captured.bodies.values()
    (loop,) = taken.bodies.values()
    assert [node.op for node in loop[1].graph.nodes if node.op in ("Sin", "Cos")] == ["Sin"]


def test_a_loop_within_a_loop_keeps_what_is_read() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        y, unread = x, x
        for _ in tf.range(3):
            for _ in tf.range(2):
                y, unread = tf.sin(y), tf.cos(unread)
            y = tf.tanh(y)
        return y

    x = tf.random.stateless_normal([4, 4], [1, 2])
    captured, rewritten = rebuilt(step, x)
    tf.debugging.assert_equal(rewritten(x), step(x))
    (loop,) = (node.name for node in captured.graph.nodes if node.op in LOOPS)
    outer = captured.bodies[loop][1]
    (inner,) = outer.bodies.values()
    assert [node.op for node in inner[1].graph.nodes if node.op in ("Sin", "Cos")] == ["Sin"]
