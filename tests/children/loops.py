"""What tests/planning/test_loops.py asks of a process of its own: what loops and branches keep.

Losses go through a small product, so that TensorFlow folds no gradient of a mean into a constant,
and tensors are of 1 MiB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tfmem
from tfmem.runtime import memory

WIDTH, ROWS, TURNS = 256, 1024, 8
SHARE = 0.9
"""Part of the original's peak that is planned for."""


def compared(case: str) -> dict[str, Any]:
    """A case as it is and within a budget, from the same variables."""
    return _compared(*_made(case))


def refusal(case: str) -> str:
    """What is said of a case that cannot be planned."""
    step, args, _ = _made(case)
    try:
        tfmem.optimize(step, budget="1GB").plan(*args[0])
    except tfmem.UnsupportedFunctionError as error:
        return str(error)
    return ""


def _made(case: str) -> tuple[Any, Sequence[tuple[Any, ...]], Sequence[Any]]:
    """The step of a case, the arguments of its calls, the variables that it trains."""
    import tensorflow as tf

    if case in _KERAS:
        return _KERAS[case]()
    model, last = _Layers(), _variable(9, WIDTH, 1)
    cases: dict[str, Callable[..., Any]] = {
        name: getattr(model, name) for name in dir(model) if name[0] != "_"
    }
    variables = [*model._stack, model._u, model._v, last]

    @tf.function
    def step(x: Any, which: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(cases[case](x, which), last)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal([ROWS, WIDTH], [1, 2])
    branches = (1, 0) if case in BRANCHING else (1,)
    return step, [(x, tf.constant(which)) for which in branches], variables


def _variable(seed: int, *shape: int) -> Any:
    import tensorflow as tf

    return tf.Variable(0.05 * tf.random.stateless_normal(shape, [seed, 1]))


BRANCHING = ("branches", "choices", "own_weights", "loop_in_branch")
"""Cases whose second argument says which branch is taken."""


class _Layers:
    """What steps compute: a few layers around a loop or a branch."""

    def __init__(self) -> None:
        self._stack = [_variable(seed, WIDTH, WIDTH) for seed in range(4)]
        self._u, self._v = _variable(7, WIDTH, WIDTH), _variable(8, WIDTH, WIDTH)

    def _layers(self, x: Any, weights: Any = None, function: str = "gelu") -> Any:
        import tensorflow as tf

        for weight in weights or self._stack:
            x = tf.tanh(x @ weight) if function == "tanh" else _gelu(x @ weight)
        return x

    def ranges(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x)
        for _ in tf.range(TURNS):
            x = tf.tanh(x @ self._u)
        return x

    def divided(self, x: Any, which: Any) -> Any:
        """What the gradient of a constant would read is not kept."""
        import tensorflow as tf

        x = self._layers(x)
        for _ in tf.range(TURNS):
            x = tf.tanh((x @ self._u) / 3.0)
        return x

    def whiles(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        _, x = tf.while_loop(
            lambda i, x: i < TURNS,
            lambda i, x: (i + 1, tf.tanh(x @ self._u)),
            (0, self._layers(x)),
        )
        return x

    def bounded(self, x: Any, which: Any) -> Any:
        """How often it turns depends on data, but has a bound."""
        import tensorflow as tf

        _, x = tf.while_loop(
            lambda i, x: tf.reduce_sum(x) < 1e30,
            lambda i, x: (i + 1, tf.tanh(x @ self._u)),
            (0, self._layers(x)),
            maximum_iterations=TURNS,
        )
        return x

    def unbounded(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        while tf.reduce_sum(x) < 1e30:
            x = x + 1e30 * tf.tanh(x @ self._u)
        return x

    def breaking(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x)
        for _ in tf.range(TURNS):
            x = tf.tanh(x @ self._u)
            if tf.reduce_sum(x) > 1e30:
                break
        return x

    def folds(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        return tf.foldl(lambda a, e: tf.tanh(a @ self._u), tf.range(TURNS), self._layers(x))

    def arrays(self, x: Any, which: Any) -> Any:
        """A TensorArray that one loop writes and another reads."""
        import tensorflow as tf

        x = self._layers(x)
        array = tf.TensorArray(tf.float32, TURNS, clear_after_read=False)
        for i in tf.range(TURNS):
            x = tf.tanh(x @ self._u)
            array = array.write(i, x)
        total = tf.zeros_like(x)
        for i in tf.range(TURNS):
            total += array.read(TURNS - 1 - i) @ self._v
        return total

    def stacks(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x)
        array = tf.TensorArray(tf.float32, TURNS)
        for i in tf.range(TURNS):
            x = tf.tanh(x @ self._u)
            array = array.write(i, x)
        return tf.reduce_mean(array.stack(), 0)

    def maps(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        rows = tf.reshape(self._layers(x), [8, ROWS // 8, WIDTH])
        found = tf.map_fn(lambda row: tf.nn.relu(row @ self._v), rows)
        return tf.reshape(found, [ROWS, WIDTH])

    def scans(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        rows = tf.reshape(self._layers(x), [8, ROWS // 8, WIDTH])
        first = tf.zeros([ROWS // 8, WIDTH])
        found = tf.scan(lambda a, row: tf.tanh(a @ self._u + row), rows, initializer=first)
        return tf.reshape(found, [ROWS, WIDTH])

    def vectorized(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        rows = tf.reshape(self._layers(x), [8, ROWS // 8, WIDTH])
        found = tf.vectorized_map(lambda row: tf.nn.relu(row @ self._v), rows)
        return tf.reshape(found, [ROWS, WIDTH])

    def jacobians(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            few = tf.reduce_mean(self._layers(x), 0, keepdims=True)
            tape.watch(few)
            found = tf.tanh(few @ self._u)
        jacobian = tape.jacobian(found, few, experimental_use_pfor=False)
        return tf.reshape(jacobian, [WIDTH, WIDTH])

    def branches(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x, self._stack[:2])
        rest = [*self._stack[2:], self._u, self._v]
        return tf.cond(
            which > 0, lambda: self._layers(x, rest), lambda: self._layers(x, rest, "tanh")
        )

    def choices(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x, self._stack[:2])
        rest = [*self._stack[2:], self._u, self._v]
        return tf.switch_case(
            which, [lambda: self._layers(x, rest, "tanh"), lambda: self._layers(x, rest)]
        )

    def own_weights(self, x: Any, which: Any) -> Any:
        """Each branch has weights of its own; nobody reads the gradient of what both are given."""
        import tensorflow as tf

        first, second = self._stack[:2], self._stack[2:]
        found = tf.switch_case(
            which, [lambda: self._layers(x, first), lambda: self._layers(x, second)]
        )
        return self._layers(found, [self._u, self._v])

    def loop_in_branch(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x, self._stack[:3])

        def loop() -> Any:
            y = x
            for _ in tf.range(TURNS):
                y = tf.tanh(y @ self._u)
            return y

        return tf.cond(which > 0, loop, lambda: self._layers(x, [self._v]))

    def branch_in_loop(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x)
        for i in tf.range(TURNS):
            x = tf.cond(
                i % 2 == 0,
                lambda x=x: tf.tanh(x @ self._u),
                lambda x=x: tf.sigmoid(tf.tanh(x @ self._v)),
            )
        return x

    def nested(self, x: Any, which: Any) -> Any:
        import tensorflow as tf

        x = self._layers(x)
        for _ in tf.range(3):
            for _ in tf.range(3):
                x = tf.tanh(x @ self._u)
            x = tf.tanh(x @ self._v)
        return x


def _gelu(x: Any) -> Any:
    """As in tests/children/bodies.py: with erfc in every TensorFlow."""
    import tensorflow as tf

    return 0.5 * x * tf.math.erfc(-x * 0.7071067811865476)


def _recurrent(keras: Any, layer: Any) -> Any:
    import tensorflow as tf

    batch, steps, features, units = 64, 40, 64, 192
    given = keras.Input((steps, features), batch_size=batch)
    inner = layer(units, return_sequences=True)(given)
    inner = keras.layers.Dense(512, activation="relu")(layer(units)(inner))
    model = keras.Model(given, keras.layers.Dense(1)(inner))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x = tf.random.stateless_normal([batch, steps, features], [1, 2])
    y = tf.random.stateless_normal([batch, 1], [1, 3])
    return step, [(x, y)], [*model.trainable_variables]


def _keras_lstm() -> Any:
    import keras

    return _recurrent(keras, keras.layers.LSTM)


def _tf_keras_lstm() -> Any:
    import tf_keras

    return _recurrent(tf_keras, tf_keras.layers.LSTM)


def _tf_keras_gru() -> Any:
    import tf_keras

    return _recurrent(tf_keras, tf_keras.layers.GRU)


_KERAS = {
    "keras_lstm": _keras_lstm,
    "tf_keras_lstm": _tf_keras_lstm,
    "tf_keras_gru": _tf_keras_gru,
}


def _compared(step: Any, calls: Sequence[tuple[Any, ...]], variables: Any) -> dict[str, Any]:
    start = [np.asarray(variable.numpy()) for variable in variables]
    whole = tfmem.optimize(step, budget="40GB").plan(*calls[0]).baseline_peak_bytes
    facts: dict[str, Any] = {"peaks": [], "losses": [], "predicted": [whole]}
    steps = [step]
    planned = tfmem.optimize(step, budget=int(SHARE * whole), watch=False)
    try:
        plan = planned.plan(*calls[0])
    except tfmem.BudgetError as error:
        facts["least"] = error.least_bytes
    else:
        steps.append(planned)
        facts["predicted"].append(plan.peak_bytes)
        facts["budget"] = int(SHARE * whole)
    for function in reversed(steps):  # the plan in the free chunks that it was made for
        found = [memory.measure(function, *args, steps=3) for args in calls]
        facts["peaks"].insert(0, max(one.peak_bytes for one in found))
        facts["losses"].insert(0, [loss for one in found for (loss,) in one.scalars])
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
    with contextlib.suppress(tfmem.BudgetError):
        less = tfmem.optimize(step, budget=facts["peaks"][0] - 1)
        facts["is_left_alone_with_less"] = less.plan(*calls[0]).is_noop
    return facts
