"""What the tests of the simulated GPU ask of it, in processes that have it."""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from tests.simgpu import op_requests
from tests.simgpu.op_cases import CASES
from tfmem.bridge import kernels
from tfmem.bridge.asked import question
from tfmem.bridge.shapes import Call
from tfmem.bridge.workspace import workspace
from tfmem.costs import probes
from tfmem.runtime import asking, devices, heap, memory

MIB = 2**20
SIDE, PRODUCTS = 512, 24


def facts() -> dict[str, Any]:
    """All that `test_device` looks at."""
    return _memory() | _kernels() | _copies()


def poisoned() -> dict[str, Any]:
    """What is read of a buffer that somebody has freed, and of one that has come over the link."""
    with tf.device("GPU:0"):
        ones = tf.ones([MIB])
        del ones
        freed = tf.raw_ops.Empty(shape=[MIB], dtype=tf.float32, init=False)
    with tf.device("CPU:0"):
        there = tf.ones([MIB])
    with tf.device("GPU:0"):
        arrived = tf.reduce_sum(tf.identity(there))
    return {"freed": bool(np.isnan(freed.numpy()).all()), "arrived": float(arrived)}


def labelled() -> dict[str, list[Any]]:
    """The loss of labelled sequences and its gradient, by the device and by the CPU."""
    logits = tf.random.stateless_normal((12, 2, 7), (1, 2))
    others: dict[str, Any] = {
        "labels_indices": tf.constant([[0, 0], [0, 1], [1, 0]], tf.int64),
        "sequence_length": tf.constant([12, 10]),
    }
    labels = tf.constant([1, 2, 3])
    with tf.device("GPU:0"):  # where the class of no label is the first
        loss, back = tf.raw_ops.CTCLossV2(inputs=logits, labels_values=labels, **others)
    with tf.device("CPU:0"):  # where it is the last
        expected, other = tf.raw_ops.CTCLoss(
            inputs=tf.roll(logits, -1, 2), labels_values=labels - 1, **others
        )
    return {
        "found": [loss.numpy().tolist(), back.numpy().tolist()],
        "expected": [expected.numpy().tolist(), tf.roll(other, 1, 2).numpy().tolist()],
    }


def probed() -> dict[str, float]:
    """What tfmem's probes find the device and its link to be capable of, in the median of three.

    And the bytes that came from memory which is not pinned.
    """
    device, host = map(devices.full_name, ("GPU:0", "CPU:0"))
    library = _library()
    found = [
        vars(probes.probe_rates(device, 1024)) | vars(probes.probe_link(device, host, 1024))
        for _ in range(3)
    ]
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    return medians | {"h2d_pageable_bytes": library.simgpu_sum(b"h2d_pageable_bytes")}


def asked() -> dict[str, Any]:
    """What a kernel says that it holds, and asks for in a step; what those say that cannot run.

    The CPU's product of float16 holds all three matrices as float32, if they are large.
    """
    device, x = devices.full_name("GPU:0"), tf.ones([SIDE, SIDE], tf.float16)
    step = tf.function(lambda x: tf.matmul(x, x))
    graph_def = step.get_concrete_function(x).graph.as_graph_def()
    node = next(node for node in graph_def.node if node.op == "MatMul")
    node.device = device
    made = [(x.dtype, (SIDE, SIDE))]
    told = question(node, made * 2, {}, made)
    assert told is not None
    step(x)
    with heap.traced(device) as events:
        product = step(x)
    requests = [one.requested for one in events if one.node == node.name]
    large = ((x.dtype, (2**15, 2**15)),) * 2
    wrong = ((x.dtype, (SIDE, SIDE)), (x.dtype, (SIDE - 1, SIDE)))
    others = [asking.ask(replace(told, inputs=given)) for given in (large, wrong)]
    open_shape = question(node, [*made, (x.dtype, None)], {}, made)
    answer = asking.ask(told)
    return {
        "shapes": answer and answer.shapes,
        "scratch": answer and answer.scratch,
        "requests": requests,
        "output": 2 * math.prod(product.shape),
        "others": [*others, open_shape],
    }


def recorded() -> dict[str, Any]:
    """A row of what a kernel asks for."""
    return op_requests.recorded(
        "MatMul", CASES["MatMul"], tf.float16, 40, devices.full_name("GPU:0")
    )


def swapped() -> dict[str, Any]:
    """What a step returns whose activations cross to the host and back, and what it should."""
    weights = [tf.random.stateless_normal([SIDE, SIDE], [0, i]) / SIDE**0.5 for i in range(8)]
    x = tf.random.stateless_normal([SIDE, SIDE], [1, 1])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for weight in weights:
                y = tf.tanh(tf.matmul(y, weight))
        return tape.gradient(y, x)

    with tf.device("CPU:0"):
        expected = tf.function(step)(x)
    techniques = ("order", "swap")
    plain = tfmem.optimize(step, techniques=techniques).plan(x)
    budget = int(0.8 * plain.baseline_peak_bytes)
    planned = tfmem.optimize(step, budget=budget, techniques=techniques)
    differences = [float(tf.reduce_max(tf.abs(planned(x) - expected))) for _ in range(3)]
    return {"swapped": len(planned.plans[-1].transfers), "differences": differences}


def normalised(events: str) -> dict[str, Any]:
    """Differences of batch norms that Grappler fuses, by type and side inputs; ops that ran.

    Also how many it should fuse: of float16 not where oneDNN's kernels do not take that.
    """

    def differences(dtype: tf.DType, sides: int) -> float:
        shape, ones = [4, 8, 8, 16], tf.ones([16])
        x, side = (tf.cast(tf.random.stateless_normal(shape, [i, 1]), dtype) for i in (1, 2))

        @tf.function
        def inference(x: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
            y = tf.raw_ops.FusedBatchNormV3(
                x=2 * x, scale=1.5 * ones, offset=0.1 * ones, mean=0.3 * ones, variance=2 * ones,
                epsilon=1e-3, is_training=False,
            ).y  # fmt: skip
            return tf.nn.relu(y + side if sides else y) + 1

        with tf.device("CPU:0"):
            expected = inference(x, side).numpy()
        return float(np.abs(inference(x, side).numpy() - expected).max())

    library = _library()
    library.simgpu_keep_events(1)
    found = {
        f"{dtype.name} {sides}": differences(dtype, sides)
        for dtype in (tf.float32, tf.float16, tf.bfloat16)
        for sides in (0, 1)
    }
    library.simgpu_write_events(events.encode())
    lines = Path(events).read_text(encoding="utf-8").splitlines()
    return {
        "differences": found,
        "ops": [line.rsplit(":", 1)[-1] for line in lines],
        "fused": 2 + 2 * (kernels.runs_half() or not kernels.onednn_types()),
    }


def mirrored(budget: int) -> dict[str, Any]:
    """Losses and peaks of two devices that train one model, with a budget of each or without.

    Also what one of them asks for to sum up gradients with the other, and what was foreseen.
    """
    both = ("GPU:0", "GPU:1")
    strategy = tf.distribute.MirroredStrategy(both)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(256, "relu") for _ in range(6)]
        model = tf.keras.Sequential([tf.keras.Input([64]), *layers, tf.keras.layers.Dense(1)])
        random = np.random.default_rng(0)
        model.set_weights([0.05 * random.normal(size=one.shape) for one in model.weights])
        optimizer = tf.keras.optimizers.SGD(1e-2)
        optimizer.build(model.trainable_variables)

    def replica(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.random.stateless_normal([256, 64], [1, context.replica_id_in_sync_group])
    )
    run = tfmem.optimize(step, budget=budget, device=both) if budget else step
    losses = [float(run(batches)) for _ in range(2)]
    for device in both:
        memory.reset_peak(device)
    losses += [float(run(batches)) for _ in range(3)]
    peaks = [memory.memory_info(device)[1] for device in both]
    with heap.traced(devices.full_name(both[1])) as events:
        losses.append(float(run(batches)))
    asked = [e.requested for e in events if e.is_request and "Collective" in e.node]
    weights = (sum(math.prod(one.shape) for one in model.trainable_weights),)
    call = Call("CollectiveReduceV2", [weights, (), ()], [weights], constants={1: (len(both),)})
    foreseen = [nbytes for nbytes in workspace(call, on_gpu=True) if nbytes]
    return {"losses": losses, "peaks": peaks, "asked": asked, "foreseen": foreseen}


def _memory() -> dict[str, Any]:
    memory.memory_info("GPU:0")
    held = tf.zeros([2 * MIB])
    memory.reset_peak("GPU:0")
    with heap.traced(devices.full_name("GPU:0")) as events:
        tf.zeros([4 * MIB])
    in_use, peak = memory.memory_info("GPU:0")
    try:
        tf.zeros([256 * MIB])
        raised = ""
    except tf.errors.ResourceExhaustedError as error:
        raised = type(error).__name__
    return {
        "limit": memory.device_limit("GPU:0"),
        "device": held.device,
        "in_use": in_use // MIB,
        "peak": peak // MIB,
        "events": [event.requested // MIB for event in events if event.requested >= MIB],
        "too_large": raised,
    }


def _kernels() -> dict[str, Any]:
    x = tf.random.stateless_normal([SIDE, SIDE], [1, 2])
    found = {}
    for name, function in {
        "product": tf.function(lambda x: tf.matmul(x, x)),
        "maximum": tf.function(lambda x: tf.maximum(x, tf.reverse(x, [0]))),
    }.items():
        function(x).numpy()
        sums = _sums(lambda function=function: function(x).numpy(), "seconds", "count")
        found[name] = [sums["kernel_seconds"], sums["kernel_count"]]
    return found


def _copies() -> dict[str, Any]:
    x = tf.random.stateless_normal([SIDE, SIDE], [1, 2]) / SIDE**0.5
    large = tf.zeros([4 * MIB])

    def products(x: tf.Tensor) -> tf.Tensor:
        for _ in range(PRODUCTS):
            x = tf.matmul(x, x)
        return x[0, 0]

    @tf.function
    def alone(x: tf.Tensor, large: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return products(x), large[0]

    @tf.function
    def copying(x: tf.Tensor, large: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("CPU:0"):
            away = tf.identity(large)
            last = tf.reduce_sum(away[:1])
        return products(x), last

    def run(function: Callable[..., Any]) -> None:
        for value in function(x, large):
            value.numpy()

    seconds = {}
    for name, function in {"alone": alone, "copying": copying}.items():
        run(function)
        seconds[name] = min(_seconds(lambda function=function: run(function)) for _ in range(3))
    sums = _sums(lambda: run(copying), "bytes", "seconds", "pageable_bytes")
    return {"seconds": seconds, "copied": sums}


def _sums(function: Callable[[], Any], *names: str) -> dict[str, float]:
    """What the device counted while a function ran to its end."""
    library = _library()
    library.simgpu_reset()
    function()
    of = [f"{kind}_{name}" for kind in ("kernel", "d2h", "h2d") for name in names]
    return {name: library.simgpu_sum(name.encode()) for name in of}


def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"])
    found.simgpu_sum.restype = ctypes.c_double
    return found


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
