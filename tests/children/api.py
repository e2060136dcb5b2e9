"""What tests/test_api.py asks of a process of its own under a hard limit."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any
from unittest import mock

import numpy as np

import tfmem
from tests.children.host import raised
from tfmem.functions import rewrite
from tfmem.graph import device_names
from tfmem.runtime import host, memory

WIDTH, LAYERS, BATCH = 768, 6, 64

ADDITIONS = 200
"""Least times that each variable is updated beside planning."""


def plain(path: str) -> dict[str, Any]:
    """A deep network trained with Adam by TensorFlow alone; its weights go to a file."""
    import tensorflow as tf

    weights, step, score, _ = network()
    losses, measured, _ = train(tf.function(step), inputs())
    np.savez(path, *[weight.numpy() for weight in weights])
    evaluation = float(tf.function(score)(inputs()))
    return {"losses": losses, "measured": measured, "evaluation": evaluation}


def hosted(path: str) -> dict[str, Any]:
    """The same network with everything on, compared with the weights in the file."""
    import tensorflow as tf

    facts: dict[str, Any] = {}
    expected = list(np.load(path).values())
    with tfmem.host_process() as device:
        x = inputs()
        model, step, score, optimizer = network()
        score = tf.function(score)
        optimized_score = tfmem.optimize(score)
        facts["evaluation"] = [float(optimized_score(x)), 0.0]
        strategy = tfmem.TensorFlowMem(min_swap_bytes=2**16)

        facts["too_small"], facts["untouched"] = too_small(step, model, x)
        step = tfmem.optimize(step, strategy=strategy, host=device)
        facts["reported"] = [step.report(x).measured_peak_bytes]
        facts["losses"], facts["measured"], facts["most"] = train(step, x)
        facts["reported"].append(step.report(x).measured_peak_bytes)
        plan = step.plan(x)
        facts["predicted"] = plan.peak_bytes
        facts["on_host"] = sum(v.device == device for v in model)
        facts["slots_on_host"] = sum(v.device == device for v in optimizer.variables) >= 12
        facts["difference"] = difference(expected, model)
        facts["evaluation"][1] = float(optimized_score(x))
        facts["old"] = float(score(x))
        facts["restored"] = restored(model, expected)
    return facts


def beside_updates() -> dict[str, Any]:
    """What another thread adds while a function is planned, explained and reported.

    Its variables begin with one buffer. Then what becomes of them if a rewritten graph cannot be
    built, once the plan has placed them.
    """
    import tensorflow as tf

    begin = tf.zeros([WIDTH, WIDTH])
    weights = [tf.Variable(begin) for _ in range(LAYERS)]
    one = tf.ones([WIDTH, WIDTH])
    step = tf.function(lambda x: [tf.reduce_sum(x @ weight) for weight in weights])
    counts, is_over = [0] * LAYERS, threading.Event()

    def update() -> None:
        while not is_over.is_set():
            for place, weight in enumerate(weights):
                weight.assign_add(one)
                counts[place] += 1

    thread = threading.Thread(target=update)
    thread.start()
    while min(counts) < ADDITIONS:
        optimized = tfmem.optimize(step, budget="300MiB")
        optimized.plan(inputs())
        optimized.report(inputs())
        optimized.explain(inputs())
    is_over.set()
    thread.join()
    counted = [sorted({*weight.numpy().ravel().tolist()}) for weight in weights]
    facts: dict[str, Any] = {"added": counts, "counted": counted}
    with (
        tfmem.host_process() as device,
        mock.patch.object(rewrite, "rebuild", side_effect=ValueError("no graph")),
    ):
        placing = tfmem.optimize(step, host=device, strategy=tfmem.TensorFlowMem())
        facts["said"] = raised(lambda: placing(inputs()))
        facts["at home"] = [device_names.is_local(weight.device) for weight in weights]
        facts["kept"] = [float(weight[3, 5]) for weight in weights]
    return facts


def inputs() -> Any:
    import tensorflow as tf

    return tf.random.stateless_normal([BATCH, WIDTH], seed=[1, 2])


def network() -> tuple[Any, Any, Any, Any]:
    """Weights, a train step, a function that scores, and the optimizer."""
    import tensorflow as tf
    import tf_keras

    weights = [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], seed=[i, 7]) * 0.05, name=f"w{i}")
        for i in range(LAYERS)
    ]
    optimizer = tf_keras.optimizers.Adam(1e-3)

    def score(x: Any) -> Any:
        for weight in weights:
            x = tf.nn.tanh(x @ weight)
        return tf.reduce_mean(x**2)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = score(x)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return weights, step, score, optimizer


def train(step: Any, x: Any) -> tuple[list[float], int, int]:
    """Losses of five steps, the peak of the last four, and that of all."""
    losses = [float(step(x))]
    first = memory.step_peak("CPU:0")
    memory.reset_peak("CPU:0")
    losses += [float(step(x)) for _ in range(4)]
    others = memory.memory_info("CPU:0")[1]
    return losses, others, max(first, others)


def too_small(step: Any, model: Any, x: Any) -> tuple[str, bool]:
    """What is said if the host has no room, and whether the variables stayed where they were."""
    free, host.free_bytes = host.free_bytes, lambda _: 1000
    try:
        said = raised(lambda: tfmem.optimize(step, strategy=tfmem.TensorFlowMem())(x))
    finally:
        host.free_bytes = free
    return said, all("/job:localhost" in v.device for v in model)


def difference(values: Any, variables: Any) -> float:
    pairs = zip(values, variables, strict=True)
    return max(float(np.abs(value - variable.numpy()).max()) for value, variable in pairs)


def restored(model: Any, expected: Any) -> float:
    """Saves the moved weights, spoils them, restores them; their distance from the original's."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(weights=model)
        path = checkpoint.save(os.path.join(folder, "weights"))
        for weight in model:
            weight.assign(tf.zeros_like(weight))
        checkpoint.restore(path)
    return difference(expected, model)
