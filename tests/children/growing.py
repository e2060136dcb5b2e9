"""What tests/functions/test_growing.py asks of a process whose allocator may grow for ever."""

from __future__ import annotations

import random
from typing import Any

LAYERS, WIDTH, ROWS = 20, 256, 1024
SHARES = (0.9, 0.8, 0.75)


def among_holes() -> list[dict[str, Any]]:
    """Steps under budgets where what is free is holes of up to twice an activation's size."""
    import tensorflow as tf

    import tfmem
    from tfmem.runtime import memory

    choose = random.Random(5)
    sizes = [int(choose.uniform(1.0, 1.95) * ROWS) for _ in range(24)]
    before = [tf.random.stateless_normal([rows, WIDTH], seed=[rows, 1]) for rows in sizes]
    weights = [tf.Variable(tf.eye(WIDTH) * 0.9) for _ in range(LAYERS)]
    x = tf.random.stateless_normal([ROWS, WIDTH], seed=[1, 2])
    del before[::2]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_sum(y**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-6 * gradient)
        return loss

    def peak(step: Any) -> int:
        memory.reset_peak("CPU:0")
        for _ in range(4):
            float(step(x))
        return memory.memory_info("CPU:0")[1]

    plain, found = peak(tf.function(step)), []
    for share in SHARES:
        budget = int(share * plain)
        planned = tfmem.optimize(step, budget=budget)
        planned.prepare(x)
        predicted = planned.plans[0].peak_bytes
        events = [event for report in planned.reports() for event in report.events]
        measured = peak(planned)
        found.append(
            {"budget": budget, "predicted": predicted, "measured": measured, "events": events}
        )
    return found
