"""What recomputation alone gives: bytes above what stays, and step time, beside plain TensorFlow.

All variants live in one process and take turns, so that load falls on all alike. Where a model can
recompute its blocks by hand (`tf.recompute_grad`), that is one of them.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import tfmem
from models.bench.experiment import Experiment, load
from models.bench.table import show_bytes, show_seconds, table
from models.bench.train import describe
from tfmem.runtime import devices, memory

_BY_HAND = "recompute_grad"
"""The field of a configuration that recomputes by hand."""


@dataclass(frozen=True)
class Variant:
    """One way to run a model's step.

    Attributes:
      name: of it.
      nbytes: most bytes in use in a step, less those in use before.
      seconds: of each step.
      plan: tfmem's, if it is one.
    """

    name: str
    nbytes: int
    seconds: tuple[float, ...]
    plan: tfmem.Plan | None = None


def temporaries(experiment: Experiment, ratios: Sequence[float], rounds: int) -> list[Variant]:
    """Plain TensorFlow first; by hand, if the model can; tfmem for so many times fewer bytes.

    And tfmem for as few bytes as by hand.
    """
    made: dict[str, Callable[..., Any]] = {}
    task = load(experiment.model).build(experiment.make_config())
    batch = next(iter(task.batches))
    made["plain"] = tf.function(task.step)
    device = devices.scarce()
    whole = _bytes_above(made["plain"], batch, device)
    if hasattr(experiment.make_config(), _BY_HAND):
        by_hand = dataclasses.replace(experiment, changes={**experiment.changes, _BY_HAND: 1})
        other = load(experiment.model).build(by_hand.make_config())
        made["tf.recompute_grad by hand"] = tf.function(other.step)
        least = _bytes_above(made["tf.recompute_grad by hand"], batch, device)
        ratios = (*ratios, whole / least)
    for ratio in ratios:
        budget = memory.memory_info(device)[0] + int(whole / ratio)
        options: dict[str, Any] = {"budget": budget, "techniques": ("order", "recompute")}
        step = tfmem.optimize(tf.function(task.step), **options)
        try:
            step.plan(*batch)
        except tfmem.BudgetError as error:
            print(f"{ratio:.2f} times fewer: {describe(error)}")
            continue
        made[f"tfmem, {ratio:.1f} times fewer"] = step
    peaks = {name: _bytes_above(step, batch, device) for name, step in made.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, step in made.items():
            start = time.perf_counter()
            float(step(*batch))
            seconds[name].append(time.perf_counter() - start)
    return [
        Variant(
            name,
            peaks[name],
            tuple(seconds[name]),
            step.plan(*batch) if isinstance(step, tfmem.Optimized) else None,
        )
        for name, step in made.items()
    ]


def _bytes_above(step: Callable[..., Any], batch: Any, device: str) -> int:
    """Most bytes in use in three steps, less those in use beside them; two more warm up."""
    found = memory.measure(step, *batch, steps=3, warmup=2, device=device)
    return found.peak_bytes - found.current_bytes


def temporaries_table(variants: Sequence[Variant]) -> str:
    """Rows for people; ratios are medians over the rounds."""
    plain = variants[0]
    rows = []
    for one in variants:
        ratios = [a / b for a, b in zip(one.seconds, plain.seconds, strict=True)]
        predicted = one.plan.step_seconds / one.plan.baseline_step_seconds if one.plan else None
        rows.append(
            (
                one.name,
                show_bytes(one.nbytes),
                f"{plain.nbytes / one.nbytes:.1f}",
                show_seconds(statistics.median(one.seconds)),
                f"{statistics.median(ratios):.3f}",
                f"{predicted:.3f}" if predicted else "-",
                str(len(one.plan.recomputations)) if one.plan else "-",
            )
        )
    header = ("variant", "above", "times fewer", "step", "ratio", "predicted", "recomputed")
    return table(header, rows)
