"""What the planner's constants do: plans of several models with each of them smaller and larger.

    python -m models.bench.constants                   writes docs/measured/constants.md
    python -m models.bench.constants --only=RATIO      some of them, to the screen alone

Each model is captured once and planned for a part of its own peak, without a host and with one,
from static costs; the peak, and so the budget, is what the same constants predict. Of each other
value is told: how many budgets are kept, and the step time, the predicted peak and the planning
time over those of the value that stands in the code (geometric means over the budgets that both
keep; planning time is that of all).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

from absl import app, flags
from tqdm import tqdm

from models.bench.table import markdown, stamp

flags.DEFINE_string("out", "docs/measured/constants.md", "File that takes the table.")
flags.DEFINE_list("only", [], "Names of some constants; the table is then only printed.")
flags.DEFINE_integer("workers", 2, "Processes that plan at the same time.")

CONSTANTS: dict[str, dict[str, Sequence[Any]]] = {
    "tfmem.planning.candidates": {
        "RATIO": (0.85, 0.96),
        "LIMITS": (30, 90),
        "LIMITS_ABOVE": (0, 36),
        "MOSTLY_HIDDEN": (0.05, 0.5),
        "MOST_FAILURES": (1, 12),
        "DIVISIONS": (1, 8),
        "HALVINGS": (0, 6),
        "EFFORT": (10_000, 160_000),
        "MOST_LOOKED_AT": (2, 12),
        "WAYS_WITH_A_HOST": (3, 48),
        "SMALL": (0, 400),
        "SCORINGS": (
            ((1.0, 1.0),),
            ((1.0, 1.0), (0.1, 1.0), (1.0, 0.5), (0.0, 0.0), (3.0, 2.0)),
        ),
        "MORE_SCORINGS": ((),),
        "SCORINGS_OF_SWAPS": (((0.0, 1.0),),),
    },
    "tfmem.planning.alternatives": {
        "COMPARED": ((0,), (24, 16, 12, 8, 4, 0)),
    },
    "tfmem.planning.search": {
        "FASTER_UNDER_A_LIMIT": (0.9, 1.0),
        "HARDLY_LONGER": (1.0, 1.02),
        "SHARES": ((1.0, 0.0),),
    },
    "tfmem.planning.eviction.rehearsal": {"MOST_CLONES": (1, 9), "EXACT": (1.001, 1.1)},
    "tfmem.planning.eviction.scores": {"MOST_SOURCES": (32, 2048)},
    "tfmem.planning.eviction.queue": {"LONGEST_DELAY": (1, 128)},
    "tfmem.planning.order.memory_order": {
        "SETS": (0, 24_000),
        "SETS_OF_A_STRETCH": (400, 6000),
        "WIDTHS": ((12,), (12, 20, 32, 48)),
        "WHOLE": (32,),
    },
    "tfmem.planning.order.in_flight": {"WINDOWS": ((32, 16, 8), (8,)), "SLACK": (0.0, 0.1)},
    "tfmem.planning.candidate": {"FILLED": (0.9, 0.98), "FILLED_IN_ANY_ORDER": (0.6, 0.9)},
    "tfmem.planning.placement": {
        "LEAST_PLACED_BYTES": (2**12, 2**21),
        "TRANSFER_BYTES": (2**12, 2**20),
        "PARTS": ((), (0.25, 0.5, 0.75)),
    },
    "tfmem.simulation.allocation": {"USUAL": (0.5, 1.0)},
    "tfmem.simulation.past": {"LARGE_HOLES": (1, 24), "SMALL_HOLES": (0, 64)},
    "tfmem.simulation.replay": {
        "PIECE": (2**15, 2**17),
        "SPARE_PIECES": (0, 32),
        "SPARE": (0.0, 1.0),
    },
    "tfmem.simulation.layout": {
        "LEAST_OWN": ((), (1 / 1000,)),
        "PLENTY": (0.0, 1.0),
        "LEAST_SLOT": (1 / 1000, 1 / 50),
        "ALIKE": (0.7, 0.95),
        "MOST_WAYS": (1, 190),
    },
    "tfmem.simulation.simulate": {
        "PROCESSES": (1, 16),
        "MOST_STEPS": (5, 40),
        "EVENTS": (25_000, 400_000),
    },
}
"""The constants by module, each with the other values that are tried."""

MODELS: dict[str, dict[str, Any]] = {
    "unet": {"levels": 3, "side": 32},
    "densenet": {"layers": 3, "side": 16},
    "gpt": {"layers": 1},
    "lstm": {"length": 12},
}
"""What is planned, with the fields of the small configurations that are made smaller."""

SHARES = (0.8, 0.6, 0.45)
"""Budgets, in parts of the original's predicted peak."""

LIMIT = 1.3
"""The hard limit over the budget, where there is no host."""

HOST = "/job:tfmem_host/replica:0/task:0/device:CPU:0"

Variant = tuple[str, str, Any]
"""A constant's module, its name, and the value that is tried."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one value of a constant gives.

    Attributes:
      plans: (model, host, share) to (step seconds, predicted peak in bytes); none where refused.
      seconds: of all planning, of one core.
    """

    plans: Mapping[tuple[str, str, float], tuple[float, int]]
    seconds: float


def planned(variant: Variant | None) -> Outcome:
    """Plans every model with one constant changed; None changes none."""
    if variant is None:
        return _planned()
    module, name, value = variant
    with mock.patch.object(importlib.import_module(module), name, value):
        return _planned()


def _planned() -> Outcome:
    from tfmem.errors import BudgetError
    from tfmem.plan import Plan
    from tfmem.planning.candidate import capacity
    from tfmem.planning.request import Request
    from tfmem.planning.search import choose

    plans, seconds = {}, 0.0
    for model, (graph, costs, device) in _captured().items():
        peak = choose(graph, costs, Request(device=device)).plan.baseline_peak_bytes
        for host, share in itertools.product(("", HOST), SHARES):
            budget = int(share * peak)
            there = capacity(graph, costs, Plan(device=device), ())
            room = None if host else (int(LIMIT * budget - there),)
            request = Request(device=device, host=host, budget=budget, room=room)
            start = time.process_time()
            try:
                plan = choose(graph, costs, request).plan
                plans[model, host, share] = plan.step_seconds, plan.peak_bytes
            except BudgetError:
                pass
            seconds += time.process_time() - start
    return Outcome(plans, seconds)


@functools.cache
def _captured() -> Mapping[str, tuple[Any, Any, str]]:
    """The models by name: graph, costs, device."""
    return {model: _capture(model) for model in MODELS}


def _capture(model: str) -> tuple[Any, Any, str]:
    import tensorflow as tf

    from models.bench import train
    from tfmem.bridge.capture import capture
    from tfmem.costs.static import static_costs
    from tfmem.passes.prune import Prune

    module = train.load(model)
    task = module.build(dataclasses.replace(module.CONFIGS["small"], **MODELS[model]))
    batch = next(iter(task.batches))
    captured = capture(tf.function(task.step).get_concrete_function(*batch), device="CPU:0")
    graph = Prune()(captured.graph)
    device = graph.nodes[-1].device
    costs = static_costs(graph, flops=captured.flops, workspace=captured.workspace, device=device)
    return graph, costs, device


def row(variant: Variant, usual: Outcome, other: Outcome) -> tuple[str, ...]:
    """A line of the table."""
    module, name, value = variant
    both = sorted(usual.plans.keys() & other.plans.keys())

    def ratio(field: int) -> str:
        ratios = [other.plans[key][field] / usual.plans[key][field] for key in both]
        return f"{statistics.geometric_mean(ratios):.3f}" if ratios else "-"

    stands = getattr(importlib.import_module(module), name)
    return (
        f"`{module.removeprefix('tfmem.')}.{name}`",
        str(stands),
        str(value),
        f"{len(other.plans)} ({len(usual.plans)})",
        ratio(0),
        ratio(1),
        f"{other.seconds / usual.seconds:.2f}",
    )


def _variants(only: Sequence[str]) -> Iterator[Variant]:
    for module, constants in CONSTANTS.items():
        for name, values in constants.items():
            for value in values if not only or name in only else ():
                yield module, name, value


def _text(rows: Sequence[Sequence[str]], usual: Outcome, seconds: float) -> str:
    header = ("constant", "stands", "tried", "kept", "step time", "peak", "planning time")
    budgets = len(MODELS) * 2 * len(SHARES)
    return "\n".join(
        [
            "# What the planner's constants do",
            "",
            f"`python -m models.bench.constants`, {stamp()}; {seconds / 60:.0f} minutes.",
            "",
            f"Of {budgets} budgets ({', '.join(MODELS)}, made small; "
            f"{' and '.join(map(str, SHARES))} of the predicted peak; without a host, under a hard "
            f"limit {LIMIT:.0%} of the budget, and with one, without a limit) "
            f"{len(usual.plans)} are kept, planned in {usual.seconds:.0f} s of one core. Every "
            "line changes one constant; ratios are to the value that stands in the code, geometric "
            "means over the budgets that both keep. Nothing here ran: step times and peaks are "
            "predicted.",
            "",
            markdown(header, rows),
            "",
        ]
    )


def main(_: list[str]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TFMEM_CACHE_DIR"] = ""
    start = time.perf_counter()
    variants = list(_variants(flags.FLAGS.only))
    with ProcessPoolExecutor(flags.FLAGS.workers, get_context("spawn")) as pool:
        list(pool.map(planned, [None] * flags.FLAGS.workers))  # every worker captures the models
        both = [pool.submit(planned, variant) for variant in [None, *variants, None]]
        outcomes = [one.result() for one in tqdm(both, unit=" values")]
    first, *others, last = outcomes
    assert first.plans == last.plans, "the same planner gave other plans"
    usual = Outcome(first.plans, math.sqrt(first.seconds * last.seconds))
    rows = [row(variant, usual, other) for variant, other in zip(variants, others, strict=True)]
    text = _text(rows, usual, time.perf_counter() - start)
    if flags.FLAGS.only:
        sys.stdout.write(text)
        return
    out = Path(flags.FLAGS.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
