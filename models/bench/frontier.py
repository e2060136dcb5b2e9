"""The frontier: what a step costs at each budget, from the original's peak to the least one.

Each budget that the planner accepts is run in a process of its own under a hard limit of the same
size. Rows first; the table and the picture are made of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.bench.experiment import Experiment, Row
from models.bench.table import show_bytes, show_difference, show_seconds, table

_RISE = 1.1
"""From the least peak on, limits are tried in such steps: the planner leaves them some room, so
that the least peak itself is never enough."""


Limited = Callable[[Experiment, float], Experiment]
"""Gives an experiment a budget in bytes, and a hard limit if it is to have one."""


@dataclass(frozen=True)
class Point:
    """One budget.

    Attributes:
      budget: bytes that were asked for.
      row: what its run gave.
      difference: how far its losses are from plain TensorFlow's, relative; None if it did not run.
    """

    budget: int
    row: Row
    difference: float | None


def frontier(
    experiment: Experiment,
    points: int,
    run: Callable[[Experiment], Row],
    compare: Callable[[Row, Row], float | None],
) -> Iterator[Point]:
    """Plain TensorFlow first, then budgets in equal steps from its peak to the least accepted.

    Args:
      experiment: the model, and the mode in which it is planned.
      points: how many budgets.
      run: trains an experiment in a process of its own.
      compare: how far a row's losses are from another's.
    """
    plain = run(dataclasses.replace(experiment, mode="plain", host_process=False))
    yield Point(plain.measured_peak_bytes or 0, plain, 0.0)
    refused = run(dataclasses.replace(experiment, budget=1))
    least, most = refused.least_bytes, plain.measured_peak_bytes
    if least is None or most is None:
        yield Point(1, refused, None)
        return
    last = lowest(experiment, least, most, run)
    assert last.limit_bytes is not None
    for number in range(points - 1):
        budget = most - (most - last.limit_bytes) * number / max(1, points - 1)
        row = started(within(experiment, budget), run)
        yield Point(row.limit_bytes or 0, row, compare(plain, row))
    yield Point(last.limit_bytes, last, compare(plain, last))


def within(experiment: Experiment, budget: float) -> Experiment:
    """The experiment with a budget and a hard limit of that size, in whole MiB."""
    nbytes = -int(-budget // 2**20) * 2**20
    return dataclasses.replace(experiment, budget=nbytes, limit=nbytes)


def lowest(
    experiment: Experiment,
    least: float,
    most: float,
    run: Callable[[Experiment], Row],
    limited: Limited = within,
) -> Row:
    """The row of the least budget that the planner accepts under a hard limit.

    Args:
      experiment: what is planned.
      least: the least peak that is reachable without a limit.
      most: where to stop.
      run: trains an experiment in a process of its own.
      limited: gives an experiment a budget and a limit.
    """
    least *= _RISE
    row = run(limited(experiment, least))
    while least < most:
        if _has_no_room(experiment, row):
            experiment = dataclasses.replace(experiment, starts_on_host=True)
        elif row.least_bytes is not None:
            least = max(_RISE * least, row.least_bytes)
        else:
            break
        row = run(limited(experiment, least))
    return row


def started(experiment: Experiment, run: Callable[[Experiment], Row]) -> Row:
    """The row of an experiment; large variables that have no room are made on the host."""
    row = run(experiment)
    if not _has_no_room(experiment, row):
        return row
    return run(dataclasses.replace(experiment, starts_on_host=True))


def _has_no_room(experiment: Experiment, row: Row) -> bool:
    """Whether a run ended before it was planned, and variables could still go to a host."""
    was_planned = row.predicted_peak_bytes is not None or row.least_bytes is not None
    could_go = experiment.host_process and not experiment.starts_on_host
    return could_go and not was_planned and not row.has_trained


def frontier_table(points: list[Point]) -> str:
    """Rows for people."""
    header = [
        "budget", "measured", "predicted", "error", "step", "ratio", "predicted", "recomputed",
        "swapped", "placed", "losses", "outcome",
    ]  # fmt: skip
    plain = points[0].row.step_seconds
    lines = []
    for point in points:
        row = point.row
        ratio = f"{row.step_seconds / plain:.2f}" if row.step_seconds and plain else "-"
        guess = f"{row.predicted_slowdown:.2f}" if row.predicted_slowdown else "-"
        used = [str(row.used.get(name, "-")) for name in ("recomputed", "swapped", "placed")]
        error = "-"
        if row.measured_peak_bytes and row.predicted_peak_bytes:
            error = f"{row.predicted_peak_bytes / row.measured_peak_bytes - 1:+.1%}"
        peaks = [show_bytes(row.measured_peak_bytes), show_bytes(row.predicted_peak_bytes)]
        seconds = [show_seconds(row.step_seconds), ratio, guess]
        losses = show_difference(point.difference)
        lines.append(
            [show_bytes(point.budget), *peaks, error, *seconds, *used, losses, row.outcome[:60]]
        )
    return table(header, lines)


def draw(points: list[Point], path: str) -> None:
    """A picture of step time and peak over the budget."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ran = [point for point in points[1:] if point.row.has_trained]
    plain = points[0].row
    budgets = [point.budget / 1e6 for point in ran]
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    if plain.step_seconds:
        ratios = [(p.row.step_seconds or 0.0) / plain.step_seconds for p in ran]
        above.plot(budgets, ratios, "o-", label="measured")
    above.plot(budgets, [p.row.predicted_slowdown for p in ran], "x--", label="predicted")
    above.set_ylabel("step time over plain TensorFlow's")
    below.plot(
        budgets, [(p.row.measured_peak_bytes or 0) / 1e6 for p in ran], "o-", label="measured"
    )
    predicted = [(p.row.predicted_peak_bytes or 0) / 1e6 for p in ran]
    below.plot(budgets, predicted, "x--", label="predicted")
    below.plot(budgets, budgets, ":", color="grey", label="budget")
    below.set_xlabel("budget, MB")
    below.set_ylabel("peak, MB")
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.suptitle(f"{plain.model}: what a step costs at each budget")
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
