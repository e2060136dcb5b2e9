"""The page that a GPU's run writes, and the names of its rows."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models.bench import overlap, published
from models.bench.comparators import COMPARATORS
from models.bench.experiment import Row, load
from models.bench.results import FIVE, QUARTER, gain, place_and_versions
from models.bench.table import (
    markdown,
    show_bytes,
    show_count,
    show_difference,
    show_error,
    show_ratio,
    show_seconds,
)

if TYPE_CHECKING:
    from models.bench.gpu import Notes

SECTIONS = ("overlap", "checks", "steps", "five models", "largest")

FREE, PLAIN = "plain, no limit", "plain"
AT_LIMIT = "tfmem, budget the limit"
QUARTERED, SIXTH = "tfmem, a quarter of plain's peak", "tfmem, a sixth of plain's peak"
POLICY = {f"TensorFlowMem's policy: {name}": mode for name, mode in published.POLICY.items()}

KEPT = "ok"
"""Of a small step whose peaks were within a budget below plain's peak."""

MOE = "moe_transformer"

LARGEST = {
    MOE: ("largest MoE transformer", 32, 20),
    "resnet": ("deepest ResNet", 152, 4),
    "deepspeech": ("longest DeepSpeech", 400, 3),
}
"""By model: what is searched for, where plain TensorFlow's search begins, and how many times that
tfmem's does."""

LARGEST_MODES = ("plain", "tfmem", "jit_compile", "recompute_grad")


def page(notes: Notes) -> str:
    """Everything measured so far; "-" for what is not."""
    parts = [_head(notes)]
    tables = {
        "overlap": _overlap_table,
        "checks": _checks_table,
        "steps": _steps_table,
        "five models": _five_tables,
        "largest": _largest_table,
    }
    for section in SECTIONS:
        if not notes.run.only or section in notes.run.only:
            parts.append(f"## {section[0].upper()}{section[1:]}\n\n{tables[section](notes)}")
    return "\n\n".join(parts) + "\n"


def _head(notes: Notes) -> str:
    run = notes.run
    where = gpu() or "no GPU"
    return (
        f"# On {where if run.gpu else 'the CPU, a rehearsal'}\n\n"
        f"{place_and_versions()}; {run.config} sizes, limit {show_bytes(run.limit)}. Peaks "
        "are those of the device's allocator, step times medians after the steps that warm up."
    )


def _checks_table(notes: Notes) -> str:
    from tests.children.gpu import CHECKS

    lines = [[name.replace("_", " "), notes.checks.get(name, "-")] for name in CHECKS]
    return markdown(["check", "outcome"], lines)


def _steps_table(notes: Notes) -> str:
    header = ["step", "plain", "budget", "predicted", "peak", "numbers apart", "outcome"]
    lines = [
        [name, *["-"] * 5, step_outcome(found)]
        if "error" in found
        else [
            name, *(show_bytes(found[one]) for one in ("plain", "budget", "predicted")),
            show_bytes(max(found["peaks"])), show_difference(found["difference"]),
            step_outcome(found),
        ]
        for name, found in notes.steps.items()
    ]  # fmt: skip
    kept = sum(step_outcome(found) == KEPT for found in notes.steps.values())
    return f"{markdown(header, lines)}\n\n{kept} of {len(lines)} kept their budget."


def step_outcome(found: Mapping[str, Any]) -> str:
    """What became of a small step under a budget, as `tests.simgpu.step_runner` tells of it."""
    if "error" in found:
        return str(found["error"]).strip().splitlines()[-1][:200]
    if max(found["peaks"]) > found["budget"]:
        return "budget broken"
    return KEPT if found["budget"] < found["plain"] else "nothing to gain"


def _overlap_table(notes: Notes) -> str:
    if notes.overlap is not None:
        return overlap.overlap_table(notes.overlap)
    forms = (overlap.PLAIN, overlap.ON_HOST, overlap.ON_DEVICE)
    header = ["", "step", "peak", "over the larger of computation and link"]
    return markdown(header, [[form, "-", "-", "-"] for form in forms])


def _five_tables(notes: Notes) -> str:
    names = (FREE, PLAIN, *COMPARATORS, *POLICY, AT_LIMIT)
    header = [
        "", "peak", "times less", "step", "times plain's", "predicted peak", "predicted step",
        "outcome",
    ]  # fmt: skip
    parts = []
    for model in FIVE:
        free = notes.rows.get(("five models", model, FREE))
        lines = [
            _line(name, notes.rows.get(("five models", model, name)), free)
            for name in (*names, *parts_of(model))
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

    average = mean(gains(QUARTERED, FREE, FIVE))
    moe = mean(gains(SIXTH, FREE, [MOE]))
    slowest = max((times for _, times in gains(AT_LIMIT, PLAIN, FIVE)), default=None)
    known = [
        (row.predicted_peak_bytes / row.measured_peak_bytes - 1,
         (row.predicted_seconds or 0.0) / row.step_seconds - 1)
        for (section, _, name), row in notes.rows.items()
        if section == "five models" and name in (AT_LIMIT, QUARTERED, SIXTH)
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
    for model, (title, _, _) in LARGEST.items():
        growth = load(model).GROWTH
        rows = {mode: notes.rows.get(("largest", model, mode)) for mode in LARGEST_MODES}
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


def parts_of(model: str) -> dict[str, float]:
    """The parts of plain TensorFlow's peak that a model is asked for, by their rows' names."""
    sixth = {SIXTH: 1 / 6} if model == MOE else {}
    return {QUARTERED: QUARTER} | sixth


def gpu() -> str:
    """What the GPU is called; "" where there is none."""
    return nvidia_smi("name") or simulated()


def simulated() -> str:
    """What a simulated GPU, with its rates, is called; "" where there is none."""
    import tensorflow as tf

    names = (
        tf.config.experimental.get_device_details(gpu).get("device_name", "")
        for gpu in tf.config.list_physical_devices("GPU")
    )
    return next((name for name in names if name.startswith("Simulated")), "")


def nvidia_smi(query: str) -> str:
    """One fact about the first GPU; "" where the program is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""
