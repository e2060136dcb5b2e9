"""What to train and how, a `Experiment`, and what came of it, a `Row`."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

from models.bench.comparators import COMPARATORS
from models.zoo.task import Model
from tfmem.functions.watch import WATCHED

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

PLANNED = ("recompute", "tfmem")
"""Modes in which tfmem plans for a budget."""

TRACED = 5
"""Steps before those of a plan by measured costs are like one another."""

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


@dataclass(frozen=True)
class Experiment:
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
      repetition: which of several equal runs this is.
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
    repetition: int = 0
    profile: str = "auto"
    lock: str = ""

    @property
    def warm_up(self) -> int:
        """Steps at the beginning that are not like the others.

        The first; those traced; and those watched, which are copied before, if there are others.
        """
        traced = TRACED if self.mode in PLANNED and self.profile == "measured" else 0
        watched = traced + WATCHED if self.mode in PLANNED else 0
        return watched if 0 < watched < self.steps else max(1, traced)

    def in_mode(
        self, mode: str, changes: dict[str, Any] | None = None, starts_on_host: bool = False
    ) -> Experiment:
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
