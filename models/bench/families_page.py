"""The page of `models.bench.families`: a function of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.bench.table import markdown, show_bytes, show_difference, show_error, show_ratio, stamp

Found = Mapping[str, Sequence[tuple[str, int | None, dict[str, Any]]]]
"""Rows by case: what was asked for, its budget, and fields of `families.Row`."""

_PLAIN = "plain"
_FAILED = ("exceeded", "out of memory", "crashed", "hung", "wrong numbers")
_REFUSED = ("refused", "unsupported", "no room to build")
_NOT_AT_ALL = "does not train as it is"

_INTRODUCTION = """\
`python -m models.bench.families`, {stamp}. `fit` of each case with `tfmem.keras.MemoryBudget`, a
few steps with a new batch each, random weights. Budgets are 0.8 and 0.6 of the peak that plain
`fit` has from its second step on; where one of them is out of reach, 1.05 times the least that
tfmem names (`least`) too, and where that is refused 1.05 times what it names then. **The hard limit
of the process is the budget**, and its memory is claimed as one region before anything is made.
Kept: it trained, the measured peak (all that TensorFlow's allocator held, batches included) is at
most the budget, and the losses are plain `fit`'s, up to 1e-4 of the largest or 30 times what plain
`fit` drifts by when its kernels round otherwise; `bitwise` where they are the same. Planned again:
how often a watched step that took more than was predicted had something done about it. Rows are of
the revisions {revisions}. MB are 10^6 bytes."""


def page(groups: Mapping[str, Found]) -> str:
    """The page, in Markdown."""
    rows = [row for found in groups.values() for asked in found.values() for _, _, row in asked]
    revisions = ", ".join(sorted({row["revision"] for row in rows})) or "none"
    parts = [
        "# Families of Keras models under `fit`",
        _INTRODUCTION.format(stamp=stamp(), revisions=revisions).replace("\n", " "),
        "## In sum",
        _summary(groups),
        "## What failed",
        _list(groups, _FAILED),
        "## Unsupported, or without room to be built, or does not train as it is",
        _list(groups, (*_REFUSED[1:], _NOT_AT_ALL)),
        "## Why budgets were refused",
        _reasons(groups),
    ]
    for group, found in groups.items():
        parts += [f"## {group}", _table(found)]
    return "\n\n".join(parts) + "\n"


def status(share: str, row: Mapping[str, Any]) -> str:
    """What became of a run, in a word or two."""
    if share == _PLAIN:
        return "trained" if row["outcome"] == "trained" else _NOT_AT_ALL
    if row["outcome"] == "refused" and not row["reason"].startswith("BudgetError"):
        return "unsupported"
    return str(row["outcome"])


def _summary(groups: Mapping[str, Found]) -> str:
    header = ["", "cases", "with a kept budget", "budgets", "accepted", "kept", "bitwise"]
    header += [*_REFUSED, *_FAILED]
    lines = []
    for group, found in groups.items():
        asked = [
            (case, status(share, row), row)
            for case, rows in found.items()
            for share, _, row in rows
            if share != _PLAIN
        ]
        kept = [(case, row) for case, became, row in asked if became == "kept"]
        counts = [len(found), len({case for case, _ in kept}), len(asked)]
        counts += [sum(became not in _REFUSED for _, became, _ in asked), len(kept)]
        counts.append(sum(row["difference"] == 0 for _, row in kept))
        counts += [sum(one == became for _, became, _ in asked) for one in (*_REFUSED, *_FAILED)]
        lines.append([group, *map(str, counts)])
    sums = [str(sum(int(line[place]) for line in lines)) for place in range(1, len(header))]
    return markdown(header, [*lines, ["all", *sums]])


def _table(found: Found) -> str:
    header = ["case", "peak as it is", "asked", "budget", "became", "predicted", "measured"]
    header += ["error", "losses", "times plain's step", "planned in", "planned again"]
    lines = []
    for case, rows in found.items():
        (_, _, plain), *planned = rows
        for share, budget, row in planned or rows:
            named = [case, show_bytes(plain["peak"]), share, show_bytes(budget)]
            lines.append([*named, *_cells(share, row, plain)])
    return markdown(header, lines)


def _cells(share: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    became = status(share, row)
    if became == "refused" and row["least"] is not None:
        became = f"refused, least {show_bytes(row['least'])}"
    if became not in ("kept", "exceeded", "wrong numbers"):
        return [became, *["-"] * 7]
    return [
        became,
        show_bytes(row["predicted"]),
        show_bytes(row["peak"]),
        show_error(row["predicted"], row["peak"]),
        show_difference(row["difference"]),
        show_ratio(row["step_seconds"], plain["step_seconds"]),
        f"{row['planning_seconds']:.1f} s",
        f"{row['replanned']} times" if row["replanned"] else "-",
    ]


def _list(groups: Mapping[str, Found], outcomes: Sequence[str]) -> str:
    lines = []
    for found in groups.values():
        for case, rows in found.items():
            for share, budget, row in rows:
                if (became := status(share, row)) not in outcomes:
                    continue
                asked = f" {share} ({show_bytes(budget)})" if budget else ""
                reason = " ".join(row["reason"].split()).replace("`", "'")
                lines.append(f"- `{case}`{asked}: {became} in {row['phase']}: `{reason}`")
    return "\n".join(lines) or "None."


def _reasons(groups: Mapping[str, Found]) -> str:
    """Refused budgets by whether the peak was in the way, or where free memory lay."""
    counts: dict[str, int] = {}
    for found in groups.values():
        for rows in found.values():
            for share, _, row in rows:
                if status(share, row) == "refused":
                    is_holes = "too scattered" in row["reason"]
                    kind = "free chunks too scattered" if is_holes else "the least reachable peak"
                    counts[kind] = counts.get(kind, 0) + 1
    return "\n".join(f"- {kind}: {count}" for kind, count in sorted(counts.items())) or "None."
