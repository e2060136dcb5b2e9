"""Loops whose number of turns is known become graphs, with the numbers of the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfmem
from tests.support.captures import captured_from
from tfmem.bridge import rewriting
from tfmem.bridge.capture import Captured
from tfmem.bridge.rebuild import rebuild

TURNS, ROWS, WIDTH = 6, 4, 16


def numbers(*shape: int, seed: int = 0) -> tf.Tensor:
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.constant(values.astype(np.float32))


X = numbers(TURNS, ROWS, WIDTH)
W = numbers(WIDTH, WIDTH, seed=1) / 4


def gradients(loss_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Any:
    """A function of a loss, and its gradients, by a tensor and a matrix."""

    def function(x: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(loss_of(x, w) ** 2)
        return [loss, *tape.gradient(loss, [x, w])]

    return tf.function(function)


def unrolled(function: Any, *args: tf.Tensor) -> Captured:
    return captured_from(function, *args, args=args, unrolls=True)


def scanned(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda state, row: tf.tanh(state @ w + row), x, tf.zeros_like(x[0]))


def mapped(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: tf.nn.gelu(row @ w), x)


def folded(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.foldl(lambda state, row: tf.sin(state @ w) * row, x, tf.ones([ROWS, WIDTH]))


def counted(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    y = x[0]
    for number in tf.range(3):
        y = tf.tanh(y @ w) + tf.cast(number, tf.float32)
    return y


def nested(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    y = x[0]
    for _ in tf.range(2):
        for number in tf.range(3):
            y = tf.tanh(y @ w) + tf.cast(number, tf.float32)
    return y


def written(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Only every other element is set; the others are zeros."""
    rows = tf.TensorArray(tf.float32, TURNS, element_shape=[ROWS, WIDTH])
    for number in tf.range(TURNS // 2):
        rows = rows.write(2 * number, tf.tanh(x[2 * number] @ w))
    return rows.stack()


@pytest.mark.parametrize("loss_of", [scanned, mapped, folded, counted, nested, written])
def test_turns_give_the_loops_numbers(loss_of: Callable[..., tf.Tensor]) -> None:
    function = gradients(loss_of)
    expected = [one.numpy() for one in function(X, W)]
    captured = unrolled(function, X, W)
    assert captured_from(function, X, W, args=[X, W]).has_loops
    assert not captured.has_loops
    found = rebuild(captured, captured.graph).function(X, W)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [tf_keras.layers.Masking(), tf_keras.layers.LSTM(8)],
        lambda: [tf_keras.layers.Bidirectional(tf_keras.layers.GRU(8))],
        lambda: [tf_keras.layers.SimpleRNN(8, return_sequences=True), tf_keras.layers.SimpleRNN(8)],
    ],
)
def test_recurrent_layers_are_graphs_of_their_turns(layers: Callable[[], list[Any]]) -> None:
    model = tf_keras.Sequential(layers())
    x = numbers(ROWS, TURNS, WIDTH)
    model(x)

    @tf.function
    def function(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    expected = [one.numpy() for one in function(x)]
    captured = unrolled(function, x)
    assert not captured.has_loops
    for one, other in zip(rebuild(captured, captured.graph).function(x), expected, strict=True):
        assert np.array_equal(one, other)


def drawing(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: row @ w + tf.random.uniform([ROWS, WIDTH], seed=1), x)


def until_large(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    y = x[0]
    while tf.reduce_max(y) < 100.0:
        y = y + tf.abs(y @ w) + 1.0
    return y


def assigning(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    for number in tf.range(3):
        COUNT.assign_add(number)
    return x[0] @ w


def returning(x: tf.Tensor, w: tf.Tensor) -> tf.TensorArray:
    rows = tf.TensorArray(tf.float32, TURNS, element_shape=[ROWS, WIDTH])
    for number in tf.range(TURNS):
        rows = rows.write(number, x[number] @ w)
    return rows


COUNT = tf.Variable(0)


@pytest.mark.parametrize("made", [drawing, until_large, assigning, returning])
def test_loops_stay_whose_turns_are_not_known_or_have_effects(made: Any) -> None:
    assert unrolled(tf.function(made), X, W).has_loops


def test_loops_of_too_many_turns_stay() -> None:
    def long(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        y = x[0]
        for _ in tf.range(100_000):
            y = tf.tanh(y @ w)
        return y

    assert unrolled(tf.function(long), X, W).has_loops


def test_what_assigns_a_variable_after_a_loop_waits_for_its_turns_and_for_no_count() -> None:
    weight = tf.Variable(W)

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        y = tf.scan(lambda state, row: tf.tanh(state @ weight + row), x, tf.zeros([ROWS, WIDTH]))
        weight.assign(0.5 * weight)
        COUNT.assign_sub(1)
        return tf.reduce_sum(y) + tf.reduce_sum(weight)

    expected = function(X)
    weight.assign(W)
    COUNT.assign(5)
    captured = unrolled(function, X)
    assert not captured.has_loops
    turns = [node for node in captured.graph.nodes if "/turn" in node.name]
    assert sum(node.op == "MatMul" for node in turns) == TURNS
    sums = [node.nbytes for node in turns if node.op == "AddV2"]
    assert set(sums) == {(4 * ROWS * WIDTH,)}  # none that counts
    assert np.array_equal(rebuild(captured, captured.graph).function(X), expected)
    assert np.array_equal(weight, 0.5 * W)
    assert int(COUNT) == 4


def test_a_loop_becomes_a_graph_where_there_is_no_plan_with_it() -> None:
    function = gradients(scanned)
    x, w = numbers(32, 64, 64), numbers(64, 64, seed=1) / 8
    plan = tfmem.optimize(function, budget=10**9).plan(x, w)
    budget = int(0.85 * plan.baseline_peak_bytes)
    expected = [one.numpy() for one in function(x, w)]
    optimized = tfmem.optimize(function, budget=budget)
    for one, other in zip(optimized(x, w), expected, strict=True):
        assert np.array_equal(one, other)
    (found,) = optimized.plans
    assert found.peak_bytes <= budget
    assert any("/turn" in name for name in found.order)


def test_where_it_cannot_be_one_the_refusal_is_that_of_the_loop() -> None:
    optimized = tfmem.optimize(gradients(drawing), budget=2**16)
    for _ in range(2):
        with pytest.raises(tfmem.BudgetError, match="cannot be met"):
            optimized.plan(numbers(32, ROWS, WIDTH), W)


def test_where_a_graph_of_turns_is_refused_by_capture_the_refusal_is_that_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unsupported(*_: Any) -> Any:
        raise tfmem.UnsupportedFunctionError("a size is not known")

    optimized = tfmem.optimize(gradients(scanned), budget=2**16)
    monkeypatch.setattr(rewriting, "unrolled", unsupported)
    for _ in range(2):
        with pytest.raises(tfmem.BudgetError, match="cannot be met"):
            optimized.plan(numbers(32, ROWS, WIDTH), W)
