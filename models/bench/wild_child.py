"""What a process of the wild suite does: one case, as it is or under tfmem, told as it goes.

    python -m models.bench.wild_child JOB

JOB is JSON. What happens is written to its file `events`, a JSON line each, so that a process that
dies or hangs has said how far it came.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import random
import signal
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
import tfmem.keras
from models.bench import gpu_page, wild_cases
from tfmem.bridge.keras_models import Hooks
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
      kind: `plain`; `rounding`, plain without the graph optimizer and with one thread in a kernel,
        so that other kernels round, and sums are made of other parts; `least`, which asks for the
        least budget; `planned`.
      steps: turns of the loop.
      events: file that takes what happens.
      budget: in bytes, for `planned`.
      claims: whether the allocator takes its whole limit as one region first.
      gpu_mib: what GPU:0 is limited to.
    """

    case: str
    kind: str
    steps: int
    events: str
    budget: int | None = None
    claims: bool = False
    gpu_mib: int | None = None


class Diary:
    """What happens, written down at once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.step = 0
        self.on_log: Callable[[], object] = lambda: None
        """Called after each line that tfmem logs."""

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
        self._diary.on_log()


class Plans:
    """Plans of one function, of which the diary is told as they are made or made anew."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._known: tuple[tfmem.Plan, ...] = ()
        self._started = time.perf_counter()

    def begin(self) -> None:
        """What follows may plan."""
        self._started = time.perf_counter()
        self._diary.say("planning")

    def look(self, plans: tuple[tfmem.Plan, ...]) -> None:
        """Tells of those that are not known yet."""
        kept = plans[: len(self._known)]
        if kept != self._known:
            self._say("replanned", plans)
        elif len(plans) > len(self._known):
            self._say("planned", plans, seconds=time.perf_counter() - self._started)
        self._known = plans

    def _say(self, event: str, plans: tuple[tfmem.Plan, ...], **fields: Any) -> None:
        self._diary.say(
            event,
            function=id(self),
            predicted=max(plan.peak_bytes for plan in plans),
            original=max(plan.baseline_peak_bytes for plan in plans),
            reason=plans[-1].reason if plans[-1].is_noop else "",
            recomputed=sum(len(plan.recomputations) for plan in plans),
            **fields,
        )


class Planned:
    """A function under a budget that says when it plans, and when it has planned otherwise."""

    def __init__(self, optimized: tfmem.Optimized, diary: Diary) -> None:
        self._optimized, self._diary = optimized, diary
        self._plans = Plans(diary)
        self._bound: dict[int, Planned] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._plans.begin()
        self._optimized.prepare(*args, **kwargs)
        self._plans.look(self._optimized.plans)
        self._diary.say("running")
        outputs = self._optimized(*args, **kwargs)
        self._plans.look(self._optimized.plans)
        return outputs

    def __get__(self, instance: Any, owner: type | None = None) -> Planned:
        if instance is None:
            return self
        if id(instance) not in self._bound:
            self._bound[id(instance)] = Planned(self._optimized.__get__(instance), self._diary)
        return self._bound[id(instance)]


class Asked:
    """A function that is asked for its least budget, once for each signature, and then run."""

    def __init__(self, function: Any, diary: Diary, seen: set[int] | None = None) -> None:
        self._function, self._diary = _traceable(function), diary
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
    if job.kind == "rounding":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if job.gpu_mib is not None:
        memory.limit_gpu(job.gpu_mib)
    device = devices.scarce()
    memory.claim_memory(device) if job.claims else memory.memory_info(device)
    diary.say("building")
    work = case.build()
    diary.say("built", nbytes=memory.memory_info(device)[0], where=gpu_page.gpu())
    if isinstance(work, wild_cases.Fit):
        fit(work, job, diary)
    else:
        loop(work, job, diary)


def loop(work: wild_cases.Work, job: Job, diary: Diary) -> None:
    """The user's loop."""
    functions = work.functions if isinstance(work.functions, tuple) else (work.functions,)
    prepared = tuple(_prepared(function, job, diary) for function in functions)
    device = devices.scarce()
    kept, incoming = [], iter(work.batches)
    for diary.step in range(1, (_LEAST_TURNS if job.kind == "least" else job.steps) + 1):
        memory.reset_peak(device)
        start = time.perf_counter()
        batch = next(incoming)
        kept.append(work.turn(prepared, *batch))
        losses = scalars(kept[-1])
        seconds = time.perf_counter() - start
        diary.say("step", losses=losses, peak=memory.memory_info(device)[1], seconds=seconds)


def fit(work: wild_cases.Fit, job: Job, diary: Diary) -> None:
    """Keras's loop, with the callback of a user who has a budget."""
    callbacks: list[Any] = [Watch(diary)]
    if job.kind in ("planned", "least"):
        budget = tfmem.keras.MemoryBudget(job.budget or 1)
        callbacks = [budget, Watch(diary, budget)]
    steps = 1 if job.kind == "least" else job.steps
    try:
        work.model.fit(work.data, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
    except BudgetError as error:
        if job.kind != "least" or error.least_bytes is None:
            raise
        diary.say("least", nbytes=error.least_bytes)


class Watch(Hooks):
    """A callback of either Keras that tells the diary of each batch."""

    def __init__(self, diary: Diary, budget: tfmem.keras.MemoryBudget | None = None) -> None:
        self._diary, self._budget = diary, budget
        self._plans = Plans(diary)
        self._started = 0.0
        if budget:
            self._plans.begin()
            diary.on_log = self._look

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._diary.step = batch + 1
        self._started = time.perf_counter()
        memory.reset_peak(devices.scarce())
        if not self._budget or self._budget.plans:
            self._diary.say("running")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        peak = memory.memory_info(devices.scarce())[1]
        seconds = time.perf_counter() - self._started
        self._look()
        self._diary.say("step", losses=[float(logs["loss"])], peak=peak, seconds=seconds)

    def _look(self) -> None:
        if self._budget and self._budget.plans:
            self._plans.look(self._budget.plans)
            self._diary.say("running")

    def _yes(self) -> bool:
        return True

    _implements_train_batch_hooks = _yes


def _prepared(function: Any, job: Job, diary: Diary) -> Callable[..., Any]:
    if job.kind == "planned":
        return Planned(tfmem.optimize(function, budget=job.budget), diary)
    if job.kind == "least":
        return Asked(function, diary)
    return _traceable(function)


def _traceable(function: Any) -> Any:
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
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
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
            train(wild_cases.find(job.case), job, diary)
            diary.say("end")
        except Exception as error:
            traceback.print_exc()
            diary.say("error", **_told(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # TensorFlow's destructors have nothing to add


if __name__ == "__main__":
    main()
