"""What tests/planning/test_recompute.py asks of a process of its own: real steps, measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np

import tfmem
from models.bench.experiment import load
from models.zoo.task import Task
from tfmem.runtime import memory

STEPS = 20

STATIC: dict[str, Any] = {"profile": "static"}
"""Rates probed on a busy machine differ from one call to the next, and so do the plans."""

ALONE = mock.patch("tfmem.functions.decide.bytes_beside", return_value=0)
"""What data sets and earlier traces hold is no part of the budget, nor of what is measured here;
the watch, which would count it, is off."""

SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 6, "d_model": 64, "d_head": 16, "length": 64, "dropout": 0.1},
    "densenet": {"layers": 4, "growth": 8, "batch": 16, "side": 16},
    "unet": {"width": 8, "side": 32},
    "lstm": {"length": 14, "batch": 64},
    "moe_transformer": {"layers": 1, "d_model": 64, "hidden": 256, "heads": 2, "length": 64},
    "resnet": {"depth": 14, "width": 16, "batch": 16, "side": 32},
}


def recomputed(model: str, share: float) -> dict[str, Any]:
    """20 steps of a model, within a share of its peak by recomputation alone, then as it is.

    The planned steps run first: what an earlier run leaves in the allocator pads their tensors.
    """
    import tensorflow as tf

    task = built(model)
    function = tf.function(task.step)
    batch = next(iter(task.batches))
    ordered = _ordered(function)
    budget = int(ordered.plan(*batch).peak_bytes * share)
    techniques = ["order", "recompute"]
    step = tfmem.optimize(function, budget=budget, techniques=techniques, watch=False)
    with ALONE:
        step.get_concrete_function(*batch)
        plan = step.plan(*batch)
    del batch
    first = snapshot(task.variables)
    found, measured = trained(task, step, task.variables)
    values = snapshot(task.variables)
    begin_again(task.variables, first)
    losses, _ = trained(task, ordered, task.variables)
    return {
        "predicted": plan.peak_bytes,
        "budget": plan.budget,
        "clones": len(plan.recomputations),
        "measured": measured,
        "losses": [losses, found],
        "difference": _difference(snapshot(task.variables), values),
    }


def snapshot(variables: Iterable[Any]) -> list[np.ndarray]:
    """Values of variables, copied."""
    return [np.array(variable) for variable in variables]


def begin_again(variables: Iterable[Any], values: Iterable[np.ndarray]) -> None:
    """Gives variables the values of a snapshot."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _difference(plain: list[Any], optimized: list[Any]) -> float:
    """The largest difference of a variable, relative to its largest value."""
    return max(
        float(np.max(np.abs(a - b), initial=0.0)) / (float(np.max(np.abs(a), initial=0.0)) or 1.0)
        for a, b in zip(plain, optimized, strict=True)
    )


def everything(model: str, _: Any = None) -> dict[str, Any]:
    """20 steps in order, then in little more than all techniques together reach at least.

    The first three are compared with plain TensorFlow's too, whose kernels may be fused otherwise:
    a U-Net is 1.2e-7 from it in the third step, and drifts from there.
    """
    import tensorflow as tf

    facts: dict[str, Any] = {"losses": [], "measured": []}
    task = built(model)
    function = tf.function(task.step)
    first, values = snapshot(task.variables), []
    with tfmem.host_process() as host:
        for kind in ("plain", "ordered", "everything"):
            begin_again(task.variables, first)
            step: Any = function
            near: Iterable[Any] = task.variables
            if kind == "ordered":
                step = _ordered(function)
            elif kind == "everything":
                step, plan = _in_little(function, next(iter(task.batches)), host)
                near = [v for v in task.variables if v.device != plan.host]
                facts |= {
                    "predicted": plan.peak_bytes,
                    "budget": plan.budget,
                    "before": plan.baseline_peak_bytes,
                    "used": [len(plan.recomputations), len(plan.evictions), len(plan.placements)],
                    "plan": plan.to_json(),
                }
            losses, measured = trained(task, step, near)
            facts["losses"].append(losses)
            facts["measured"].append(measured)
            values.append(snapshot(task.variables))
    return facts | {"difference": _difference(*values[1:])}


def _in_little(function: Any, batch: Any, host: str) -> tuple[tfmem.Optimized, tfmem.Plan]:
    """A step by all techniques in little more than they need at least, its variables moved."""
    with ALONE:
        try:
            tfmem.optimize(function, budget=1, host=host, **STATIC).plan(*batch)
        except tfmem.BudgetError as error:
            budget = int(1.1 * (error.least_bytes or 0))
        step = tfmem.optimize(function, budget=budget, host=host, watch=False, **STATIC)
        step.get_concrete_function(*batch)
        return step, step.plan(*batch)


def _allocated(variables: Iterable[Any]) -> int:
    """Bytes that variables of four bytes an element take in the allocator."""
    return sum(-(-4 * v.shape.num_elements() // 256) * 256 for v in variables)


def _ordered(function: Any) -> tfmem.Optimized:
    """The function one node at a time, and nothing else done to it."""
    return tfmem.optimize(function, strategy=tfmem.TensorFlowMem(window=1), techniques=["order"])


def built(model: str) -> Task:
    module = load(model)
    return module.build(type(module.CONFIGS["small"])(**SIZES[model]))


def trained(task: Task, step: Any, near: Iterable[Any]) -> tuple[list[float], int]:
    """Losses, and the bytes that steps took beyond the variables near by, and those."""
    import tensorflow as tf

    batches = iter(task.batches)
    losses = [float(step(*next(batches)))]
    own = _allocated(near)
    before, _ = memory.memory_info("CPU:0")
    tf.config.experimental.reset_memory_stats("CPU:0")
    losses += [float(step(*next(batches))) for _ in range(STEPS - 1)]
    return losses, memory.memory_info("CPU:0")[1] - before + own


def dropped(_: Any = None) -> dict[str, Any]:
    """Dropout by a stateful op: its mask is kept, and each step drops what the original does."""
    import tensorflow as tf

    weights = [tf.Variable(tf.random.stateless_normal([256, 256], [i, 1]) * 0.06) for i in range(8)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.gelu(tf.nn.dropout(tf.tanh(tf.matmul(y, weight)), 0.3))
            loss = tf.reduce_mean(tf.square(y))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal([512, 256], [3, 4])
    start = [weight.numpy() for weight in weights]
    facts: dict[str, Any] = {"losses": []}
    for share in (None, 0.6):
        for weight, value in zip(weights, start, strict=True):
            weight.assign(value)
        tf.random.set_seed(11)  # before the trace, which takes the op's seed from it
        function: Any = tf.function(step)
        if share:
            ordered = tfmem.optimize(tf.function(step), techniques=["order"]).plan(x)
            budget = int(ordered.peak_bytes * share)
            tf.random.set_seed(11)
            function = tfmem.optimize(
                tf.function(step), budget=budget, techniques=["order", "recompute"]
            )
            facts["clones"] = [one.node for one in function.plan(x).recomputations]
        facts["losses"].append([float(function(x)) for _ in range(5)])
    return facts


def crowded(model: str, _: Any = None) -> dict[str, Any]:
    """Steps within a budget that another model's variables take a part of."""
    import tensorflow as tf

    task = built(model)
    function = tf.function(task.step)
    batch = next(iter(task.batches))
    alone = tfmem.optimize(function, budget=2**40).plan(*batch).baseline_peak_bytes
    other = tf.Variable(tf.zeros([alone // 4]))
    budget = int(1.6 * alone)
    facts: dict[str, Any] = {"alone": alone, "budget": budget, "said": ""}
    try:
        tfmem.optimize(function, budget=alone).plan(*batch)
    except tfmem.BudgetError as error:
        facts |= {"said": str(error), "least": error.least_bytes}
    step = tfmem.optimize(function, budget=budget)
    facts["predicted"] = step.plan(*batch).peak_bytes
    facts["measured"] = memory.measure(step, *batch, steps=8).peak_bytes
    return facts | {"other": other.shape.num_elements()}
