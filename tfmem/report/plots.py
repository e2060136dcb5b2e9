"""Pictures of a report, by matplotlib."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tfmem.errors import Error

if TYPE_CHECKING:
    from tfmem.report.report import Report


def draw(report: Report, path: str | os.PathLike[str]) -> None:
    """Draws device memory over a step before and after, with the budget; see `Report.plot`."""
    figure_class = _figure_class()
    figure = figure_class(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for trace, label in ((report.original, "original"), (report.planned, "with tfmem")):
        times = [1e3 * seconds for seconds in trace.begins]
        axes.step(times, [nbytes / 1e6 for nbytes in trace.timeline], where="post", label=label)
    lines = {"budget": report.plan.budget, "measured peak": report.measured_peak_bytes}
    for style, (label, nbytes) in zip(("--", ":"), lines.items(), strict=True):
        if nbytes:
            axes.axhline(nbytes / 1e6, linestyle=style, color="grey", label=label)
    axes.set(xlabel="ms", ylabel="MB", title=f"{report.name} on {report.plan.device}")
    axes.set_ylim(bottom=0)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise Error(f"cannot write the picture {os.fspath(path)!r}: {error}") from error


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Error(
            "plotting needs matplotlib; pip install 'tfmem[plots]', or use Report.html"
        ) from error
    return Figure
