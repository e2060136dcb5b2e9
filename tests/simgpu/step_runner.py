"""Trains the steps of `steps` on GPU:0, as they are and under a budget."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from tests.simgpu.steps import STEPS, Step
from tfmem.errors import BudgetError
from tfmem.runtime import memory

COUNT = 3

ABOVE_LEAST = 1.01
"""Of the least that is named: a message says it in tenths of a MiB, and a trace more may hold a few
constants of 256 bytes."""


@dataclass(frozen=True)
class Case:
    """A step under a budget.

    Attributes:
      step: its name.
      share: of plain's peak, which is the budget; if that is refused, a little above the least is.
      options: others of `tfmem.optimize`.
      does: what the plan has to do: "evictions", "recomputations", "placements".
    """

    step: str
    share: float = 0.7
    options: Mapping[str, Any] = field(default_factory=dict)
    does: tuple[str, ...] = ()


def _only(step: str, technique: str, does: str, share: float = 0.7) -> Case:
    return Case(step, share, {"techniques": ("order", technique)}, (does,))


CASES = {name: Case(name) for name in STEPS} | {
    "only order": Case("dense", 0.95, {"techniques": ("order",)}),
    "only swaps": _only("dense", "swap", "evictions"),
    "only recomputation": _only("attention", "recompute", "recomputations"),
    "only placement": _only("adam", "place", "placements", 0.5),
    "measured costs": Case("dense", options={"profile": "measured"}, does=("evictions",)),
    "the published policy": Case("dense", options={"strategy": tfmem.TensorFlowMem()}),
    "a host named": Case("dense", options={"device": "GPU:0", "host": "CPU:0"}),
    "swaps of pictures": _only("pictures", "swap", "evictions"),
}


def trained(names: list[str]) -> dict[str, Any]:
    """What became of each of these cases, or the error."""
    found = {}
    for name in names:
        try:
            found[name] = _compared(STEPS[CASES[name].step](), CASES[name])
        except Exception:
            found[name] = {"error": traceback.format_exc()}
    return found


def _compared(step: Step, case: Case) -> dict[str, Any]:
    began = [variable.numpy() for variable in step.variables]
    expected, plain = _run(tf.function(step.function), step)
    for variable, value in zip(step.variables, began, strict=True):
        variable.assign(value)
    budget = int(case.share * max(plain))
    planned = tfmem.optimize(step.function, budget=budget, **case.options)
    try:
        planned.plan(*step.args)
    except BudgetError as error:
        budget = int(ABOVE_LEAST * (error.least_bytes or budget))
        planned = tfmem.optimize(step.function, budget=budget, **case.options)
    again, peaks = _run(planned, step)
    plan = planned.plans[-1]
    return {
        "plain": max(plain),
        "budget": budget,
        "peaks": peaks,
        "predicted": plan.peak_bytes,
        "does": [
            one for one in ("evictions", "recomputations", "placements") if getattr(plan, one)
        ],
        "difference": max(map(_difference, again, expected)),
    }


def _run(function: Callable[..., Any], step: Step) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
    """All numbers that come of a few steps, and the peak of each."""
    found, peaks = [], []
    for _ in range(COUNT):
        gc.collect()
        memory.reset_peak("GPU:0")
        made = function(*step.args)
        found += [one.numpy() for one in tf.nest.flatten(made)]
        del made
        peaks.append(memory.memory_info("GPU:0")[1])
    found += [variable.numpy() for variable in step.variables]
    return found, peaks


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The largest, over the largest number."""
    one, other = (np.asarray(part, np.float64) for part in (one, other))
    return float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30))
