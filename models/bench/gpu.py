"""What a GPU is asked to prove, in one unattended run: `python -m models.bench gpu`.

Checks of tfmem's own parts come first, then how far copies overlap computation, the five models at
their published sizes under a hard limit, and the largest sizes that train under it. Runs are
processes of their own; they are prepared side by side and make their steps one after the other.
Every result is a JSON line as soon as it is there, and the page is written anew with it, so what is
measured stays measured when the time is over.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.bench import overlap, published
from models.bench.alone import run_alone
from models.bench.capacity import capacity
from models.bench.comparators import COMPARATORS
from models.bench.results import FIVE, QUARTER, gain, place_and_versions, reached
from models.bench.table import (
    markdown,
    show_bytes,
    show_count,
    show_error,
    show_ratio,
    show_seconds,
)
from models.bench.train import Row, Setting, load, locked
from tfmem.runtime.limited import run_limited

SECTIONS = ("checks", "overlap", "five models", "largest")

_FREE, _PLAIN = "plain, no limit", "plain"
_AT_LIMIT = "tfmem, budget the limit"
_QUARTER, _SIXTH = "tfmem, a quarter of plain's peak", "tfmem, a sixth of plain's peak"
_POLICY = {f"TensorFlowMem's policy: {name}": mode for name, mode in published.POLICY.items()}

_MOE = "moe_transformer"

_LARGEST = {
    _MOE: ("largest MoE transformer", 32, 20),
    "resnet": ("deepest ResNet", 152, 4),
    "deepspeech": ("longest DeepSpeech", 400, 3),
}
"""By model: what is searched for, where plain TensorFlow's search begins, and how many times that
tfmem's does."""

_LARGEST_MODES = ("plain", "tfmem", "jit_compile", "recompute_grad")

_RESOLUTION = 0.25
"""Searches end when the answer is known to this part."""

_STEPS = 9
"""Of each run; a planned one measures in the first five."""

_LEAST_SECONDS = 20.0
"""A run is not begun when less than this is left."""

_ROOM = 1.15
"""Bytes of a GPU that a process takes, over its limit."""

_NO_TIME = "not run: no time was left"


@dataclass(frozen=True)
class Terms:
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

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.rows: dict[tuple[str, str, str], Row] = {}
        self.overlap: overlap.Overlap | None = None
        self.checks: dict[str, str] = {}
        self._lock = threading.Lock()
        self._start = time.monotonic()
        terms.out.mkdir(parents=True, exist_ok=True)
        (terms.out / "rows.jsonl").write_text("", encoding="utf-8")
        self.page.write_text(page(self), encoding="utf-8")

    @property
    def page(self) -> Path:
        """The file that shows everything."""
        return self.terms.out / "RESULTS.md"

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self.terms.seconds - (time.monotonic() - self._start)

    def add(self, section: str, name: str, result: dict[str, Any], model: str = "") -> None:
        """Keeps a result: its line, and the page with it."""
        facts = {"section": section, "model": model, "name": name, "result": result}
        with self._lock:
            if section == "checks":
                self.checks[name] = result["outcome"]
            elif section == "overlap":
                self.overlap = overlap.from_fields(result)
            else:
                self.rows[section, model, name] = Row(**result)
            with (self.terms.out / "rows.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")
            self.page.write_text(page(self), encoding="utf-8")


def check(terms: Terms) -> Notes:
    """Runs the sections; what does not fit into the time is left out."""
    notes = Notes(terms)
    jobs = [job for section, job in _jobs(terms, notes) if not terms.only or section in terms.only]
    with ThreadPoolExecutor(_workers(terms)) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()
    return notes


def _workers(terms: Terms) -> int:
    """Processes side by side: as many as cores and the GPU's memory allow, at most six."""
    cores = len(os.sched_getaffinity(0))
    if not terms.gpu:
        return max(1, cores // 2)
    said = _nvidia_smi("memory.total")
    fitting = int(float(said or 0) * 2**20 / (_ROOM * terms.limit))
    return max(1, min(6, cores // 2, fitting))


def _nvidia_smi(query: str) -> str:
    """One fact about the first GPU; "" where the program is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""


# What is run, in the order of its worth.


def _jobs(terms: Terms, notes: Notes) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "checks", lambda: _checks(notes)
    yield "overlap", lambda: _overlap(notes)
    settings = [
        Setting(model, terms.config, steps=_STEPS, limit=terms.limit, profile="measured",
                lock=terms.lock)
        for model in FIVE
    ]  # fmt: skip
    for setting in settings:
        yield "five models", lambda one=setting: _parts(notes, one)
    for name, mode in ((_AT_LIMIT, "tfmem"), (_PLAIN, "plain")):
        for setting in settings:
            yield "five models", _one(notes, setting.in_mode(mode), name)
    for mode in _LARGEST_MODES:
        for setting in settings:
            if setting.model in _LARGEST:
                yield "largest", lambda one=setting, mode=mode: _search(notes, one, mode)
    others = [*_POLICY.items(), *((name, name) for name in COMPARATORS)]
    for name, mode in others:
        for setting in settings:
            yield "five models", _one(notes, setting.in_mode(mode), name)


def _one(notes: Notes, setting: Setting, name: str) -> Callable[[], None]:
    return lambda: _add(notes, "five models", setting.model, name, _run(notes, setting))


def _add(notes: Notes, section: str, model: str, name: str, row: Row) -> None:
    notes.add(section, name, dataclasses.asdict(row), model)


def _run(notes: Notes, setting: Setting) -> Row:
    """A setting in a process of its own, if there is time for it."""
    if notes.left < _LEAST_SECONDS:
        return Row(setting.model, setting.mode, setting.limit, outcome=_NO_TIME)
    row = run_alone(setting, gpu=notes.terms.gpu, timeout=notes.left)
    print(
        f"  {setting.model} {setting.changes or ''} {setting.mode}: {row.outcome[:60]}", flush=True
    )
    return row


def _parts(notes: Notes, setting: Setting) -> None:
    """Plain TensorFlow without a limit, then tfmem in parts of what that took."""
    free = _run(notes, dataclasses.replace(setting, limit=None))
    _add(notes, "five models", setting.model, _FREE, free)
    if not free.measured_peak_bytes:
        return
    for name, part in _parts_of(setting.model).items():
        row = reached(
            setting.in_mode("tfmem"),
            part * free.measured_peak_bytes,
            lambda one: _run(notes, one),
            lambda one, budget: dataclasses.replace(one, budget=int(budget)),
        )
        _add(notes, "five models", setting.model, name, row)


def _parts_of(model: str) -> dict[str, float]:
    """The parts of plain TensorFlow's peak that a model is asked for, by their rows' names."""
    sixth = {_SIXTH: 1 / 6} if model == _MOE else {}
    return {_QUARTER: QUARTER} | sixth


def _search(notes: Notes, setting: Setting, mode: str) -> None:
    """The largest size of a model that trains under the limit, as far as time allows."""
    growth = load(setting.model).GROWTH
    _, guess, times = _LARGEST[setting.model]
    if notes.terms.config != "published":
        guess = getattr(setting.make_config(), growth)
    start = dataclasses.replace(
        setting, changes={growth: guess * (times if mode == "tfmem" else 1)}
    )

    def run(one: Setting) -> Row:
        row = _run(notes, one)
        best = notes.rows.get(("largest", setting.model, mode))
        if row.has_trained and (best is None or best.config[growth] < row.config[growth]):
            _add(notes, "largest", setting.model, mode, row)  # at once: the search may not end
        return row

    (found,) = capacity(start, (mode,), run, resolution=_RESOLUTION, first_guess=1.0)
    if not found.has_trained and notes.left > _LEAST_SECONDS:
        _add(notes, "largest", setting.model, mode, found)


def _checks(notes: Notes) -> None:
    """Parts of tfmem on the device, of `tests/models/test_gpu.py`; each in its own process."""
    from tests.children.gpu import CHECKS

    for name, limit in CHECKS.items():
        with locked(notes.terms.lock):
            if notes.left < _LEAST_SECONDS:
                notes.add("checks", name, {"outcome": _NO_TIME})
                continue
            done = run_limited(
                f"tests.children.gpu:{name}",
                limit_bytes=limit,
                timeout=notes.left,
                reserve=True,
                gpu=notes.terms.gpu,
            )
        outcome = "ok" if done.status == "ok" else f"{done.status}: {done.error[:300]}"
        print(f"  {name}: {outcome}", flush=True)
        notes.add("checks", name, {"outcome": outcome, "facts": done.result})


def _overlap(notes: Notes) -> None:
    with locked(notes.terms.lock):
        done = run_limited(
            "models.bench.overlap:measure_overlap",
            dataclasses.asdict(notes.terms.chain),
            limit_bytes=notes.terms.limit,
            timeout=max(1.0, notes.left),
            reserve=True,
            gpu=notes.terms.gpu,
        )
    print(f"  overlap: {done.status} {done.error[:200]}", flush=True)
    if done.status == "ok":
        notes.add("overlap", "chain", done.result)


# The page.


def page(notes: Notes) -> str:
    """Everything measured so far; "-" for what is not."""
    parts = [_head(notes)]
    tables = {
        "checks": _checks_table,
        "overlap": _overlap_table,
        "five models": _five_tables,
        "largest": _largest_table,
    }
    for section in SECTIONS:
        if not notes.terms.only or section in notes.terms.only:
            parts.append(f"## {section[0].upper()}{section[1:]}\n\n{tables[section](notes)}")
    return "\n\n".join(parts) + "\n"


def _head(notes: Notes) -> str:
    terms = notes.terms
    where = _nvidia_smi("name") or "no GPU"
    return (
        f"# On {where if terms.gpu else 'the CPU, a rehearsal'}\n\n"
        f"{place_and_versions()}; {terms.config} sizes, limit {show_bytes(terms.limit)}. Peaks "
        "are those of the device's allocator, step times medians after the steps that warm up."
    )


def _checks_table(notes: Notes) -> str:
    from tests.children.gpu import CHECKS

    lines = [[name.replace("_", " "), notes.checks.get(name, "-")] for name in CHECKS]
    return markdown(["check", "outcome"], lines)


def _overlap_table(notes: Notes) -> str:
    if notes.overlap is not None:
        return overlap.overlap_table(notes.overlap)
    forms = (overlap.PLAIN, overlap.ON_HOST, overlap.ON_DEVICE)
    header = ["", "step", "peak", "over the larger of computation and link"]
    return markdown(header, [[form, "-", "-", "-"] for form in forms])


def _five_tables(notes: Notes) -> str:
    names = (_FREE, _PLAIN, *COMPARATORS, *_POLICY, _AT_LIMIT)
    header = [
        "", "peak", "times less", "step", "times plain's", "predicted peak", "predicted step",
        "outcome",
    ]  # fmt: skip
    parts = []
    for model in FIVE:
        free = notes.rows.get(("five models", model, _FREE))
        lines = [
            _line(name, notes.rows.get(("five models", model, name)), free)
            for name in (*names, *_parts_of(model))
        ]
        parts.append(f"### {model}\n\n{markdown(header, lines)}")
    return "\n\n".join([*parts, f"### All five\n\n{_summary(notes)}"])


def _line(name: str, row: Row | None, free: Row | None) -> list[str]:
    if row is None:
        return [name, *["-"] * 7]
    gains = gain(free, row)
    less, times = (f"{one:.2f}" for one in gains) if gains else ("-", "-")
    return [
        name, show_bytes(row.measured_peak_bytes), less, show_seconds(row.step_seconds), times,
        show_error(row.predicted_peak_bytes, row.measured_peak_bytes),
        show_error(row.predicted_seconds, row.step_seconds), row.outcome[:70],
    ]  # fmt: skip


def _summary(notes: Notes) -> str:
    """The figures that are asked for, beside what was measured."""

    def gains(name: str, other: str, models: Sequence[str]) -> list[tuple[float, float]]:
        rows = [[notes.rows.get(("five models", m, one)) for one in (other, name)] for m in models]
        return [found for pair in rows if (found := gain(*pair))]

    def mean(found: list[tuple[float, float]]) -> tuple[str, str]:
        if not found:
            return "-", "-"
        less, times = (statistics.mean(column) for column in zip(*found, strict=True))
        return f"{less:.2f} ({len(found)} models)", f"{times:.2f}"

    average = mean(gains(_QUARTER, _FREE, FIVE))
    moe = mean(gains(_SIXTH, _FREE, [_MOE]))
    slowest = max((times for _, times in gains(_AT_LIMIT, _PLAIN, FIVE)), default=None)
    known = [
        (row.predicted_peak_bytes / row.measured_peak_bytes - 1,
         (row.predicted_seconds or 0.0) / row.step_seconds - 1)
        for (section, _, name), row in notes.rows.items()
        if section == "five models" and name in (_AT_LIMIT, _QUARTER, _SIXTH)
        and row.has_trained
        and row.predicted_peak_bytes and row.measured_peak_bytes and row.step_seconds
    ]  # fmt: skip
    worst = [max(map(abs, column)) for column in zip(*known, strict=True)] if known else []
    lines = [
        ["average: times less memory", "4", "3.3", average[0]],
        ["average: times plain's step", "1.2", "1.85", average[1]],
        ["MoE transformer: times less memory", "6", "6", moe[0]],
        ["MoE transformer: times plain's step", "1.5", "3.5", moe[1]],
        ["predicted peak, worst", "5 %", "-", f"{worst[0]:.1%}" if worst else "-"],
        ["predicted step, worst", "15 %", "-", f"{worst[1]:.1%}" if worst else "-"],
        ["where plain fits: times plain's step, most", "1.01", "-",
         f"{slowest:.2f}" if slowest else "-"],
    ]  # fmt: skip
    return markdown(["", "asked", "published", "measured"], lines)


def _largest_table(notes: Notes) -> str:
    header = [
        "", "", "size", "times plain's", "parameters", "times plain's", "peak", "step",
        "tokens a second", "outcome",
    ]  # fmt: skip
    lines = []
    for model, (title, _, _) in _LARGEST.items():
        growth = load(model).GROWTH
        rows = {mode: notes.rows.get(("largest", model, mode)) for mode in _LARGEST_MODES}
        plain = rows["plain"]
        for mode, row in rows.items():
            if row is None:
                lines.append([title, mode, *["-"] * 8])
                continue
            sizes = [one and one.config.get(growth) for one in (row, plain)]
            rate = row.tokens / row.step_seconds if row.tokens and row.step_seconds else None
            lines.append([
                title, mode, f"{growth} {sizes[0]}" if sizes[0] else "-", show_ratio(*sizes),
                show_count(row.parameters), show_ratio(row.parameters, plain and plain.parameters),
                show_bytes(row.measured_peak_bytes), show_seconds(row.step_seconds),
                show_count(rate), row.outcome[:60],
            ])  # fmt: skip
    return markdown(header, lines)
