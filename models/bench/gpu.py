"""What a GPU is asked to prove, in one unattended run: `python -m models.bench gpu`.

How far copies overlap computation comes first, then checks of tfmem's own parts and small steps
under a budget, side by side, and then the five models at their published sizes under a hard limit,
and the largest sizes that train under it. Runs are processes of their own; those of models are
prepared side by side and make their steps one after the other.
Every result is a JSON line as soon as it is there, and the page is written anew with it, so what is
measured stays measured when the time is over.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.bench import overlap
from models.bench.alone import run_alone
from models.bench.capacity import capacity
from models.bench.comparators import COMPARATORS
from models.bench.experiment import TRACED, Experiment, Row, load
from models.bench.gpu_page import (
    AT_LIMIT,
    FREE,
    LARGEST,
    LARGEST_MODES,
    PLAIN,
    POLICY,
    nvidia_smi,
    page,
    parts_of,
    simulated,
    step_outcome,
)
from models.bench.results import FIVE, reached
from tfmem.functions.watch import WATCHED
from tfmem.runtime.limited import Outcome, run_limited

_RESOLUTION = 0.25
"""Searches end when the answer is known to this part."""

_STEPS = TRACED + WATCHED + 5
"""Of each run: those that a planned one measures, those that are watched, and those that count."""

_LEAST_SECONDS = 20.0
"""A run is not begun when less than this is left."""

_ROOM = 1.15
"""Bytes of a GPU that a process takes, over its limit."""

_SMALL = 2**30
"""The most bytes that a check or a small step is limited to."""

_STEPS_AT_ONCE = 3
"""Small steps that share a process."""

_STAGES = (("overlap",), ("checks", "steps"), ("five models", "largest"))
"""Sections whose runs may be side by side; a stage begins when the one before has ended."""

_NO_TIME = "not run: no time was left"


@dataclass(frozen=True)
class GpuRun:
    """How a GPU is checked.

    Attributes:
      out: folder that takes rows.jsonl and RESULTS.md.
      limit: hard limit in bytes of every run that has one.
      config: which of the models' configurations.
      seconds: after which no run is begun, and those under way are ended.
      gpu: whether it is a GPU; False rehearses on the CPU.
      only: sections; () for all.
      chain: sizes of the chain whose copies are to overlap.
    """

    out: Path
    limit: int = 12 * 10**9
    config: str = "published"
    seconds: float = 460.0
    gpu: bool = True
    only: tuple[str, ...] = ()
    chain: overlap.Chain = dataclasses.field(default_factory=overlap.Chain)

    @property
    def lock(self) -> str:
        """Path of the file that is locked while a run makes its steps."""
        return str(self.out / "lock")


class Notes:
    """What was measured so far, by section, model and name; kept on disk as it comes."""

    def __init__(self, run: GpuRun) -> None:
        self.run = run
        self.rows: dict[tuple[str, str, str], Row] = {}
        self.overlap: overlap.Overlap | None = None
        self.checks: dict[str, str] = {}
        self.steps: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._start = time.monotonic()
        run.out.mkdir(parents=True, exist_ok=True)
        (run.out / "rows.jsonl").write_text("", encoding="utf-8")
        self.page.write_text(page(self), encoding="utf-8")

    @property
    def page(self) -> Path:
        """The file that shows everything."""
        return self.run.out / "RESULTS.md"

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self.run.seconds - (time.monotonic() - self._start)

    def add(self, section: str, name: str, result: dict[str, Any], model: str = "") -> None:
        """Keeps a result: its line, and the page with it."""
        facts = {"section": section, "model": model, "name": name, "result": result}
        with self._lock:
            if section == "checks":
                self.checks[name] = result["outcome"]
            elif section == "steps":
                self.steps[name] = result
            elif section == "overlap":
                self.overlap = overlap.from_fields(result)
            else:
                self.rows[section, model, name] = Row(**result)
            with (self.run.out / "rows.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")
            self.page.write_text(page(self), encoding="utf-8")


def chain(is_gpu: bool) -> overlap.Chain:
    """A chain whose products take a GPU some milliseconds each, and a slower device no longer."""
    if not is_gpu:
        return overlap.Chain(side=512, layers=24, steps=4)
    return overlap.Chain(side=512, layers=24) if simulated() else overlap.Chain()


def check(run: GpuRun) -> Notes:
    """Runs the sections; what does not fit into the time is left out."""
    notes = Notes(run)
    for stage in _STAGES:
        jobs = [
            job
            for section, job in _jobs(run, notes)
            if section in stage and (not run.only or section in run.only)
        ]
        with ThreadPoolExecutor(_workers(run, stage)) as pool:
            for done in [pool.submit(job) for job in jobs]:
                done.result()
    return notes


def _workers(run: GpuRun, stage: Sequence[str]) -> int:
    """Processes side by side: as many as cores and the GPU's memory allow, at most six models."""
    cores = len(os.sched_getaffinity(0))
    if not run.gpu:
        return max(1, cores // 2)
    is_small = "steps" in stage
    said = nvidia_smi("memory.total")
    fitting = int(float(said or 0) * 2**20 / (_ROOM * (_SMALL if is_small else run.limit)))
    return max(1, min(cores if is_small else min(6, cores // 2), fitting))


# What is run, in the order of its worth.


def _jobs(run: GpuRun, notes: Notes) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "overlap", lambda: _overlap(notes)
    yield from _small_jobs(run, notes)
    experiments = [
        Experiment(model, run.config, steps=_STEPS, limit=run.limit, profile="measured",
                lock=run.lock)
        for model in FIVE
    ]  # fmt: skip
    for experiment in experiments:
        yield "five models", lambda one=experiment: _parts(notes, one)
    for name, mode in ((AT_LIMIT, "tfmem"), (PLAIN, "plain")):
        for experiment in experiments:
            yield "five models", _one(notes, experiment.in_mode(mode), name)
    for mode in LARGEST_MODES:
        for experiment in experiments:
            if experiment.model in LARGEST:
                yield "largest", lambda one=experiment, mode=mode: _search(notes, one, mode)
    others = [*POLICY.items(), *((name, name) for name in COMPARATORS)]
    for name, mode in others:
        for experiment in experiments:
            yield "five models", _one(notes, experiment.in_mode(mode), name)


def _small_jobs(run: GpuRun, notes: Notes) -> Iterator[tuple[str, Callable[[], None]]]:
    from tests.children.gpu import CHECKS
    from tests.simgpu.step_runner import CASES

    for name in CHECKS:
        yield "checks", lambda one=name: _check(notes, one)
    names = list(CASES) if run.gpu else []
    for first in range(0, len(names), _STEPS_AT_ONCE):
        some = names[first : first + _STEPS_AT_ONCE]
        yield "steps", lambda some=some: _steps(notes, some)


def _one(notes: Notes, experiment: Experiment, name: str) -> Callable[[], None]:
    return lambda: _add(notes, "five models", experiment.model, name, _run(notes, experiment))


def _add(notes: Notes, section: str, model: str, name: str, row: Row) -> None:
    notes.add(section, name, dataclasses.asdict(row), model)


def _run(notes: Notes, experiment: Experiment) -> Row:
    """An experiment in a process of its own, if there is time for it."""
    if notes.left < _LEAST_SECONDS:
        return Row(experiment.model, experiment.mode, experiment.limit, outcome=_NO_TIME)
    row = run_alone(experiment, gpu=notes.run.gpu, timeout=notes.left)
    print(
        f"  {experiment.model} {experiment.changes or ''} {experiment.mode}: {row.outcome[:60]}",
        flush=True,
    )
    return row


def _parts(notes: Notes, experiment: Experiment) -> None:
    """Plain TensorFlow without a limit, then tfmem in parts of what that took."""
    free = _run(notes, dataclasses.replace(experiment, limit=None))
    _add(notes, "five models", experiment.model, FREE, free)
    if not free.measured_peak_bytes:
        return
    for name, part in parts_of(experiment.model).items():
        row = reached(
            experiment.in_mode("tfmem"),
            part * free.measured_peak_bytes,
            lambda one: _run(notes, one),
            lambda one, budget: dataclasses.replace(one, budget=int(budget)),
        )
        _add(notes, "five models", experiment.model, name, row)


def _search(notes: Notes, experiment: Experiment, mode: str) -> None:
    """The largest size of a model that trains under the limit, as far as time allows."""
    growth = load(experiment.model).GROWTH
    _, guess, times = LARGEST[experiment.model]
    if notes.run.config != "published":
        guess = getattr(experiment.make_config(), growth)
    start = dataclasses.replace(
        experiment, changes={growth: guess * (times if mode == "tfmem" else 1)}
    )

    def run(one: Experiment) -> Row:
        row = _run(notes, one)
        best = notes.rows.get(("largest", experiment.model, mode))
        if row.has_trained and (best is None or best.config[growth] < row.config[growth]):
            _add(notes, "largest", experiment.model, mode, row)  # at once: the search may not end
        return row

    (found,) = capacity(start, (mode,), run, resolution=_RESOLUTION, first_guess=1.0)
    if not found.has_trained and notes.left > _LEAST_SECONDS:
        _add(notes, "largest", experiment.model, mode, found)


def _check(notes: Notes, name: str) -> None:
    """A part of tfmem on the device, of `tests/models/test_gpu.py`."""
    from tests.children.gpu import CHECKS

    done = _limited(notes, f"tests.children.gpu:{name}", limit=CHECKS[name], reserve=True)
    outcome = "ok" if done.status == "ok" else f"{done.status}: {done.error[:300]}"
    print(f"  {name}: {outcome}", flush=True)
    notes.add("checks", name, {"outcome": outcome, "facts": done.result})


def _steps(notes: Notes, names: Sequence[str]) -> None:
    """Small steps as they are and under a budget, of `tests/simgpu/test_steps.py`."""
    done = _limited(notes, "tests.simgpu.step_runner:trained", list(names), limit=_SMALL)
    for name in names:
        failed = {"error": f"{done.status}: {done.error[:300]}"}
        found = done.result[name] if done.status == "ok" else failed
        print(f"  {name}: {step_outcome(found)}", flush=True)
        notes.add("steps", name, found)


def _limited(notes: Notes, target: str, *args: Any, limit: int, reserve: bool = False) -> Outcome:
    """What became of a function in a process of its own, if there is time for it."""
    if notes.left < _LEAST_SECONDS:
        return Outcome("timeout", None, _NO_TIME, "", limit, 0.0)
    done = run_limited(
        target,
        *args,
        limit_bytes=limit,
        timeout=notes.left,
        reserve=reserve,
        gpu=notes.run.gpu,
    )
    if done.status != "ok":
        print(done.output, flush=True)
    return done


def _overlap(notes: Notes) -> None:
    fields = dataclasses.asdict(notes.run.chain)
    target = "models.bench.overlap:measure_overlap"
    done = _limited(notes, target, fields, limit=notes.run.limit, reserve=True)
    print(f"  overlap: {done.status} {done.error[:200]}", flush=True)
    if done.status == "ok":
        notes.add("overlap", "chain", done.result)
