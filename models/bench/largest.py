"""The sections of RESULTS.md on sizes: the largest of each model that trains under a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from models.bench import published
from models.bench.capacity import capacity
from models.bench.differences import loss_difference
from models.bench.experiment import Experiment, Row
from models.bench.table import (
    markdown,
    show_bytes,
    show_count,
    show_difference,
    show_ratio,
    show_seconds,
)

Run = Callable[[Experiment], Row]

MB = 10**6


def largest_moe(run: Run, folder: Path) -> str:
    """The largest MoE transformer under a limit, plain and with tfmem."""
    experiment = Experiment("moe_transformer", limit=600 * MB, steps=3)
    rows, said = _capacity(experiment, run, resolution=0.15, times=48)
    return f"{_capacity_table(rows, 'experts', published.LARGEST_MOE)}\n\n{said}"


def deepest_resnet(run: Run, folder: Path) -> str:
    """The deepest ResNet under a limit at two sizes of the batch."""
    parts = []
    for batch, known in published.DEEPEST_RESNET.items():
        changes = {"batch": batch, "side": 128, "width": 8, "depth": 50}
        experiment = Experiment("resnet", changes=changes, limit=75 * MB, steps=3)
        rows, said = _capacity(experiment, run, resolution=0.3, times=9)
        parts.append(f"### Batch {batch}\n\n{_capacity_table(rows, 'depth', known)}\n\n{said}")
    return "\n\n".join(parts)


def longest_deepspeech(run: Run, folder: Path) -> str:
    """The longest DeepSpeech under a limit, and the step time by length."""
    experiment = Experiment("deepspeech", changes={"length": 48}, limit=250 * MB, steps=4)
    rows, said = _capacity(experiment, run, resolution=0.15, times=4)
    parts = [_capacity_table(rows, "length", published.LONGEST_DEEPSPEECH), said]
    if not all(row.has_trained for row in rows):
        return "\n\n".join(parts)
    most, longest = (row.config["length"] for row in rows)
    lines = []
    for length in (most // 2, most, longest):
        at = experiment.changes | {"length": length}
        ours = run(experiment.in_mode("tfmem", at, starts_on_host=True)).step_seconds
        plain = run(experiment.in_mode("plain", at)).step_seconds if length <= most else None
        per_frame = [f"{1e3 * step / length:.2f} ms" if step else "-" for step in (plain, ours)]
        lines.append([str(length), show_seconds(plain), show_seconds(ours), *per_frame])
    header = ["frames", "plain, a step", "tfmem, a step", "plain, a frame", "tfmem, a frame"]
    known = [
        [str(length), *map(show_seconds, seconds)]
        for length, seconds in published.DEEPSPEECH_SECONDS.items()
    ]
    before = markdown(["frames, published", "TensorFlow, a step", "TensorFlowMem, a step"], known)
    return "\n\n".join([*parts, markdown(header, lines), before])


def distributed_moe(run: Run, folder: Path) -> str:
    """The MoE transformer spread over local servers, each with a limit; and whether it is equal."""
    changes = {"layers": 2, "batch": 4, "split": 8, "experts": 16}
    experiment = Experiment("moe_transformer", changes=changes, limit=64 * MB, steps=2, machines=4)
    rows, said = _capacity(experiment, run, resolution=0.5, times=20)
    most = dataclasses.replace(experiment, machines=16)
    more = capacity(most, ("plain",), run, resolution=0.5, first_guess=1.0)
    names = (
        "plain TensorFlow, 4 servers",
        "tfmem, the same 4 servers",
        "plain TensorFlow, 16 servers",
    )
    lines = [
        [name, str(row.config.get("experts")), show_count(row.parameters),
         show_ratio(row.parameters, rows[0].parameters), known, show_bytes(row.measured_peak_bytes),
         show_seconds(row.step_seconds), row.outcome[:80]]
        for name, row, known in zip(names, (*rows, *more), published.DISTRIBUTED_MOE, strict=True)
    ]  # fmt: skip
    header = ["", "experts", "parameters", "ratio", "published", "largest peak", "step", "outcome"]
    limit = f"Limit of a server: {show_bytes(experiment.limit)}. {said}"
    return "\n\n".join([markdown(header, lines), limit, _equality(experiment, run)])


def _equality(experiment: Experiment, run: Run) -> str:
    """Losses of a small model in one process and on four servers."""
    small = dataclasses.replace(
        experiment, changes=experiment.changes | {"experts": 8, "split": 2}, limit=None, steps=6
    )
    alone = run(dataclasses.replace(small, machines=0))
    plain = run(small)
    budget = int(0.6 * (plain.measured_peak_bytes or 0)) or None
    ours = run(dataclasses.replace(small.in_mode("tfmem"), budget=budget))
    names = ("one process", "plain TensorFlow, 4 servers", "tfmem, 4 servers")
    lines = [
        [name, show_bytes(row.measured_peak_bytes), show_seconds(row.step_seconds),
         show_difference(loss_difference(alone, row)), row.outcome[:80]]
        for name, row in zip(names, (alone, plain, ours), strict=True)
    ]  # fmt: skip
    return markdown(["8 experts, 6 steps", "largest peak", "step", "losses", "outcome"], lines)


def _capacity(
    experiment: Experiment, run: Run, *, resolution: float, times: int
) -> tuple[list[Row], str]:
    """The largest sizes, plain and with tfmem; and where the second search ends."""
    modes = ("plain", "tfmem")
    rows = capacity(
        experiment, modes, run, resolution=resolution, first_guess=1.05 * times, enough=times
    )
    said = (
        f"Sizes are searched to {resolution:.0%}; the search ends where {times} times plain's "
        "size trains."
    )
    return rows, said


def _capacity_table(rows: Sequence[Row], growth: str, known: Sequence[str]) -> str:
    """What trained of each mode, beside what was published of it."""
    header = [
        "", growth, "ratio", "parameters", "ratio", "published", "limit", "peak", "step", "outcome"
    ]  # fmt: skip
    first = rows[0]
    lines = []
    for row, before in zip(rows, known, strict=True):
        size = row.config.get(growth)
        lines.append([
            {"plain": "plain TensorFlow"}.get(row.mode, row.mode), str(size),
            show_ratio(size, first.config.get(growth)), show_count(row.parameters),
            show_ratio(row.parameters, first.parameters), before, show_bytes(row.limit_bytes),
            show_bytes(row.measured_peak_bytes), show_seconds(row.step_seconds), row.outcome[:80],
        ])  # fmt: skip
    return markdown(header, lines)
