"""What tests/planning/test_bodies.py asks of a process of its own: loops and branches, measured."""

from __future__ import annotations

from typing import Any

import numpy as np

import tfmem
from tfmem.runtime import memory

LAYERS, WIDTH, ROWS, TURNS = 16, 128, 2048, 3
GIB = 2**30


def in_a_loop(share: float) -> dict[str, Any]:
    """Several training steps in one call, as Keras makes them of `steps_per_execution`."""
    return _compared(_looping, share)


def in_a_branch(share: float) -> dict[str, Any]:
    """A training step in a branch within a loop."""
    return _compared(_branching, share)


def _train(weights: Any, slots: Any, x: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        y = x
        for weight in weights:
            y = _gelu(tf.matmul(y, weight))
        loss = tf.reduce_mean(tf.square(y - x))
    gradients = tape.gradient(loss, weights)
    for weight, slot, gradient in zip(weights, slots, gradients, strict=True):
        slot.assign(0.9 * slot + gradient)
        weight.assign_sub(0.1 * slot)
    return loss


def _gelu(x: Any) -> Any:
    """As tf.nn.gelu of TensorFlow 2.21, with every TensorFlow: older ones take erf.

    The peak of the graph with erf is predicted 10 % too high, on 2.21 as on 2.16.
    """
    import tensorflow as tf

    return 0.5 * x * tf.math.erfc(-x * 0.7071067811865476)


def _looping(weights: Any, slots: Any) -> Any:
    import tensorflow as tf

    def step(x: Any) -> Any:
        loss = tf.constant(0.0)
        for turn in tf.range(TURNS):
            loss = _train(weights, slots, x * tf.cast(turn + 1, tf.float32))
        return loss

    return tf.function(step)


def _branching(weights: Any, slots: Any) -> Any:
    import tensorflow as tf

    def step(x: Any) -> Any:
        loss = tf.constant(0.0)
        for turn in tf.range(TURNS):
            loss = _train(weights, slots, x) if turn != 1 else loss + 1.0
        return loss

    return tf.function(step)


def in_a_data_set() -> tuple[int, int]:
    """Bytes that a loop over a data set is predicted to take at most, and takes at most."""
    import tensorflow as tf

    weights = [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [i, 1])) for i in range(LAYERS)
    ]
    slots = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function
    def step(rows: Any) -> Any:
        loss = tf.constant(0.0)
        data = tf.data.Dataset.from_tensor_slices(rows).map(lambda x: 2.0 * x).prefetch(2)
        for x in data:
            loss += _train(weights, slots, x)
        return loss

    rows = tf.random.stateless_normal([TURNS, ROWS, WIDTH], [1, 1])
    planned = tfmem.optimize(step, budget=4 * GIB)
    planned(rows)
    memory.reset_peak("CPU:0")
    planned(rows)
    (report,) = planned.reports()
    return report.plan.peak_bytes, memory.memory_info("CPU:0")[1]


def _compared(make: Any, share: float) -> dict[str, Any]:
    """Plain steps, then steps within a share of the original's peak, from the same variables."""
    import tensorflow as tf

    weights = [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [i, 1])) for i in range(LAYERS)
    ]
    slots = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in weights]
    for weight in weights:
        weight.assign(0.06 * weight)
    x = tf.random.stateless_normal([ROWS, WIDTH], [3, 4])
    start = [variable.numpy() for variable in (*weights, *slots)]
    own = 4 * WIDTH * WIDTH * 2 * LAYERS + 4 * ROWS * WIDTH
    plain = make(weights, slots)
    whole = tfmem.optimize(plain).plan(x).baseline_peak_bytes
    budget = int(share * whole)
    step = tfmem.optimize(plain, budget=budget)
    plan = step.plan(x)
    facts: dict[str, Any] = {
        "budget": budget,
        "predicted": plan.peak_bytes,
        "clones": _clones(plan),
        "is_equal_json": tfmem.Plan.from_json(plan.to_json()) == plan,
        "losses": [],
        "peaks": [],
    }
    values = []
    for function in (plain, step):
        for variable, value in zip((*weights, *slots), start, strict=True):
            variable.assign(value)
        foreign = memory.memory_info("CPU:0")[0] - own
        found = memory.measure(function, x, steps=8)
        facts["losses"].append([loss for (loss,) in found.scalars])
        facts["peaks"].append(found.peak_bytes - foreign)
        values.append([variable.numpy() for variable in (*weights, *slots)])
    facts["difference"] = max(float(np.abs(a - b).max()) for a, b in zip(*values, strict=True))
    try:
        tfmem.optimize(plain, budget=whole // 20).plan(x)
    except tfmem.BudgetError as error:
        facts["least"] = error.least_bytes
    return facts


def _clones(plan: tfmem.Plan) -> int:
    """How many nodes run again within the functions of a plan, the innermost ones included."""
    return sum(len(one.plan.recomputations) + _clones(one.plan) for one in plan.bodies)
