"""What tests/models/test_defects.py asks of a process of its own: steps that were refused, hung,
raised or broke their budgets once, each reduced to what did it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from models.bench.differences import relative_difference
from tfmem.runtime import memory

WIDTH, ROWS, STEPS = 256, 1024, 3

Step = Callable[[tf.Tensor], Any]


def found(cases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each case its peaks as it is and within a budget, and how far its numbers are apart."""
    return {case: _found(_CASES[case]) for case in cases}


def _found(make: Callable[[], tuple[Step, tf.Tensor, Sequence[tf.Variable]]]) -> dict[str, Any]:
    step, x, variables = make()
    begin = [variable.numpy() for variable in variables]
    plain, peak = _trained(tf.function(step), x, variables)
    for variable, value in zip(variables, begin, strict=True):
        variable.assign(value)
    start = time.perf_counter()
    original = tfmem.optimize(tf.function(step), budget="2GiB").plan(x).peak_bytes
    optimized, refused = tfmem.optimize(tf.function(step), budget=int(0.8 * peak)), ""
    try:
        optimized.prepare(x)
    except tfmem.BudgetError as error:
        refused = str(error)
        optimized = tfmem.optimize(tf.function(step), budget=int(1.02 * (error.least_bytes or 0)))
        optimized.prepare(x)
    seconds = time.perf_counter() - start
    plan = optimized.plan(x)
    planned, measured = _trained(optimized, x, variables)
    off = [relative_difference(*pair) for pair in zip(plain, planned, strict=True)]
    return {
        "plain": peak,
        "original": original,
        "budget": plan.budget,
        "predicted": plan.peak_bytes,
        "measured": measured,
        "difference": max(off),
        "seconds": seconds,
        "refused": refused,
    }


def _trained(step: Any, x: tf.Tensor, variables: Sequence[tf.Variable]) -> tuple[list[Any], int]:
    """What some steps return and leave in variables, and the peak after the first of them."""
    outputs = [step(x)]
    memory.reset_peak("CPU:0")
    outputs += [step(x) for _ in range(STEPS - 1)]
    peak = memory.memory_info("CPU:0")[1]
    return [np.asarray(one) for one in (*outputs, *variables)], peak


def _weights(count: int = 8) -> list[tf.Variable]:
    shape = [WIDTH, WIDTH]
    return [tf.Variable(tf.random.stateless_normal(shape, [i, 1]) * 0.05) for i in range(count)]


def _rows(rows: int = ROWS) -> tf.Tensor:
    return tf.random.stateless_normal([rows, WIDTH], [1, 2])


def _descended(
    weights: Sequence[tf.Variable], also: Callable[[tf.Tensor, Sequence[tf.Tensor]], None]
) -> Step:
    """A step of gradient descent that does something else with its last values and gradients."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.gelu(x @ weight)
            loss = tf.reduce_mean(x**2)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        also(x, gradients)
        return loss

    return step


def _assertion() -> tuple[Step, tf.Tensor, Sequence[tf.Variable]]:
    """A branch whose nodes are all inputs: an empty window was searched for ever."""
    weights = _weights()
    step = _descended(weights, lambda x, _: tf.debugging.assert_less(tf.reduce_max(x), 1e6))
    return step, _rows(), weights


def _one_tensor() -> tuple[Step, tf.Tensor, Sequence[tf.Variable]]:
    """Two variables are assigned one tensor, whose buffer both have then."""
    weights, (first, second) = _weights(), _weights(2)

    def assign(_: tf.Tensor, gradients: Sequence[tf.Tensor]) -> None:
        more = gradients[0] + 1.0
        first.assign(more)
        second.assign(more)

    return _descended(weights, assign), _rows(), [*weights, first, second]


def _accumulation() -> tuple[Step, tf.Tensor, Sequence[tf.Variable]]:
    """Gradients of parts of a batch are added up in variables by a loop, which begin as zeros."""
    weights = _weights()
    sums = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    def step(x: tf.Tensor) -> tf.Tensor:
        parts, last = tf.reshape(x, [4, -1, WIDTH]), tf.constant(0.0)
        for one in sums:
            one.assign(tf.zeros_like(one))
        for i in tf.range(4):
            with tf.GradientTape() as tape:
                y = parts[i]
                for weight in weights:
                    y = tf.nn.gelu(y @ weight)
                loss = tf.reduce_mean(y**2)
            for one, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
                one.assign_add(gradient / 4)
            last = loss
        for weight, one in zip(weights, sums, strict=True):
            weight.assign_sub(0.1 * one)
        return last

    return step, _rows(), [*weights, *sums]


def _folded() -> tuple[Step, tf.Tensor, Sequence[tf.Variable]]:
    """The gradient of a mean of less than 10 MB would be folded into a constant that stays."""
    weights = _weights()
    return _descended(weights, lambda x, gradients: None), _rows(), weights


def _half_convolution() -> tuple[Step, tf.Tensor, Sequence[tf.Variable]]:
    """Gradients of a convolution of float16 take a copy of patches on a CPU."""
    kernel = tf.Variable(tf.random.stateless_normal([3, 3, 32, 32], [1, 1]) * 0.05)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            made = tf.nn.conv2d(x, tf.cast(kernel, x.dtype), 1, "SAME")
            loss = tf.reduce_mean(tf.cast(made, tf.float32) ** 2)
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    x = tf.cast(tf.random.stateless_normal([8, 32, 32, 32], [1, 2]), tf.float16)
    return step, x, [kernel]


def fits(optimizer: str) -> dict[str, Any]:
    """A Keras 3 model with an Embedding and an optimizer that is not built yet, fitted."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16,), dtype="int32"),
            layers.Embedding(5000, 64),
            layers.Flatten(),
            layers.Dense(256, "relu"),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    draws = np.random.default_rng(1)
    x, y = draws.integers(0, 5000, (256, 16)), draws.random((256, 1), np.float32)
    budget = tfmem.keras.MemoryBudget("12MB")
    history = model.fit(x, y, batch_size=64, verbose=0, callbacks=[budget])
    (plan,) = budget.plans
    measured = [report.measured_peak_bytes for report in budget.reports()]
    return {"loss": history.history["loss"][0], "budget": plan.budget, "measured": measured}


def peaks(budget: int) -> dict[str, Any]:
    """What a report says of a step's peak, beside a function that held more."""
    small, x = tfmem.optimize(tf.function(_products), budget=budget, watch=False), _noise(ROWS)
    other, y = tfmem.optimize(tf.function(_products), budget=10 * budget), _noise(6 * ROWS)
    found: dict[str, Any] = {"before": small.report(x).measured_peak_bytes, "after": []}
    small.prepare(x)
    for _ in range(STEPS):
        other(y)
        small(x)
        found["after"].append(small.report(x).measured_peak_bytes)
    found["predicted"] = small.report(x).plan.peak_bytes
    found["other"] = other.report(y).measured_peak_bytes
    return found


def _noise(rows: int) -> tf.Tensor:
    return tf.random.stateless_normal([rows, WIDTH], [3, 5])


def _products(x: tf.Tensor) -> tf.Tensor:
    made = [tf.tanh(x * float(n)) for n in range(6)]
    return tf.add_n([tf.reduce_sum(one @ tf.transpose(made[0][:WIDTH])) for one in made])


_CASES = {
    "assertion": _assertion,
    "one_tensor": _one_tensor,
    "accumulation": _accumulation,
    "folded": _folded,
    "half_convolution": _half_convolution,
}
