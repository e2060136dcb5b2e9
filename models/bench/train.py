"""Trains any of the models, with plain TensorFlow or under tfmem, and says what it took.

TensorFlow's allocator reads its environment at the first allocation, so `limit_memory` comes
before any tensor is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from models.bench.cluster import cluster
from models.bench.comparators import COMPARATORS, CannotRun, changed, prepare
from models.bench.experiment import PLANNED, TECHNIQUES, Experiment, Row, Step, load
from models.zoo.task import Task
from tfmem.errors import BudgetError, Error
from tfmem.graph import device_names
from tfmem.runtime import devices, memory
from tfmem.runtime.limited import is_out_of_memory

_FILLED = 0.9
"""Part of the limit of another machine's device that is planned for."""

OnStep = Callable[[Step], object]


def limit_memory(nbytes: int | None) -> None:
    """Makes this process' `CPU:0` keep statistics and, if asked, a hard limit (whole MiB).

    Only before TensorFlow's first allocation.
    """
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    if nbytes is not None:
        os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(nbytes // 2**20)


def train(experiment: Experiment, on_step: OnStep | None = None) -> Row:
    """Trains; whatever goes wrong is told in the row's outcome.

    Args:
      experiment: what and how.
      on_step: called after each step.
    """
    row = Row(experiment.model, experiment.mode, experiment.limit, config=dict(experiment.changes))
    progress: dict[str, Any] = {"losses": [], "seconds": []}
    try:
        with contextlib.ExitStack() as stack:
            _train(experiment, progress, stack, on_step)
    except Exception as error:
        least = error.least_bytes if isinstance(error, BudgetError) else None
        row = dataclasses.replace(row, outcome=describe(error), least_bytes=least)

    losses, seconds = progress.pop("losses"), progress.pop("seconds")
    row = dataclasses.replace(
        row,
        losses=tuple(losses),
        step_seconds=statistics.median(seconds[experiment.warm_up :] or seconds)
        if seconds
        else None,
        **progress,
    )
    if row.has_trained and not all(map(math.isfinite, losses)):
        row = dataclasses.replace(row, outcome="error: the loss is not finite")
    return row


def train_alone(experiment: dict[str, Any]) -> dict[str, Any]:
    """`train` for another process to call: fields of a `Experiment` in, fields of the `Row` out."""
    made = Experiment(**experiment)
    if not made.log:
        return dataclasses.asdict(train(made))
    with open(made.log, "w", encoding="utf-8") as log:
        return dataclasses.asdict(train(made, lambda step: print(step, file=log, flush=True)))


def _train(
    experiment: Experiment,
    progress: dict[str, Any],
    stack: contextlib.ExitStack,
    on_step: OnStep | None,
) -> None:
    tiers = _start(experiment, stack)
    task = _build(experiment, tiers)
    progress |= {"parameters": task.parameters, "tokens": task.tokens}
    batches = iter(task.batches)
    batch = next(batches)
    step, plan = _prepare(experiment, task, batch, tiers)
    if plan is not None:
        progress |= _predictions(plan)

    stack.enter_context(locked(experiment.lock))
    tiers.reset()
    if experiment.report and isinstance(step, tfmem.Optimized):
        stack.callback(_write_report, step, batch, experiment.report)
    for number in range(1, experiment.steps + 1):
        start = time.perf_counter()
        loss = float(step(*batch))
        seconds = time.perf_counter() - start
        progress["losses"].append(loss)
        progress["seconds"].append(seconds)
        progress["measured_peak_bytes"] = tiers.peak_bytes()
        if on_step:
            on_step(Step(number, loss, seconds, task.tokens))
        batch = next(batches)
        if number == experiment.warm_up < experiment.steps and (
            tiers.is_gpu or experiment.warm_up > 1
        ):
            tiers.reset()
    if isinstance(step, tfmem.Optimized):
        progress |= _predictions(step.plans[-1])

    if experiment.save:
        np.savez(experiment.save, **{f"{i:04d}": v.numpy() for i, v in enumerate(task.variables)})


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Waits until no one else is in this scope with the same file; "" waits for nothing."""
    if not path:
        yield
        return
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_report(step: tfmem.Optimized, batch: tuple[tf.Tensor, ...], path: str) -> None:
    report = step.report(*batch)
    if path.endswith(".html"):
        report.html(path)
    else:
        Path(path).write_text(report.to_json(), encoding="utf-8")


def alternate(experiment: Experiment, modes: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of `rounds` steps in each mode, taken in turn, so that load falls on all alike.

    All modes train the same variables in this process, so none may place them elsewhere.
    """
    with contextlib.ExitStack() as stack:
        tiers = _start(experiment, stack)
        task = _build(experiment, tiers)
        batch = next(iter(task.batches))
        prepared = [dataclasses.replace(experiment, mode=mode) for mode in modes]
        steps = {one.mode: _prepare(one, task, batch, tiers)[0] for one in prepared}
        seconds: dict[str, list[float]] = {mode: [] for mode in steps}
        for number in range(rounds + 1):
            for mode, step in steps.items():
                start = time.perf_counter()
                float(step(*batch))
                if number:  # the first round warms up
                    seconds[mode].append(time.perf_counter() - start)
        return seconds


@dataclass(frozen=True)
class Tiers:
    """Where a model trains: what `tfmem.optimize` takes, and the memory of the scarce devices.

    Attributes:
      device: the scarce device, or devices; None for this process's.
      host: what takes what leaves it, one for each; None for tfmem's default.
      reset: lets the peak begin anew.
      peak_bytes: the most that any of the devices held since.
      is_gpu: whether the device is a GPU.
    """

    device: list[str] | None
    host: str | list[str] | None
    reset: Callable[[], None]
    peak_bytes: Callable[[], int]
    is_gpu: bool = False


def _start(experiment: Experiment, stack: contextlib.ExitStack) -> Tiers:
    """Starts what an experiment needs beside this process."""
    if experiment.machines:
        made = stack.enter_context(
            cluster(experiment.machines, experiment.limit, experiment.host_process)
        )
        hosts = [process.device for process in made.hosts]
        workers = [process.device for process in made.workers]
        return Tiers(workers, hosts or None, made.reset, lambda: made.peak_bytes)
    host = None
    if experiment.host_process and not tf.config.list_logical_devices("GPU"):
        host = stack.enter_context(tfmem.host_process())
    device = devices.scarce()
    return Tiers(
        None,
        host,
        lambda: tf.config.experimental.reset_memory_stats(device),
        lambda: memory.memory_info(device)[1],
        device_names.is_gpu(device),
    )


def _build(experiment: Experiment, tiers: Tiers) -> Task:
    config = changed(experiment.mode, experiment.make_config())
    if experiment.machines:
        starts = int(experiment.starts_on_host)
        config = dataclasses.replace(config, machines=experiment.machines, on_hosts=starts)
    has_host = tiers.is_gpu or tiers.host
    on_host = experiment.starts_on_host and has_host and not experiment.machines
    with tfmem.host_variables() if on_host else contextlib.nullcontext():
        return load(experiment.model).build(config)


def _prepare(
    experiment: Experiment, task: Task, batch: tuple[tf.Tensor, ...], tiers: Tiers
) -> tuple[Callable[..., tf.Tensor], tfmem.Plan | None]:
    """The step as a function that is ready to run, and its plan."""
    function = tf.function(task.step)
    if experiment.mode == "plain":
        return function.get_concrete_function(*batch), None
    if experiment.mode in COMPARATORS:
        return prepare(experiment.mode, task, batch), None
    is_planned = experiment.mode in PLANNED
    limit = experiment.limit if is_planned else None
    if limit and experiment.machines:  # whose allocators' holes are not known here
        limit = int(_FILLED * limit)
    optimized = tfmem.optimize(
        function,
        budget=experiment.budget or limit,
        device=tiers.device,
        host=tiers.host,
        techniques=TECHNIQUES[experiment.mode],
        strategy=None if is_planned else tfmem.TensorFlowMem(),
        profile=experiment.profile,
    )
    optimized.get_concrete_function(*batch)
    return optimized, optimized.plans[-1]


def _predictions(plan: tfmem.Plan) -> dict[str, Any]:
    """What a plan says of its step, as fields of a `Row`."""
    plans = (plan, *plan.others)
    return {
        "predicted_peak_bytes": max(one.peak_bytes for one in plans),
        "predicted_seconds": max(one.step_seconds for one in plans),
        "predicted_slowdown": max(one.step_seconds / one.baseline_step_seconds for one in plans),
        "used": {
            "recomputed": sum(len(one.recomputations) for one in plans),
            "swapped": sum(len(one.evictions) for one in plans),
            "placed": sum(len(one.placements) for one in plans),
        },
    }


def describe(error: Exception) -> str:
    """An error as the outcome of a run, in one line."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, CannotRun):
        return f"cannot run: {text}"
    if is_out_of_memory(error) and not isinstance(error, Error):
        return "out of memory"
    if isinstance(error, Error):
        return f"refused: {text}"
    return f"error: {type(error).__name__}: {text}"
