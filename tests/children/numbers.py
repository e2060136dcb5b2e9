"""Random numbers of steps whose variables move, for tests/runtime/test_variables.py."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Sequence
from typing import Any

import tfmem
from tfmem.bridge.handles import living_on
from tfmem.runtime import variables

SIDE = 256


def go_on() -> dict[str, Any]:
    """Losses of batches with dropout: as it is, and with variables placed that go home and back."""
    import tensorflow as tf

    open_rows = [tf.TensorSpec([None, SIDE])]
    batches = rows(64, 64, 32, 64)
    facts = {"expected": by_tensorflow(batches, open_rows)}
    with tfmem.host_process() as there:
        _, step = network(open_rows)
        options: dict[str, Any] = {"techniques": ("order", "place"), "host": there}
        try:
            tfmem.optimize(step, budget=1, **options).plan(batches[0])
        except tfmem.BudgetError as error:
            least = error.least_bytes or 0
        placed = tfmem.optimize(step, budget=int(1.2 * least), **options)
        losses, away, functions = [], [], []
        for x in batches:
            losses.append(float(placed(x)))
            functions.append(placed.get_concrete_function(x))
            variables.move_variable(tf.Variable(0.0), there)  # of somebody else, who drops it
            away.append(len(living_on(there)))
            placed.restore_variables()
            away.append(len(living_on(there)))
        counts = [len(plan.placements) for plan in placed.plans]
    with tfmem.host_process() as there:  # another one, for which everything is made anew
        is_anew = placed.get_concrete_function(batches[0]) is not functions[0]
        last = float(placed(batches[0]))
        placed.restore_variables()
        facts |= moved_by_others(there)
    return {
        **facts,
        "losses": losses,
        "placed": counts,
        "away": away,
        "is_kept": all(one is functions[0] for one in functions),
        "anew": [is_anew, last < losses[-1]],
    }


def moved_by_others(there: str) -> dict[str, Any]:
    """Losses of two sizes in turn, each with a trace of its own, while others move a variable."""
    batches = rows(64, 32, 64, 32, 64, 32)
    expected = by_tensorflow(batches)
    weights, step = network()
    peak = tfmem.optimize(step).plan(batches[0]).baseline_peak_bytes
    optimized, losses = tfmem.optimize(step, budget=int(0.9 * peak)), []
    for place, x in enumerate(batches):
        if place in (2, 3):
            with contextlib.suppress(TypeError):  # TensorFlow: no copy of what is traced
                copy.deepcopy(step)
            variables.move_variable(weights[0], there)
            variables.move_variable(weights[0], "CPU:0")
        losses.append(float(optimized(x)))
    return {"in turn": losses, "in turn expected": expected}


def rows(*counts: int) -> list[Any]:
    """Batches of so many rows each."""
    import tensorflow as tf

    return [tf.random.stateless_normal((count, SIDE), (1, 1)) for count in counts]


def by_tensorflow(batches: Sequence[Any], signature: Any = None) -> list[float]:
    """Losses of the step as it is; nothing is left of it."""
    _, step = network(signature)
    losses = [float(step(x)) for x in batches]
    del step
    gc.collect()
    return losses


def network(signature: Any = None) -> tuple[list[Any], Any]:
    """Weights, and a training step with dropout."""
    import tensorflow as tf

    tf.random.set_seed(3)
    shape = (SIDE, SIDE)
    weights = [tf.Variable(tf.random.stateless_normal(shape, (0, i)) / 16) for i in range(8)]

    @tf.function(input_signature=signature)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(tf.nn.dropout(x, 0.1, seed=5) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return weights, step
