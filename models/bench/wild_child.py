"""What a process of the wild suite does: one case, as it is or under tfmem, told as it goes.

    python -m models.bench.wild_child JOB

JOB is JSON. What happens is written to its file `events`, a JSON line each, so that a process that
dies or hangs has said how far it came.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

import tfmem
from models.bench import wild_cases
from tfmem.errors import BudgetError, Error, RewriteError
from tfmem.runtime import devices, memory
from tfmem.runtime.limited import is_out_of_memory

_SEED = 7
_LEAST_TURNS = 3
"""Turns of the loop in which functions are asked for their least budget: as many as signatures."""


@dataclass(frozen=True)
class Job:
    """What is asked of a process.

    Attributes:
      case: its name.
      kind: `plain`; `rounding`, plain without the graph optimizer, whose kernels round otherwise;
        `least`, which asks for the least budget; `planned`.
      steps: turns of the loop.
      events: file that takes what happens.
      budget: in bytes, for `planned`.
      claims: whether the allocator takes its whole limit as one region first.
    """

    case: str
    kind: str
    steps: int
    events: str
    budget: int | None = None
    claims: bool = False


class Diary:
    """What happens, written down at once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.step = 0

    def say(self, event: str, **fields: Any) -> None:
        print(
            json.dumps({"event": event, "step": self.step, **fields}), file=self._file, flush=True
        )


class Spoken(logging.Handler):
    """Puts what tfmem logs into the diary."""

    def __init__(self, diary: Diary) -> None:
        super().__init__(logging.INFO)
        self._diary = diary

    def emit(self, record: logging.LogRecord) -> None:
        self._diary.say("log", level=record.levelname, text=record.getMessage())


class Planned:
    """A function under a budget that says when it plans, and when it has planned otherwise."""

    def __init__(self, optimized: tfmem.Optimized, diary: Diary) -> None:
        self._optimized, self._diary = optimized, diary
        self._plans: tuple[tfmem.Plan, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        optimized = self._optimized
        start = time.perf_counter()
        self._diary.say("planning")
        optimized.get_concrete_function(*args, **kwargs)
        plans = optimized.plans
        if len(plans) > len(self._plans):
            self._say_planned(plans[-1], time.perf_counter() - start)
        self._diary.say("running")
        outputs = optimized(*args, **kwargs)
        if optimized.plans[: len(plans)] != plans:
            self._diary.say("replanned")
        self._plans = optimized.plans
        return outputs

    def __get__(self, instance: Any, owner: type | None = None) -> Planned:
        return self if instance is None else Planned(self._optimized.__get__(instance), self._diary)

    def _say_planned(self, plan: tfmem.Plan, seconds: float) -> None:
        self._diary.say(
            "planned",
            seconds=seconds,
            predicted=plan.peak_bytes,
            original=plan.baseline_peak_bytes,
            slowdown=plan.step_seconds / max(1e-12, plan.baseline_step_seconds),
            reason=plan.reason if plan.is_noop else "",
            recomputed=len(plan.recomputations),
        )


class Asked:
    """A function that is asked for its least budget, once for each signature, and then run."""

    def __init__(self, function: Any, diary: Diary, seen: set[int] | None = None) -> None:
        self._function, self._diary = tf.function(function), diary
        self._seen: set[int] = set() if seen is None else seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._diary.say("planning")
        key = id(self._function.get_concrete_function(*args, **kwargs))
        if key not in self._seen:
            self._seen.add(key)
            self._ask(args, kwargs)
        self._diary.say("running")
        return self._function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Asked:
        bound = self._function.__get__(instance, owner)
        return self if instance is None else Asked(bound, self._diary, self._seen)

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            plan = tfmem.optimize(self._function, budget=1).plan(*args, **kwargs)
        except BudgetError as error:
            if error.least_bytes is None:
                raise
            self._diary.say("least", nbytes=error.least_bytes)
        else:
            raise AssertionError(f"a budget of 1 byte was accepted: {plan.summary()}")


def train(case: wild_cases.Case, job: Job, diary: Diary) -> None:
    """Builds a case and takes its steps; what they give and take is told step by step."""
    device = devices.scarce()
    memory.claim_memory(device) if job.claims else memory.memory_info(device)
    if job.kind == "rounding":
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    diary.say("building")
    work = case.build()
    functions = work.functions if isinstance(work.functions, tuple) else (work.functions,)
    prepared = tuple(_prepared(function, job, diary) for function in functions)
    diary.say("built", nbytes=memory.memory_info(device)[0])

    kept, incoming = [], iter(work.batches)
    for diary.step in range(1, (_LEAST_TURNS if job.kind == "least" else job.steps) + 1):
        memory.reset_peak(device)
        start = time.perf_counter()
        batch = next(incoming)
        kept.append(work.turn(prepared, *batch))
        losses = scalars(kept[-1])
        seconds = time.perf_counter() - start
        diary.say("step", losses=losses, peak=memory.memory_info(device)[1], seconds=seconds)


def _prepared(function: Any, job: Job, diary: Diary) -> Callable[..., Any]:
    if job.kind == "planned":
        return Planned(tfmem.optimize(function, budget=job.budget), diary)
    if job.kind == "least":
        return Asked(function, diary)
    is_function = isinstance(function, tf.types.experimental.PolymorphicFunction)
    return function if is_function else tf.function(function)


def scalars(outputs: Any) -> list[float]:
    """The floats among a step's outputs, a mean for each tensor."""
    flat = (value for value in tf.nest.flatten(outputs) if value is not None)
    arrays = (np.asarray(value) for value in flat)
    return [
        float(np.mean(array.astype(np.float64)))
        for array in arrays
        if np.issubdtype(array.dtype, np.floating)
    ]


def _told(error: BaseException) -> dict[str, Any]:
    is_full = is_out_of_memory(error)
    is_refusal = isinstance(error, Error) and not isinstance(error, RewriteError)
    text = f"{type(error).__name__}: {error}"
    return {
        "text": text[:1000] + text[1000:][-3000:],
        "is_full": is_full,
        "is_refusal": is_refusal and not is_full,
        "least": getattr(error, "least_bytes", None),
    }


def _end_with(parent: int) -> None:
    """Ends this process once its parent is gone: nobody would wait for it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Does the job given as its argument."""
    job = Job(**json.loads(sys.argv[1]))
    _end_with(os.getppid())
    with open(job.events, "w", encoding="utf-8") as file:
        diary = Diary(file)
        log = logging.getLogger("tfmem")
        log.setLevel(logging.INFO)
        log.addHandler(Spoken(diary))
        random.seed(_SEED)
        np.random.seed(_SEED)
        tf.random.set_seed(_SEED)
        try:
            diary.say("loading")
            train(wild_cases.cases()[job.case], job, diary)
            diary.say("end")
        except Exception as error:
            traceback.print_exc()
            diary.say("error", **_told(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # TensorFlow's destructors have nothing to add


if __name__ == "__main__":
    main()
