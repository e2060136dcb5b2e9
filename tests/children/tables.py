"""Steps that access tables by rows, for processes with a limit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tfmem


def table_as_argument() -> dict[str, Any]:
    """Watched steps of a table that is passed, and accessed by rows."""
    table = tf.Variable(tf.ones([20_000, 64]))
    matrices = [tf.Variable(tf.eye(64)) for _ in range(6)]

    def step(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.gather(table, ids)
            for matrix in matrices:
                x = tf.tanh(x @ matrix)
            loss = tf.reduce_mean(x**2)
        gradient, *others = tape.gradient(loss, [table, *matrices])
        table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        for matrix, other in zip(matrices, others, strict=True):
            matrix.assign_sub(0.1 * other)
        return loss

    function, ids = tf.function(step), tf.range(4096)
    most = tfmem.optimize(function).plan(table, ids).baseline_peak_bytes
    planned = tfmem.optimize(function, budget=int(0.85 * most), techniques=("order", "recompute"))
    losses = [float(planned(table, ids)) for _ in range(3)]
    return {"losses": losses, "is_noop": planned.plans[-1].is_noop}
