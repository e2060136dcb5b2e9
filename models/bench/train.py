"""Trains any of the models, with plain TensorFlow or under tfmem, and says what it took.

`train` does it and returns a `Row`; `main` is the command line that each model's module shares.
TensorFlow's allocator reads its environment at the first allocation, so `limit_memory` comes
before any tensor is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib
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
from absl import app, flags

import tfmem
from models.bench.cluster import cluster
from models.bench.comparators import COMPARATORS, CannotRun, changed, prepare
from models.bench.table import show_bytes, show_count
from models.zoo.task import Model, Task
from tfmem.errors import BudgetError, Error
from tfmem.graph import device_names
from tfmem.runtime import devices, memory
from tfmem.runtime.limited import is_out_of_memory
from tfmem.units import parse_bytes

TECHNIQUES = {
    "none": (),
    "order": ("order",),
    "recompute": ("order", "recompute"),
    "order+swap": ("order", "swap"),
    "order+swap+place": ("order", "swap", "place"),
    "tfmem": None,
}
"""What tfmem may do in each of its modes; None allows everything. "recompute" and "tfmem" are plans
for the budget, the others carry the published policy out, whether it is needed or not."""

_FILLED = 0.9
"""Part of the limit of another machine's device that is planned for."""

PLANNED = ("recompute", "tfmem")
"""Modes in which tfmem plans for a budget."""

MODES = ("plain", *COMPARATORS, *TECHNIQUES)
"""How a model can be trained; "plain" is TensorFlow as it is."""

MODELS = (
    "moe_transformer", "transformer", "resnet", "wgan_gp", "deepspeech",
    "gpt", "unet", "densenet", "convnet", "lstm",
)  # fmt: skip
"""The five models of the published tables, then others."""


@dataclass(frozen=True)
class Row:
    """What one run gave; its fields are those of a line of `--json`.

    Attributes:
      model: name of the model.
      mode: one of `MODES`.
      limit_bytes: hard limit of the device's memory; None for none.
      measured_peak_bytes: by the device's allocator, over the steps (on a GPU, where kernels are
        tried first, and with a measured profile, after those that warm up); None if none ended.
      predicted_peak_bytes: by the plan; None without one.
      step_seconds: median over the steps after those that warm up.
      parameters: how many numbers are trained.
      losses: of each step.
      predicted_slowdown: the plan's step time over the original's, both simulated.
      used: how many values the plan recomputes and swaps, and how many variables it places.
      least_bytes: where a budget was refused, the least that would not be.
      outcome: "trained", "out of memory", "refused: ..." (by tfmem), "cannot run: ..." (a
        comparator, and why) or "error: ...".
      config: the fields of the model's configuration that are not the default's.
      predicted_seconds: the plan's step time, simulated.
      tokens: what a step trains on, as the model counts it: tokens, pictures, frames.
    """

    model: str
    mode: str
    limit_bytes: int | None = None
    measured_peak_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    step_seconds: float | None = None
    parameters: int | None = None
    losses: tuple[float, ...] = ()
    predicted_slowdown: float | None = None
    used: dict[str, int] = dataclasses.field(default_factory=dict)
    least_bytes: int | None = None
    outcome: str = "trained"
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    predicted_seconds: float | None = None
    tokens: int | None = None

    @property
    def has_trained(self) -> bool:
        """Whether every step ended with a finite loss."""
        return self.outcome == "trained"


@dataclass(frozen=True)
class Step:
    """One step that has been made: its number from 1, its loss, its seconds, its tokens."""

    number: int
    loss: float
    seconds: float
    tokens: int

    def __str__(self) -> str:
        rate = self.tokens / self.seconds
        return f"step {self.number:4d}   loss {self.loss:.4f}   {rate:8.0f} tokens/s"


OnStep = Callable[[Step], object]


@dataclass(frozen=True)
class Setting:
    """What to train, and how.

    Attributes:
      model: name of the model's module.
      config: "small" or "published".
      changes: fields of the configuration to replace, by name.
      mode: one of `MODES`.
      budget: bytes that tfmem may use; None for the limit, if there is one.
      limit: hard limit in bytes of the process, to be reported; see `limit_memory`.
      steps: how many steps.
      host_process: whether a second local process lends its memory where there is no GPU.
      starts_on_host: whether large variables are made on the host in the first place, for models
        whose variables alone are too large for the device.
      machines: over how many local servers the model is spread, each with the limit for its own; 0
        trains it in this process.
      save: path of an .npz file that takes all variables after the last step; "" for none.
      report: path of a file that takes the report of a planned run, a page if it ends in .html and
        JSON otherwise.
      log: path of a file that takes a line about each step; "" for none.
      turn: which of several equal runs this is.
      profile: as of `tfmem.optimize`, for planned modes.
      lock: path of a file that is locked while steps are made, so that runs which are prepared side
        by side make them one after the other; "" for none.
    """

    model: str
    config: str = "small"
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    mode: str = "plain"
    budget: int | None = None
    limit: int | None = None
    steps: int = 5
    host_process: bool = False
    starts_on_host: bool = False
    machines: int = 0
    save: str = ""
    report: str = ""
    log: str = ""
    turn: int = 0
    profile: str = "auto"
    lock: str = ""

    @property
    def warm_up(self) -> int:
        """Steps at the beginning that are not like the others: the first, and those traced."""
        return 5 if self.mode in PLANNED and self.profile == "measured" else 1

    def in_mode(
        self, mode: str, changes: dict[str, Any] | None = None, starts_on_host: bool = False
    ) -> Setting:
        """The same in another mode, with a host where the mode can use one."""
        return dataclasses.replace(
            self,
            mode=mode,
            changes=self.changes if changes is None else changes,
            host_process=mode == "tfmem" or "swap" in mode,
            starts_on_host=starts_on_host and (mode == "tfmem" or "place" in mode),
        )

    @property
    def own_limit(self) -> int | None:
        """The limit of the process that trains; machines have it instead where there are any."""
        return None if self.machines else self.limit

    def make_config(self) -> Any:
        """The model's configuration with the changes made."""
        return dataclasses.replace(load(self.model).CONFIGS[self.config], **self.changes)


def load(name: str) -> Model:
    """The module of a model."""
    return importlib.import_module(f"models.zoo.{name}")  # type: ignore[return-value]


def limit_memory(nbytes: int | None) -> None:
    """Makes this process' `CPU:0` keep statistics and, if asked, a hard limit (whole MiB).

    Only before TensorFlow's first allocation.
    """
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    if nbytes is not None:
        os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(nbytes // 2**20)


def train(setting: Setting, on_step: OnStep | None = None) -> Row:
    """Trains; whatever goes wrong is told in the row's outcome.

    Args:
      setting: what and how.
      on_step: called after each step.
    """
    row = Row(setting.model, setting.mode, setting.limit, config=dict(setting.changes))
    progress: dict[str, Any] = {"losses": [], "seconds": []}
    try:
        with contextlib.ExitStack() as stack:
            _train(setting, progress, stack, on_step)
    except Exception as error:
        least = error.least_bytes if isinstance(error, BudgetError) else None
        row = dataclasses.replace(row, outcome=describe(error), least_bytes=least)

    losses, seconds = progress.pop("losses"), progress.pop("seconds")
    row = dataclasses.replace(
        row,
        losses=tuple(losses),
        step_seconds=statistics.median(seconds[setting.warm_up :] or seconds) if seconds else None,
        **progress,
    )
    if row.has_trained and not all(map(math.isfinite, losses)):
        row = dataclasses.replace(row, outcome="error: the loss is not finite")
    return row


def train_alone(setting: dict[str, Any]) -> dict[str, Any]:
    """`train` for another process to call: fields of a `Setting` in, fields of the `Row` out."""
    made = Setting(**setting)
    if not made.log:
        return dataclasses.asdict(train(made))
    with open(made.log, "w", encoding="utf-8") as log:
        return dataclasses.asdict(train(made, lambda step: print(step, file=log, flush=True)))


def _train(
    setting: Setting,
    progress: dict[str, Any],
    stack: contextlib.ExitStack,
    on_step: OnStep | None,
) -> None:
    tiers = _start(setting, stack)
    task = _build(setting, tiers)
    progress |= {"parameters": task.parameters, "tokens": task.tokens}
    batches = iter(task.batches)
    batch = next(batches)
    step, plan = _prepare(setting, task, batch, tiers)
    if plan is not None:
        progress |= _predictions(plan)

    stack.enter_context(locked(setting.lock))
    tiers.reset()
    if setting.report and isinstance(step, tfmem.Optimized):
        stack.callback(_write_report, step, batch, setting.report)
    for number in range(1, setting.steps + 1):
        start = time.perf_counter()
        loss = float(step(*batch))
        seconds = time.perf_counter() - start
        progress["losses"].append(loss)
        progress["seconds"].append(seconds)
        progress["measured_peak_bytes"] = tiers.peak_bytes()
        if on_step:
            on_step(Step(number, loss, seconds, task.tokens))
        batch = next(batches)
        if number == setting.warm_up < setting.steps and (tiers.is_gpu or setting.warm_up > 1):
            tiers.reset()
    if isinstance(step, tfmem.Optimized):
        progress |= _predictions(step.plans[-1])

    if setting.save:
        np.savez(setting.save, **{f"{i:04d}": v.numpy() for i, v in enumerate(task.variables)})


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


def alternate(setting: Setting, modes: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of `rounds` steps in each mode, taken in turn, so that load falls on all alike.

    All modes train the same variables in this process, so none may place them elsewhere.
    """
    with contextlib.ExitStack() as stack:
        tiers = _start(setting, stack)
        task = _build(setting, tiers)
        batch = next(iter(task.batches))
        prepared = [dataclasses.replace(setting, mode=mode) for mode in modes]
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


def _start(setting: Setting, stack: contextlib.ExitStack) -> Tiers:
    """Starts what a setting needs beside this process."""
    if setting.machines:
        made = stack.enter_context(cluster(setting.machines, setting.limit, setting.host_process))
        hosts = [process.device for process in made.hosts]
        workers = [process.device for process in made.workers]
        return Tiers(workers, hosts or None, made.reset, lambda: made.peak_bytes)
    host = None
    if setting.host_process and not tf.config.list_logical_devices("GPU"):
        host = stack.enter_context(tfmem.host_process())
    device = devices.scarce()
    return Tiers(
        None,
        host,
        lambda: tf.config.experimental.reset_memory_stats(device),
        lambda: memory.memory_info(device)[1],
        device_names.is_gpu(device),
    )


def _build(setting: Setting, tiers: Tiers) -> Task:
    config = changed(setting.mode, setting.make_config())
    if setting.machines:
        starts = int(setting.starts_on_host)
        config = dataclasses.replace(config, machines=setting.machines, on_hosts=starts)
    has_host = tiers.is_gpu or tiers.host
    on_host = setting.starts_on_host and has_host and not setting.machines
    with tfmem.host_variables() if on_host else contextlib.nullcontext():
        return load(setting.model).build(config)


def _prepare(
    setting: Setting, task: Task, batch: tuple[tf.Tensor, ...], tiers: Tiers
) -> tuple[Callable[..., tf.Tensor], tfmem.Plan | None]:
    """The step as a function that is ready to run, and its plan."""
    function = tf.function(task.step)
    if setting.mode == "plain":
        return function.get_concrete_function(*batch), None
    if setting.mode in COMPARATORS:
        return prepare(setting.mode, task, batch), None
    is_planned = setting.mode in PLANNED
    limit = setting.limit if is_planned else None
    if limit and setting.machines:  # whose allocators' holes are not known here
        limit = int(_FILLED * limit)
    optimized = tfmem.optimize(
        function,
        budget=setting.budget or limit,
        device=tiers.device,
        host=tiers.host,
        techniques=TECHNIQUES[setting.mode],
        strategy=None if is_planned else tfmem.TensorFlowMem(),
        profile=setting.profile,
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


def main(name: str) -> None:
    """The command line of a model: `python -m models.zoo.NAME`."""
    configs = load(name).CONFIGS
    flags.DEFINE_enum("config", "small", sorted(configs), "Which sizes to begin with.")
    flags.DEFINE_enum("mode", "plain", list(MODES), "TensorFlow as it is, or tfmem's techniques.")
    flags.DEFINE_integer("steps", 30, "How many steps to train.", lower_bound=1)
    flags.DEFINE_string("budget", None, "Bytes tfmem may use on the device, as 500MB or 1GiB.")
    flags.DEFINE_string("limit", None, "Hard limit of the device's memory, as 600MB or 1GiB.")
    flags.DEFINE_bool("host_process", False, "Lend the memory of a second local process.")
    flags.DEFINE_bool("starts_on_host", False, "Make large variables on the host from the start.")
    define_config_flags(configs["small"])
    app.run(lambda _: _main(name))


def _main(name: str) -> None:
    values = flags.FLAGS
    setting = Setting(
        model=name,
        config=values.config,
        changes=config_changes(load(name).CONFIGS["small"]),
        mode=values.mode,
        budget=parse_bytes(values.budget) if values.budget else None,
        limit=parse_bytes(values.limit, "limit") if values.limit else None,
        steps=values.steps,
        host_process=values.host_process,
        starts_on_host=values.starts_on_host,
    )
    limit_memory(setting.limit)
    if setting.limit:
        memory.claim_memory()
    row = train(setting, print)

    print(f"outcome: {row.outcome}")
    if row.parameters is not None:
        print(f"parameters: {show_count(row.parameters)}")
    print(f"peak, measured: {show_bytes(row.measured_peak_bytes)}")
    print(f"peak, predicted: {show_bytes(row.predicted_peak_bytes)}")
    if not row.has_trained:
        raise SystemExit(1)


def define_config_flags(config: Any) -> None:
    """A flag for each field of a configuration, whose default is the configuration's own."""
    kinds = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
    for field in dataclasses.fields(config):
        text = f"{field.metadata['help']} Small: {field.default}."
        kinds[type(field.default)](field.name, None, text)


def config_changes(config: Any) -> dict[str, Any]:
    """The fields of a configuration that were given as flags."""
    given = {field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(config)}
    return {name: value for name, value in given.items() if value is not None}
