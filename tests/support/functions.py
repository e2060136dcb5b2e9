"""Functions of every kind that `capture` and `rebuild` must carry, with arguments to call them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

Point = collections.namedtuple("Point", ["x", "y"])


@dataclass
class Case:
    """A tf.function, its arguments and the variables it changes."""

    function: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    variables: list[tf.Variable] = field(default_factory=list)
    owner: Any = None  # kept alive with the case
    renew: Callable[[], tuple[Any, ...]] | None = None  # arguments that a call uses up


def matrix(seed: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def variables() -> Case:
    weight, count = tf.Variable(matrix(0, 16, 16)), tf.Variable(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.relu(x @ weight) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(1)
        return loss, count.read_value()

    return Case(step, (matrix(1, 4, 16),), variables=[weight, count])


def variable_argument() -> Case:
    weight = tf.Variable(matrix(0, 8, 8))

    @tf.function
    def step(v, x):
        v.assign_add(x @ v)
        return tf.reduce_sum(v)

    return Case(step, (weight, matrix(1, 8, 8) * 0.1), variables=[weight])


def iterator_argument() -> Case:
    data = tf.data.Dataset.range(10).map(lambda i: tf.cast(i, tf.float32)).batch(2)
    total = tf.Variable(0.0)

    @tf.function
    def step(iterator):
        total.assign_add(tf.reduce_sum(next(iterator)))
        return total.read_value()

    data = data.map(lambda x: tf.ensure_shape(x, [2]))
    return Case(step, variables=[total], renew=lambda: (iter(data),))


def captured_iterator() -> Case:
    data = tf.data.Dataset.from_tensors(matrix(0, 4)).repeat()
    iterator = iter(data)

    @tf.function
    def step():
        return next(iterator) * 2.0

    return Case(step)


def while_loop() -> Case:
    weight = tf.Variable(matrix(0, 8, 8) * 0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(3):
                y = tf.tanh(y @ weight)
            loss = tf.reduce_sum(y * y)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return Case(step, (matrix(1, 4, 8),), variables=[weight])


def nested_loops() -> Case:
    @tf.function
    def step(x):
        for i in tf.range(3):
            for j in tf.range(2):
                x = tf.cond(i > j, lambda x=x: x + 1.0, lambda x=x: x * 2.0)
        return x

    return Case(step, (matrix(0, 4),))


def cond() -> Case:
    on, off = tf.Variable(0), tf.Variable(0)

    @tf.function
    def step(x):
        if tf.reduce_sum(x) > 0:
            on.assign_add(1)
            y = x * 2
        else:
            off.assign_add(1)
            y = -x
        return y

    return Case(step, (matrix(0, 4),), variables=[on, off])


def case() -> Case:
    @tf.function
    def step(i, x):
        return tf.switch_case(i, [lambda: x + 1, lambda: x * 2, lambda: tf.matmul(x, x)])

    return Case(step, (tf.constant(2), matrix(0, 4, 4)))


def nested_function() -> Case:
    weight = tf.Variable(matrix(0, 4, 4))

    @tf.function
    def inner(x):
        weight.assign_add(x)
        return x @ weight

    @tf.function
    def step(x):
        return inner(inner(x))

    return Case(step, (matrix(1, 4, 4) * 0.1,), variables=[weight])


def custom_gradient() -> Case:
    weight = tf.Variable(matrix(0, 4))

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda g: tf.clip_by_value(g, -0.1, 0.1)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(weight * x) ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return Case(step, (matrix(1, 4),), variables=[weight])


def stateless_random() -> Case:
    @tf.function
    def step(seed):
        return tf.random.stateless_normal([8], seed) + tf.random.stateless_uniform([8], seed)

    return Case(step, (tf.constant([1, 2]),))


def generator() -> Case:
    source = tf.random.Generator.from_seed(7)

    @tf.function
    def step():
        return source.normal([4]) + source.uniform([4])

    return Case(step, variables=[source.state])


def structures() -> Case:
    @tf.function
    def step(batch, point, unused=None, *, flag, factor=2):
        a = batch["a"] * factor if flag else batch["a"]
        inner = {"sum": a + batch["b"][0], "none": unused}
        return {"out": inner, "point": Point(point.y, point.x), "list": [a, (a, a)]}

    batch = {"a": matrix(0, 4), "b": [matrix(1, 4)]}
    return Case(step, (batch, Point(matrix(2, 2), matrix(3, 3))), {"flag": True})


def method() -> Case:
    class Layer(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(matrix(0, 4, 4))

        @tf.function
        def step(self, x, training=False):
            if training:
                self.weight.assign_add(x)
            return x @ self.weight

    layer = Layer()
    return Case(
        layer.step, (matrix(1, 4, 4),), {"training": True}, variables=[layer.weight], owner=layer
    )


def strings() -> Case:
    @tf.function
    def step(text):
        return tf.strings.join([text, tf.constant("!")]), tf.strings.length(text)

    return Case(step, (tf.constant(["a", "bcd"]),))


def captured_tensors() -> Case:
    small, large = matrix(0, 4), matrix(1, 64, 64)

    @tf.function
    def step(x):
        return x * small, tf.reduce_sum(large), x

    return Case(step, (matrix(2, 4),))


def failing() -> Case:
    @tf.function
    def step(x):
        tf.debugging.assert_greater(x, 0.0)
        return x

    return Case(step, (tf.constant(1.0),))


def constants_and_no_arguments() -> Case:
    @tf.function
    def step():
        return tf.constant([1.0, 2.0]) + 1.0

    return Case(step)


def no_outputs() -> Case:
    count = tf.Variable(0)

    @tf.function
    def step():
        count.assign_add(1)

    return Case(step, variables=[count])


def nothing() -> Case:
    return Case(tf.function(lambda: None), ())


def ragged() -> Case:
    @tf.function
    def step(x):
        return x.with_values(x.values * 2.0)

    return Case(step, (tf.ragged.constant([[1.0, 2.0], [3.0]]),))


def sparse_gradient() -> Case:
    table = tf.Variable(matrix(0, 10, 4))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids) ** 2)
        grad = tape.gradient(loss, table)
        unique, where = tf.unique(grad.indices)
        total = tf.math.unsorted_segment_sum(grad.values, where, tf.shape(unique)[0])
        table.scatter_sub(tf.IndexedSlices(0.1 * total, unique))
        return loss

    return Case(step, (tf.constant([1, 3, 1]),), variables=[table])


def dataset_inside() -> Case:
    @tf.function
    def step(x):
        total = tf.zeros([])
        for y in tf.data.Dataset.from_tensor_slices(x).map(lambda v: v * 2.0):
            total += y
        return total

    return Case(step, (matrix(0, 4),))


def user_device() -> Case:
    @tf.function
    def step(x):
        with tf.device("CPU:0"):
            y = x @ x
        return y + 1.0

    return Case(step, (matrix(0, 4, 4),))


def noninlined_function() -> Case:
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x):
        return tf.tanh(x @ x)

    @tf.function
    def step(x):
        return inner(x) + inner(x + 1.0)

    return Case(step, (matrix(0, 4, 4),))


def lookup_table() -> Case:
    keys, values = tf.constant(["a", "b"]), tf.constant([1, 2])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)

    @tf.function
    def step(text):
        return table.lookup(text)

    return Case(step, (tf.constant(["b", "c"]),))


def deferred_capture() -> Case:
    value = tf.constant([1.0, 2.0])

    @tf.function
    def step(x):
        graph = tf.compat.v1.get_default_graph()
        late = graph.capture_call_time_value(lambda: value, tf.TensorSpec([2], tf.float32))
        return x + late

    return Case(step, (matrix(0, 2),))


CASES: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        variables, variable_argument, iterator_argument, captured_iterator, while_loop,
        nested_loops, cond, case, nested_function, custom_gradient, stateless_random, generator,
        structures, method, strings, captured_tensors,
        failing, constants_and_no_arguments, no_outputs, nothing,
        ragged, sparse_gradient, dataset_inside, user_device, noninlined_function, lookup_table,
        deferred_capture,
    )
}  # fmt: skip
