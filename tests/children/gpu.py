"""What a GPU is asked, each check in a process of its own under a hard limit.

They ask a CPU as well, whose host is a second process, so that all but the GPU's own kernels is
tried without one. Each raises AssertionError, or returns facts to be kept. Beyond what tfmem itself
needs only tf-keras is imported, by the check of pictures.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from models.bench.lying import lied
from models.bench.overlap import ON_DEVICE, ON_HOST, PLAIN, Chain, host_of, overlap
from tfmem.bridge.capture import capture
from tfmem.costs import probes
from tfmem.graph import device_names
from tfmem.runtime import devices, memory

MIB = 2**20
WIDTH, LAYERS, BATCH = 1024, 8, 256
_BUDGET = 130 * MIB

CHECKS = {
    "copies_free_memory": 512 * MIB,
    "a_step_fits_that_did_not": 128 * MIB,
    "variables_live_on_the_host": 512 * MIB,
    "kernels_are_measured": 1024 * MIB,
    "links_are_probed": 1024 * MIB,
    "pictures_are_predicted": 1024 * MIB,
    "keras_does_not_compile": 512 * MIB,
    "saved_models_are_planned": 1024 * MIB,
    "too_small_plans_are_made_again": 130 * MIB,
    "memory_may_grow": 1024 * MIB,
}
"""Checks, and the limit in bytes of the device that each runs on."""


def network(layers: int = LAYERS) -> tuple[list[tf.Variable], Any, tf.Tensor]:
    """Weights, a training step with momentum, and its input."""
    random = np.random.default_rng(0)
    weights = [
        tf.Variable(random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32))
        for _ in range(layers)
    ]
    slots = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(tf.matmul(y, weight))
            loss = tf.reduce_mean(tf.square(y - x))
        for weight, slot, gradient in zip(
            weights, slots, tape.gradient(loss, weights), strict=True
        ):
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=slot.handle, lr=0.1, grad=gradient, momentum=0.9
            )
        return loss

    x = tf.constant(random.normal(size=(BATCH, WIDTH)).astype(np.float32))
    return weights + slots, step, x


def copies_free_memory() -> dict[str, Any]:
    """Each form of copy lowers the peak and changes no number."""
    found = overlap(Chain(side=1024, layers=24, steps=2))
    assert found.is_equal
    forms = {ON_HOST} | ({ON_DEVICE} if device_names.is_gpu(devices.scarce()) else set())
    assert found.ratios.keys() == forms
    for form in forms:
        assert found.peak_bytes[form] < 0.8 * found.peak_bytes[PLAIN], found.peak_bytes
    return {"peak_bytes": found.peak_bytes, "ratios": found.ratios}


def a_step_fits_that_did_not() -> dict[str, Any]:
    """Where the original runs out of memory, the planned one gives its first losses."""
    with host_of(devices.scarce()) as host:
        _, step, x = network()
        x = tf.repeat(x, 8, 0)
        try:
            loss = float(tf.function(step)(x))
        except tf.errors.ResourceExhaustedError:
            loss = None
        assert loss is None, "the original fits"
        planned = tfmem.optimize(step, budget=int(0.9 * 128 * MIB), host=host)
        losses = [float(planned(x)) for _ in range(4)]
        plan = planned.plans[-1]
    assert losses[-1] < losses[0]
    return {"losses": losses, "techniques": plan.techniques, "predicted": plan.peak_bytes}


def variables_live_on_the_host() -> dict[str, Any]:
    """Variables that do not fit are held on the host, and learn the same."""
    with host_of(devices.scarce()) as host:
        variables, step, x = network()
        start = [variable.numpy() for variable in variables]
        original = tf.function(step)
        expected = [float(original(x)) for _ in range(4)]
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        memory.reset_peak(devices.scarce())
        planned = tfmem.optimize(step, budget=40 * MIB, host=host)
        losses = [float(planned(x)) for _ in range(4)]
        _, peak = memory.memory_info(devices.scarce())
        away = sum(variable.device == host for variable in variables)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        planned.restore_variables()
    assert away >= len(variables) // 2, away
    return {"away": away, "losses": losses, "peak": peak}


def kernels_are_measured() -> dict[str, Any]:
    """Traced steps tell what each node takes; the next plan is made of that."""
    with host_of(devices.scarce()) as host:
        _, step, x = network()
        planned = tfmem.optimize(step, budget=70 * MIB, host=host, profile="measured")
        before = planned.plan(x).step_seconds
        for _ in range(6):
            planned(x)
        after = planned.plan(x)
        taken = memory.measure(planned, x, steps=8)
    assert after.step_seconds != before
    ratio = after.step_seconds / taken.step_seconds
    return {"predicted": after.step_seconds, "measured": taken.step_seconds, "ratio": ratio}


def links_are_probed() -> dict[str, Any]:
    """The link to the host has a speed each way, and one for both."""
    device = devices.scarce()
    side = min(2048, probes.probe_sides(device)[0])
    with host_of(device) as host:
        link = probes.probe_link(device, host, side)
    assert 1e8 < link.to_host < 1e12
    assert 1e8 < link.from_host < 1e12
    assert 1.0 <= link.duplex <= 2.0
    rates = probes.probe_rates(device, side)
    return {"link": vars(link), "rates": vars(rates)}


def pictures_are_predicted() -> dict[str, Any]:
    """Convolutions, in the layout that the device likes; the peak is what was said."""
    import tf_keras

    device = devices.scarce()
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    optimizer = tf_keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    images = tf.random.stateless_normal((16, 64, 64, 3), (1, 2))
    labels = tf.constant(np.arange(16) % 10)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model(images, True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    function = tf.function(step)
    concrete = function.get_concrete_function(images, labels)
    graph = capture(concrete, device=device, args=(images, labels)).graph
    turned = sum("LayoutOptimizer" in node.name for node in graph.nodes)
    assert bool(turned) == device_names.is_gpu(device), turned
    planned = tfmem.optimize(step, budget=900 * MIB, techniques=["order", "recompute"],
                             profile="measured")  # fmt: skip
    for _ in range(6):
        planned(images, labels)
    taken = memory.measure(planned, images, labels, steps=4)
    plan = planned.plans[-1]
    error = plan.peak_bytes / taken.peak_bytes - 1
    return {"turned": turned, "predicted": plan.peak_bytes, "measured": taken.peak_bytes,
            "error": error}  # fmt: skip


def keras_does_not_compile() -> dict[str, Any]:
    """Keras 3 compiles train steps for a GPU by itself; the callback has it leave that."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in range(4))]
    )
    model.compile("adam", "mse", jit_compile="auto")
    x = np.random.default_rng(0).normal(size=(128, WIDTH)).astype(np.float32)
    chosen = model.jit_compile
    history = model.fit(
        x, x, batch_size=32, epochs=2, verbose=0, callbacks=[tfmem.keras.MemoryBudget("400MB")]
    )
    assert model.jit_compile == chosen
    peaks = history.history["tfmem/peak_bytes"]
    assert peaks[-1] <= 400e6
    return {"losses": history.history["loss"], "peaks": peaks}


def saved_models_are_planned() -> dict[str, Any]:
    """A step that is saved with its plan has it, and learns the same, where it is loaded."""
    variables, step, x = _wider()
    module = tf.Module()
    module.state, plain = variables, tf.function(step).get_concrete_function(x)
    planned = tfmem.optimize(step, budget=_BUDGET, techniques=["order", "recompute"])
    made = {"plain": plain, "planned": planned.get_concrete_function(x)}
    taken, losses = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, function in made.items():
            tf.saved_model.save(module, f"{folder}/{name}", signatures=function)
        del planned, plain, made, module, variables, step
        for name in ("plain", "planned"):
            loaded = tf.saved_model.load(f"{folder}/{name}")
            train = loaded.signatures["serving_default"]
            losses[name], taken[name] = _trained(lambda train=train: train(x)["output_0"])
            del loaded, train
    np.testing.assert_allclose(losses["planned"], losses["plain"], rtol=1e-5)
    assert taken["planned"] < 0.75 * taken["plain"], taken
    return {"taken": taken, "losses": losses}


def too_small_plans_are_made_again() -> dict[str, Any]:
    """Plans made of sizes that are too small are out of memory; the steps are made once more."""
    _, step, x = _wider()
    with lied(0.8):
        planned = tfmem.optimize(step, budget=_BUDGET, techniques=["order", "recompute"])
        losses = [float(planned(x)) for _ in range(4)]
    events = [event for report in planned.reports() for event in report.events]
    assert events, "no step was out of memory"
    assert losses[-1] < losses[0]
    return {"events": events, "losses": losses, "predicted": planned.plans[-1].peak_bytes}


def memory_may_grow() -> dict[str, Any]:
    """A budget is kept where the allocator takes memory from the device as it needs it."""
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    device = devices.scarce()
    assert not device_names.is_gpu(device) or memory.region_bytes(device) is None
    _, step, x = _wider()
    planned = tfmem.optimize(step, budget=_BUDGET, techniques=["order", "recompute"])
    before = memory.memory_info(device)[0]
    losses, taken = _trained(lambda: planned(x))
    assert before + taken <= _BUDGET, (before, taken)
    return {"peak": before + taken, "predicted": planned.plans[-1].peak_bytes, "losses": losses}


def _wider() -> tuple[list[tf.Variable], Any, tf.Tensor]:
    """The network with a batch so large that its temporaries count; it takes 174 MiB."""
    variables, step, x = network()
    return variables, step, tf.repeat(x, 8, 0)


def _trained(step: Callable[[], tf.Tensor]) -> tuple[list[float], int]:
    """Losses of four steps, and by how many bytes more was in use meanwhile than before."""
    device = devices.scarce()
    memory.reset_peak(device)
    before = memory.memory_info(device)[0]
    losses = [float(step()) for _ in range(4)]
    return losses, memory.memory_info(device)[1] - before
