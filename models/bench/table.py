"""Rows as tables for people, and figures as text."""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns, the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def align(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([align(header), rule, *map(align, rows)])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def stamp() -> str:
    """When, of which state of the code and on what machine something is measured."""
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{datetime.date.today()}, revision {revision or 'unknown'}, {os.cpu_count()} cores, no GPU"
    )


def show_bytes(nbytes: int | None) -> str:
    """Bytes in MB (10^6); "-" for None."""
    return "-" if nbytes is None else f"{nbytes / 1e6:,.1f} MB"


def show_count(count: float | None) -> str:
    """A count with its magnitude, as 12.3 M; "-" for None."""
    if count is None:
        return "-"
    for magnitude, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= magnitude:
            return f"{count / magnitude:.4g} {letter}"
    return f"{count:g}"


def show_seconds(seconds: float | None) -> str:
    """Seconds to three digits; "-" for None."""
    return "-" if seconds is None else f"{seconds:.3g} s"


def show_ratio(above: float | None, below: float | None) -> str:
    """How many times the second the first is; "-" where either is missing or 0."""
    return f"{above / below:.2f}" if above and below else "-"


def show_error(predicted: float | None, measured: float | None) -> str:
    """How far a prediction was off, in percent; "-" where either is missing or 0."""
    return f"{predicted / measured - 1:+.1%}" if predicted and measured else "-"


def show_difference(difference: float | None) -> str:
    """A relative difference; "bitwise" for none at all, "-" for None."""
    if difference is None:
        return "-"
    return f"{difference:.1e}" if difference else "bitwise"


def show_losses(losses: Sequence[float]) -> str:
    """The first loss and the last."""
    return f"{losses[0]:.3f} to {losses[-1]:.3f}" if losses else "-"
