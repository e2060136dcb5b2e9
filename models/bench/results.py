"""Every table and picture of RESULTS.md: `python -m models.bench all`, or `make results`.

Each section asks for rows and writes Markdown. Rows are kept (`Book`), so that an interrupted run
goes on where it stopped; RESULTS.md is written anew after each section.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import platform
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

import tfmem
from models.bench import published
from models.bench.book import Book
from models.bench.charts import draw_rows
from models.bench.comparators import COMPARATORS
from models.bench.differences import loss_difference
from models.bench.experiment import Experiment, Row
from models.bench.frontier import Limited, lowest, started, within
from models.bench.largest import (
    Run,
    deepest_resnet,
    distributed_moe,
    largest_moe,
    longest_deepspeech,
)
from models.bench.table import (
    markdown,
    show_bytes,
    show_difference,
    show_ratio,
    show_seconds,
)

FIVE = ("moe_transformer", "transformer", "resnet", "wgan_gp", "deepspeech")

_PLAIN, _KERAS = "plain TensorFlow", "plain TensorFlow, layers of Keras 3"
_POLICY = "TensorFlowMem's policy"
_ORDER = f"{_POLICY}: order"
_STEPS = 6
QUARTER = 0.25
"""Part of plain TensorFlow's peak that the planner is asked to keep."""

_ABOVE_LEAST = 1.05
"""The budget over the least reachable peak, where a quarter is below that."""

ROOM = 1.25
"""The hard limit over a budget."""

_REPETITIONS = 3
"""Runs in turn that two experiments' step times are compared by."""

_SHARE, _SAME = "a quarter of plain's peak", "tfmem, the least of the others' peaks"


def five_models(run: Run, folder: Path) -> str:
    """Peak and step time of the five models: plain, the comparators, techniques, the planner."""
    parts = []
    best: dict[str, tuple[float, float]] = {}
    for model in FIVE:
        rows = _variants(model, run)
        parts.append(f"### {model}\n\n{_variants_table(rows)}\n\n{_verdict(rows)}")
        draw_rows(model, rows, folder / model)
        parts.append(f"![peaks and step times of {model}]({(folder / model).as_posix()}.png)")
        if ratios := gain(rows[_PLAIN], rows.get(f"tfmem, {_SHARE}")):
            best[model] = ratios
    return "\n\n".join([*parts, _together(best)])


def _together(best: dict[str, tuple[float, float]]) -> str:
    """The planner's ratios by model and in the mean, beside the published ones."""
    lines = dict(best)
    without = [ratios for model, ratios in best.items() if model != "moe_transformer"]
    for name, some in (
        ("average", list(best.values())),
        ("average without the MoE model", without),
    ):
        if some:
            peaks, times = zip(*some, strict=True)
            lines[name] = (statistics.mean(peaks), statistics.mean(times))
    cells = [
        [name, f"{peak:.1f}", f"{seconds:.2f}", *map(str, published.PEAK_AND_TIME.get(name, "--"))]
        for name, (peak, seconds) in lines.items()
    ]
    header = ["", "times less memory", "times plain's step", "published", "published"]
    said = (
        "tfmem under a quarter of plain TensorFlow's peak, or the least it accepts; step times are "
        f"medians of {_REPETITIONS} runs of each, in turn."
    )
    return f"### All five\n\n{said}\n\n{markdown(header, cells)}"


def _variants(model: str, run: Run) -> dict[str, Row]:
    """Rows of one model by what was done."""
    experiment = Experiment(model, steps=_STEPS)
    rows = {_PLAIN: run(experiment)}
    if hasattr(experiment.make_config(), "library"):
        rows[_KERAS] = run(dataclasses.replace(experiment, changes={"library": "keras"}))
    for mode, meaning in COMPARATORS.items():
        rows[meaning] = run(dataclasses.replace(experiment, mode=mode))
    for name, mode in published.POLICY.items():
        rows[f"{_POLICY}: {name}"] = run(experiment.in_mode(mode))
    most = rows[_PLAIN].measured_peak_bytes
    if most is None:
        return rows
    recomputed = dataclasses.replace(experiment, mode="recompute")
    rows[f"tfmem, order and recomputation, {_SHARE}"] = reached(
        recomputed, QUARTER * most, run, roomy
    )
    ours = experiment.in_mode("tfmem")
    refused = run(dataclasses.replace(ours, budget=1))
    if refused.least_bytes is None:
        rows["tfmem, least budget"] = refused
        return rows
    least = lowest(ours, refused.least_bytes, most, run, roomy)
    rival = _rival(rows)
    if rival:
        name, row = rival
        other = dataclasses.replace(experiment, mode=row.mode)
        known = max(row.measured_peak_bytes or 0, least.limit_bytes or 0)
        rows[name], rows[_SAME] = _in_turn(other, within(ours, known), run)
    budget = max(QUARTER * most, _ABOVE_LEAST * refused.least_bytes)
    rows[_PLAIN], rows[f"tfmem, {_SHARE}"] = _in_turn(experiment, roomy(ours, budget), run)
    rows["tfmem, least budget"] = least
    return rows


def reached(experiment: Experiment, budget: float, run: Run, limited: Limited) -> Row:
    """The row of a budget; if that is refused, of the least that is accepted.

    Args:
      experiment: what is planned.
      budget: bytes asked for first.
      run: trains an experiment in a process of its own.
      limited: gives an experiment a budget, and a limit if it is to have one.
    """
    row = run(limited(experiment, budget))
    if row.least_bytes is None:
        return row
    return run(limited(experiment, _ABOVE_LEAST * row.least_bytes))


def _in_turn(one: Experiment, other: Experiment, run: Run) -> list[Row]:
    """The rows of two experiments that are run in turn, with the medians of their step times."""
    turns: list[list[Row]] = [[], []]
    for repetition in range(1, _REPETITIONS + 1):
        for rows, experiment in zip(turns, (one, other), strict=True):
            rows.append(started(dataclasses.replace(experiment, repetition=repetition), run))
    return [median(rows) for rows in turns]


def median(rows: Sequence[Row]) -> Row:
    """The first of equal runs' rows with the median of their step times."""
    seconds = [row.step_seconds for row in rows if row.step_seconds is not None]
    return dataclasses.replace(
        rows[0], step_seconds=statistics.median(seconds) if seconds else None
    )


def roomy(experiment: Experiment, budget: float) -> Experiment:
    """The experiment with a budget, under a hard limit with room for holes between tensors."""
    return dataclasses.replace(within(experiment, ROOM * budget), budget=int(budget))


def _rival(rows: dict[str, Row]) -> tuple[str, Row] | None:
    """The comparator that trained in the least memory."""
    trained = [(name, rows[name]) for name in COMPARATORS.values() if rows[name].has_trained]
    return min(trained, key=lambda one: one[1].measured_peak_bytes or 0, default=None)


def _verdict(rows: dict[str, Row]) -> str:
    """Whether a row of tfmem takes less memory than every comparator, in no more time than it."""
    rival = _rival(rows)
    if rival is None:
        return "No comparator trains this model."
    name, row = rival
    ours = [
        (name, one)
        for name, one in rows.items()
        if name.startswith("tfmem") and one.has_trained and _is_less(one, row)
    ]
    said = f"Of the others, {name} takes least: {_figures(row)}."
    if not ours:
        return f"{said} No row of tfmem takes less."
    best, fastest = min(ours, key=lambda one: one[1].step_seconds or math.inf)
    said += f" The fastest row of tfmem that takes less: {best}, {_figures(fastest)}"
    if not (fastest.step_seconds and row.step_seconds):
        return f"{said}."
    said += f", {fastest.step_seconds / row.step_seconds:.2f} of its time."
    order, plain = rows[_ORDER].step_seconds, rows[_PLAIN].step_seconds
    if fastest.step_seconds <= row.step_seconds or not (order and plain):
        return said
    return (
        f"{said} A plan runs its nodes in one order, few at a time, and the others do not: the "
        f"order alone takes {order / plain:.2f} of plain TensorFlow's time."
    )


def _is_less(one: Row, other: Row) -> bool:
    return (one.measured_peak_bytes or math.inf) < (other.measured_peak_bytes or 0)


def _figures(row: Row) -> str:
    return f"{show_bytes(row.measured_peak_bytes)} at {show_seconds(row.step_seconds)} a step"


def _variants_table(rows: dict[str, Row]) -> str:
    plain = next(iter(rows.values()))
    header = ["", "limit", "peak", "times less", "step", "times plain's", "losses", "outcome"]
    lines = []
    for name, row in rows.items():
        ratio = show_ratio(plain.measured_peak_bytes, row.measured_peak_bytes)
        slower = show_ratio(row.step_seconds, plain.step_seconds)
        same = rows.get(_KERAS, plain) if name in (_KERAS, COMPARATORS["remat_scope"]) else plain
        lines.append([
            name, show_bytes(row.limit_bytes), show_bytes(row.measured_peak_bytes), ratio,
            show_seconds(row.step_seconds), slower, show_difference(loss_difference(same, row)),
            row.outcome[:120],
        ])  # fmt: skip
    return markdown(header, lines)


def gain(plain: Row | None, row: Row | None) -> tuple[float, float] | None:
    """How many times less memory a row takes than another, at how many times its step.

    None where either is missing or did not train.
    """
    if not plain or not row or not plain.has_trained or not row.has_trained:
        return None
    assert plain.measured_peak_bytes
    assert plain.step_seconds
    assert row.measured_peak_bytes
    assert row.step_seconds
    return (
        plain.measured_peak_bytes / row.measured_peak_bytes,
        row.step_seconds / plain.step_seconds,
    )


SECTIONS = {
    "five models": five_models,
    "distributed MoE": distributed_moe,
    "longest DeepSpeech": longest_deepspeech,
    "deepest ResNet": deepest_resnet,
    "largest MoE": largest_moe,
}


def write(book: Book, folder: Path, path: Path, only: Sequence[str] = ()) -> None:
    """Measures the sections that are asked for (all by default) and writes RESULTS.md.

    Args:
      book: gives the row of an experiment.
      folder: takes the pictures.
      path: of RESULTS.md.
      only: titles of sections; () for all.
    """
    chosen = {title: one for title, one in SECTIONS.items() if not only or title in only}
    parts: list[str] = []
    for title, section in tqdm(chosen.items(), desc="sections", unit=" sections", disable=None):
        before = book.spent
        text = section(book, folder)
        minutes = (book.spent - before) / 60
        command = f"`python -m models.bench all --only={shlex.quote(title)}`"
        parts.append(
            f"## {title[0].upper()}{title[1:]}\n\n{text}\n\n{command}: {minutes:.0f} minutes"
        )
        left = [other for other in SECTIONS if other not in list(chosen)[: len(parts)]]
        page = "\n\n".join([_head(left, book.spent), *parts, ELSEWHERE])
        path.write_text(f"{page}\n", encoding="utf-8")


ELSEWHERE = """## At the ratios of real GPUs

*Simulated*: the five models on a device whose kernels, memory and link are as fast, next to one
another, as those of real machines. [All figures](docs/measured/simulated_gpu.md), by
`python -m tests.simgpu.figures`.

![steps over plain's and what plans are made of, by machine](docs/measured/simulated_gpu.png)"""


def _head(left: Sequence[str], spent: float) -> str:
    """What stands above all sections: `left` are not there, the others took `spent` seconds."""
    head = (
        "# Results\n\nGenerated by `make results`; not edited by hand.\n\n"
        f"{place_and_versions()}. Peaks are those of the device's allocator over the steps, "
        "MB = 10^6 bytes; every run has a process of its own; step times are medians after the "
        "first step. A row with a limit ran under a hard limit of that size. The runs of this page "
        f"took {spent / 60:.0f} minutes."
    )
    return f"{head}\n\nNot measured this time: {', '.join(left)}." if left else head


def place_and_versions() -> str:
    """The day, the machine, and the versions that figures hold for."""
    memory = math.ceil(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return (
        f"{datetime.date.today()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory} GiB of memory; Python {platform.python_version()}, TensorFlow "
        f"{tf.__version__}, tfmem {tfmem.__version__}"
    )
