"""Updates leave the variables where they lie, and give the same numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.rebuild import rebuild
from tfmem.graph.bodies import Body
from tfmem.graph.ir import Graph

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
ROWS, WIDTH = 1024, 32  # 128 KiB: above what counts as small


class State:
    """A table that is read by rows, one that is not, and a step that updates both in every way."""

    def __init__(self) -> None:
        table = tf.random.stateless_uniform([ROWS, WIDTH], (1, 2))
        self.rows, self.slot = tf.Variable(table), tf.Variable(table / 2)
        self.plain, self.count = tf.Variable(table / 4), tf.Variable(0.0)
        self.variables = self.rows, self.slot, self.plain, self.count

    def step(self, indices: tf.Tensor) -> tf.Tensor:
        """Reads rows; assigns, adds, subtracts and applies to all of each table."""
        taken = tf.gather(self.rows, indices)
        self.slot.assign(0.9 * self.slot + 0.1)
        self.slot.scatter_add(tf.IndexedSlices(taken, indices))
        self.rows.assign_sub(0.1 * self.slot)
        self.rows.assign_add(0.01 * self.rows)
        tf.raw_ops.ResourceApplyGradientDescent(
            var=self.rows.handle, alpha=0.1, delta=0.5 * self.rows
        )
        self.plain.assign(0.9 * self.plain + 0.1 * self.rows)
        self.count.assign(self.count + 1.0)
        return tf.reduce_sum(taken) + tf.reduce_sum(self.plain)


def unchanged(captured: Captured) -> dict[str, tuple[Body, Graph]]:
    """Its bodies as they are, for `rebuild`."""
    every = itertools.chain.from_iterable(captured.bodies.values())
    return {body.function: (body, body.graph) for body in every}


def rebuilt(state: State) -> Any:
    """The step as tfmem rewrites it, without a plan."""
    concrete = tf.function(state.step).get_concrete_function(tf.TensorSpec([8], tf.int32))
    captured = capture(concrete, device=DEVICE)
    return rebuild(captured, captured.graph)


def address(variable: tf.Variable) -> int:
    """Where a variable lies."""
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    place: int = np.asarray(memoryview(variable.read_value())).__array_interface__["data"][0]
    return place


def places(state: State) -> list[int]:
    """Where the variables lie; a read out of copy-on-read mode shares their buffer."""
    found = [address(variable) for variable in state.variables]
    for variable in (state.rows, state.slot):
        variable.sparse_read([0])
    return found


def test_updates_happen_where_the_variables_lie_and_give_the_same_numbers() -> None:
    indices = tf.constant([1, 3, 5, 7, 11, 13, 17, 1019])
    plain, state = State(), State()
    original, step = tf.function(plain.step), rebuilt(state)
    before = places(state)
    for _ in range(3):
        np.testing.assert_array_equal(step(indices), original(indices))
    assert places(state)[:3] == before[:3]
    for one, other in zip(state.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_original_moves_them() -> None:
    state = State()
    before = places(state)
    tf.function(state.step)(tf.range(8))
    assert all(one != other for one, other in zip(before[:3], places(state)[:3], strict=True))


def test_a_read_that_somebody_keeps_keeps_its_contents() -> None:
    state = State()
    step = rebuilt(state)
    before = state.plain.numpy()
    kept = state.plain.read_value()
    step(tf.range(8))
    np.testing.assert_array_equal(kept, before)
    assert not np.array_equal(state.plain, before)


def test_a_variable_of_open_shape_may_be_assigned_another_shape() -> None:
    variable = tf.Variable(tf.zeros([ROWS, WIDTH]), shape=tf.TensorShape(None))

    def assign(x: tf.Tensor) -> tf.Tensor:
        variable.assign(2.0 * x)
        return tf.reduce_sum(x)

    concrete = tf.function(assign).get_concrete_function(tf.TensorSpec([ROWS, WIDTH]))
    captured = capture(concrete, device=DEVICE)
    step = rebuild(captured, captured.graph)
    variable.assign(tf.zeros([1]))
    step(tf.ones([ROWS, WIDTH]))
    np.testing.assert_array_equal(variable, 2 * np.ones([ROWS, WIDTH], np.float32))


def test_a_variable_with_rows_updated_in_a_loop() -> None:
    table = tf.Variable(tf.zeros([ROWS, WIDTH]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            table.assign_add(x)
            table.scatter_add(tf.IndexedSlices(x[:1], tf.constant([1])))
        return tf.reduce_sum(table)

    captured = capture(step.get_concrete_function(tf.TensorSpec([ROWS, WIDTH])), device=DEVICE)
    found = rebuild(captured, captured.graph, unchanged(captured))(tf.ones([ROWS, WIDTH]))
    assert float(found) == 3 * (ROWS + 1) * WIDTH


def test_what_a_branch_assigns_is_written_where_the_variable_lies() -> None:
    """Adopted, the table would be shared, and the next update of either would copy it."""
    table = tf.random.stateless_uniform([ROWS, WIDTH], (1, 2))
    source, target = tf.Variable(1.0 * table), tf.Variable(tf.zeros_like(table))

    def step(is_due: tf.Tensor) -> tf.Tensor:
        if is_due:
            target.assign(source)
        source.assign_add(tf.ones([ROWS, WIDTH]))
        return tf.reduce_sum(target)

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([], tf.bool))
    captured = capture(concrete, device=DEVICE)
    changed = rebuild(captured, captured.graph, unchanged(captured))
    before = [address(one) for one in (source, target)]
    for is_due in (True, False, True):
        changed(tf.constant(is_due))
    assert [address(one) for one in (source, target)] == before
    np.testing.assert_array_equal(source.numpy(), table + 3.0)
    np.testing.assert_array_equal(target.numpy(), table + 2.0)


def test_a_table_that_is_read_by_rows_outside_of_a_branch_is_updated_in_it_where_it_lies() -> None:
    """As under loss scaling; copied, it would lie elsewhere after each step."""
    table, indices = tf.Variable(tf.zeros([ROWS, WIDTH])), tf.range(4)

    def step(x: tf.Tensor) -> tf.Tensor:
        taken = tf.reduce_sum(tf.gather(table, indices))
        if taken < 1e6:
            table.assign_sub(x)
        return taken

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([ROWS, WIDTH]))
    captured = capture(concrete, device=DEVICE)
    changed = rebuild(captured, captured.graph, unchanged(captured))
    before = address(table)
    table.sparse_read([0])
    taken = [float(changed(tf.ones([ROWS, WIDTH]))) for _ in range(3)]
    assert taken == [0.0, -4.0 * WIDTH, -8.0 * WIDTH]
    assert address(table) == before


def test_a_branch_may_assign_another_shape_to_a_variable_that_takes_any() -> None:
    rows = tf.Variable(tf.ones([2, WIDTH]), shape=[None, WIDTH])

    def step(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0:
            rows.assign(x[:3])
        return tf.reduce_sum(x)

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([ROWS, WIDTH]))
    captured = capture(concrete, device=DEVICE)
    rebuild(captured, captured.graph, unchanged(captured))(tf.ones([ROWS, WIDTH]))
    assert rows.numpy().shape == (3, WIDTH)
