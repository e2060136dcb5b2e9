"""Assignments of sums with the variable itself: made additions, the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.rebuild import rebuild
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.simulation.original import as_original
from tfmem.simulation.simulate import simulate

SIDE = 64
X = tf.random.stateless_normal([SIDE, SIDE], [1, 2])
SIZE = 4 * SIDE * SIDE


def captured_from(function: Callable[..., object], *args: tf.Tensor) -> Captured:
    return capture(tf.function(function).get_concrete_function(*(args or (X,))), device="CPU:0")


def updates(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op.startswith("Assign")]


def same_in_place(function: Callable[..., tf.Tensor], *variables: tf.Variable) -> Captured:
    """What is captured; the rebuilt function gives the same numbers, twice."""
    captured = captured_from(function)
    start = [one.numpy() for one in variables]
    runs = []
    for step in (tf.function(function), rebuild(captured, captured.graph)):
        for one, value in zip(variables, start, strict=True):
            one.assign(value)
        runs.append([step(X).numpy(), step(X).numpy(), *(one.numpy() for one in variables)])
    for wanted, found in zip(*runs, strict=True):
        np.testing.assert_array_equal(wanted, found)
    return captured


def test_sums_and_differences_are_added_where_the_variable_lies() -> None:
    weight, mean = (tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, i])) for i in range(2))

    def step(x: tf.Tensor) -> tf.Tensor:
        gradient = tf.sin(x @ weight)
        mean.assign((gradient - mean) * 0.1 + mean)
        weight.assign(weight - weight * 0.01)
        weight.assign(weight - 0.1 * mean)
        return tf.reduce_sum(gradient * weight)

    captured = same_in_place(step, weight, mean)
    expected = ["AssignAddVariableOp", *["AssignSubVariableOp"] * 2]
    assert sorted(updates(captured.graph)) == expected


def test_the_original_is_known_to_make_the_sum() -> None:
    weight = tf.Variable(tf.zeros([SIDE, SIDE]))

    def step(x: tf.Tensor) -> tf.Tensor:
        delta = tf.sin(x)
        weight.assign(weight + delta)
        return tf.cos(delta)

    captured = captured_from(step)
    assert updates(captured.graph) == ["AssignAddVariableOp"]
    whole, _ = as_original(captured.graph, Costs())
    assert updates(whole) == ["AssignVariableOp"]
    assert [node.nbytes for node in whole.nodes if node.op == "AddV2"] == [(SIZE,)]
    before, after = (simulate(one, Costs(), Plan()).peak_bytes for one in (whole, captured.graph))
    assert before >= after + SIZE  # the sum, which cannot take the place of what the cosine reads


def test_an_addition_waits_for_the_read_that_others_need() -> None:
    weight = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        value = weight.read_value()
        weight.assign(value + tf.sin(x))
        return tf.cos(value)

    graph = same_in_place(step, weight).graph
    (read,) = (node for node in graph.nodes if node.op == "ReadVariableOp")
    (update,) = (node for node in graph.nodes if node.op == "AssignAddVariableOp")
    assert read.name in update.after


def test_a_read_for_the_sum_alone_is_gone_but_not_what_it_waits_for() -> None:
    table = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        table.assign(tf.cos(x))
        table.assign(table + tf.sin(x))
        return tf.reduce_sum(tf.gather(table, [0, 2]))

    graph = same_in_place(step, table).graph
    assert not any(node.op == "ReadVariableOp" for node in graph.nodes)
    (first,) = (node for node in graph.nodes if node.op == "AssignVariableOp")
    (update,) = (node for node in graph.nodes if node.op == "AssignAddVariableOp")
    assert first.name in update.after


@pytest.mark.parametrize(
    "assigned",
    [
        pytest.param(lambda w, x: x - w, id="from something else"),
        pytest.param(lambda w, x: w + x[:1], id="of another shape"),
        pytest.param(lambda w, x: w + w, id="twice itself"),
        pytest.param(lambda w, x: w * x, id="a product"),
    ],
)
def test_other_assignments_stay(assigned: Callable[..., tf.Tensor]) -> None:
    weight = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        weight.assign(assigned(weight, tf.sin(x)))
        return tf.reduce_sum(weight)

    assert updates(same_in_place(step, weight).graph) == ["AssignVariableOp"]


def test_a_sum_that_others_read_stays() -> None:
    weight = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        total = weight + tf.sin(x)
        weight.assign(total)
        return total

    assert updates(same_in_place(step, weight).graph) == ["AssignVariableOp"]


def test_a_sum_with_what_was_before_an_update_stays() -> None:
    weight = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [3, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        total = weight + tf.sin(x)
        weight.assign(tf.cos(x))
        weight.assign(total)
        return tf.reduce_sum(x)

    assert updates(same_in_place(step, weight).graph) == ["AssignVariableOp"] * 2


def test_whole_numbers_stay() -> None:
    counts = tf.Variable(tf.zeros([SIDE], tf.int32))

    def step(x: tf.Tensor) -> tf.Tensor:
        counts.assign(counts + tf.cast(x[0], tf.int32))
        return tf.reduce_sum(x)

    assert updates(same_in_place(step, counts).graph) == ["AssignVariableOp"]
