"""The page of the wild suite: a function of its rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from models.bench.table import markdown, show_bytes, show_difference, show_error

Row = dict[str, Any]

_SMALL = 50e6
"""Bytes of plain's peak under which a prediction is judged in MB, not in percent."""

TIGHTEST = "tightest"
"""Begins the shares of the budgets that are tried in search of the least that is kept."""

KEPT = "kept"
"""Begins the shares of that least budget."""

_LONG = 500
"""Steps of a run that is compared from its second step to its last."""

_TRAINED = ("kept", "exceeded", "wrong numbers")
_BROKEN = ("exceeded", "out of memory", "crashed", "hung", "wrong numbers")
_MODES = {"region": "one region", "growing": "growing", "gpu": "GPU"}


def page(rows: Iterable[Row]) -> str:
    """The page, in Markdown."""
    rows = list(rows)
    planned = [row for row in rows if row["mode"] in _MODES and row["room"] == 1.0]
    asked = [row for row in planned if row["outcome"] != "refused" or not _is_tried(row)]
    parts = [
        "# The wild suite",
        _introduction(rows, planned),
        "## In sum",
        _summary(planned),
        _figures(planned),
        "## What was not kept",
        _list(row for row in planned if row["outcome"] in _BROKEN),
        "## Where the closed loop acted",
        _list(row for row in planned if row["replanned"]),
        "## Long runs",
        _long_runs(planned),
        "## By case",
        _plain_table(rows, asked),
        "## By budget",
        _table(asked),
        "## Refused",
        _list(row for row in asked if row["outcome"] in ("refused", "no room to build")),
        "## Without an answer",
        "Cases that do not run as they are, or whose least budget tfmem does not say.",
        _list(row for row in rows if _is_unanswered(row)),
    ]
    if roomy := [row for row in rows if row["room"] != 1.0]:
        parts += ["## With another hard limit than the budget", _table(roomy)]
    return "\n\n".join(parts) + "\n"


def _introduction(rows: Sequence[Row], planned: Sequence[Row]) -> str:
    libraries = sorted({row["library"] for row in rows})
    revisions = sorted({row["revision"] for row in planned})
    sources = {row["code"].rpartition(" ")[2] for row in planned}
    dates = sorted({row["date"] for row in rows})
    is_on_gpu = any("gpu" in row for row in rows)
    command = "python -m models.bench.wild --gpu" if is_on_gpu else "make wild"
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row.get("versions", {})
    return "\n".join(
        [
            f"Written by `{command}`, {dates[0]} to {dates[-1]}: "
            f"{len({row['case'] for row in rows})} cases of {len(libraries)} libraries and styles "
            f"({', '.join(libraries)}), none written for tfmem. "
            f"On {' and '.join(sorted({_device(row) for row in rows if row.get('gpu') != ''}))}. "
            f"Rows are of the revisions {', '.join(revisions) or 'none'} "
            f"(a plus says that files differed), with {len(sources)} states of tfmem's sources. "
            "Versions: "
            f"{', '.join(f'{name} {text}' for name, text in sorted(versions.items()))}.",
            "",
            "A budget is a share of the peak that the case has as it is, from its second step on, "
            "or 1.05 times the least that tfmem names (`least`), in whole MiB; or one of those "
            f"tried in search of the least that is kept (`{TIGHTEST}`), of which the refused ones "
            f"are in the sum alone; or a factor of that one (`{KEPT}*1.02`). "
            "**The hard limit of the process is the budget.** `region`: the allocator's memory is "
            "claimed as one region before anything is made; `growing`: it grows by regions; `gpu`: "
            "the limit is that of GPU:0. Each step has a new batch, what steps return is kept. "
            "Measured is what TensorFlow's allocator held, everything counted. MB are 10^6 bytes.",
            "",
            "Losses are compared with those of the case as it is. Where they differ by more than "
            "1e-4, the case also runs without TensorFlow's graph optimizer and with one thread in "
            "a kernel, which rounds otherwise, and numbers are called wrong where they are 30 "
            "times further from plain than that.",
        ]
    )


def _device(row: Row) -> str:
    kernels = row.get("kernels", "oneDNN's")
    return str(row.get("gpu") or f"a CPU, with {kernels} kernels")


def _modes(rows: Iterable[Row]) -> dict[str, str]:
    """Title of each mode that rows are of."""
    used = {row["mode"] for row in rows}
    return {mode: title for mode, title in _MODES.items() if mode in used}


# In sum.


def _is_tried(row: Row) -> bool:
    return str(row["share"]).startswith(TIGHTEST)


def is_accepted(row: Row) -> bool:
    """Whether planning ended without a refusal or an error."""
    has_planned = row["predicted"] is not None and row["phase"] != "planning"
    return row["outcome"] != "refused" and has_planned


def _summary(planned: Sequence[Row]) -> str:
    header = ["mode", "budgets", "refused", "accepted", "kept", "exceeded", "out of memory"]
    header += ["crashed", "hung", "wrong numbers", "failed before a plan", "no room to build"]
    lines = []
    modes = _modes(planned)
    for mode, title in (*modes.items(), *([("", "all")] if len(modes) > 1 else [])):
        rows = [row for row in planned if row["mode"] == mode or not mode]
        accepted = [row for row in rows if is_accepted(row)]
        others = [row for row in rows if row["outcome"] in _BROKEN and not is_accepted(row)]
        counts = [len(rows), _count(rows, "refused"), len(accepted)]
        for outcome in ("kept", *_BROKEN):
            counts.append(_count(accepted, outcome))
        counts += [len(others), _count(rows, "no room to build")]
        lines.append([title, *map(str, counts)])
    return markdown(header, lines)


def _count(rows: Sequence[Row], outcome: str) -> int:
    return sum(row["outcome"] == outcome for row in rows)


def _figures(planned: Sequence[Row]) -> str:
    modes = _modes(planned)
    header = ["", *modes.values()]
    by_mode = [[row for row in planned if row["mode"] == mode] for mode in modes]
    figures = {
        "predicted against measured, median": _error(0.5),
        "predicted against measured, 19 in 20 within": _error(0.95),
        f"models under {_SMALL / 1e6:.0f} MB, 19 in 20 within": _small_error,
        "least accepted over the peak it measures, mean, where looked for": _tightness,
        "planned again after a step, of those accepted": _acted,
        "losses bitwise equal, of those that trained": _bitwise,
        "seconds of planning, median and most": _planning,
    }
    lines = [[name, *map(figure, by_mode)] for name, figure in figures.items()]
    return markdown(header, lines)


def _error(part: float) -> Any:
    def figure(rows: Sequence[Row]) -> str:
        errors = [abs(row["predicted"] / row["peak"] - 1) for row in rows if _is_large(row)]
        return f"{_quantile(errors, part):.1%}" if errors else "-"

    return figure


def _small_error(rows: Sequence[Row]) -> str:
    small = [row for row in rows if row["outcome"] in _TRAINED and not _is_large(row)]
    errors = [abs(row["predicted"] - row["peak"]) for row in small]
    return show_bytes(int(_quantile(errors, 0.95))) if errors else "-"


def _is_large(row: Row) -> bool:
    return row["outcome"] in _TRAINED and row["original"] >= _SMALL


def _quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _tightness(rows: Sequence[Row]) -> str:
    least: dict[str, Row] = {}
    searched = {row["case"] for row in rows if _is_tried(row)}
    for row in rows:
        if row["outcome"] == "kept" and row["case"] in searched:
            known = least.setdefault(row["case"], row)
            least[row["case"]] = min(known, row, key=lambda one: one["budget"])
    ratios = [row["budget"] / row["peak"] for row in least.values()]
    return f"{statistics.mean(ratios):.2f} of {len(ratios)} cases" if ratios else "-"


def _acted(rows: Sequence[Row]) -> str:
    accepted = [row for row in rows if is_accepted(row)]
    return f"{sum(row['replanned'] > 0 for row in accepted)} of {len(accepted)}"


def _bitwise(rows: Sequence[Row]) -> str:
    trained = [row for row in rows if row["outcome"] in _TRAINED]
    return f"{sum(row['difference'] == 0 for row in trained)} of {len(trained)}"


def _planning(rows: Sequence[Row]) -> str:
    seconds = [row["planning_seconds"] for row in rows if is_accepted(row)]
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"


# Tables and lists.


def _long_runs(planned: Sequence[Row]) -> str:
    header = ["case", "mode", "share", "budget", "outcome", "step 2", "last step", "more a step"]
    lines = []
    for row in planned:
        if row["steps"] < _LONG or row["outcome"] not in _TRAINED:
            continue
        peaks = row["peak_second"], row["peak_last"]
        more = (peaks[1] - peaks[0]) / (row["trained"] - 2)
        budget, second, last = map(show_bytes, (row["budget"], *peaks))
        named = [row["case"], row["mode"], row["share"], budget, row["outcome"]]
        lines.append([*named, second, last, f"{more:.0f} B"])
    told = f"Rows of {_LONG} steps. What a step returns is kept: 256 B for each of its numbers."
    return f"{told}\n\n{markdown(header, lines)}" if lines else "None."


def _plain_table(rows: Sequence[Row], asked: Sequence[Row]) -> str:
    """A line for each case: what it takes as it is, the least, and what became of its budgets."""
    plain = {row["case"]: row for row in rows if row["mode"] == "plain"}
    least = {row["case"]: row["least"] for row in rows if row["mode"] == "least"}
    modes = _modes(asked)
    header = ["case", "library", "peak", "a step", "least", *modes.values()]
    lines = []
    for name, row in plain.items():
        outcomes = [
            ", ".join(
                f"{one['share']} {one['outcome']}"
                for one in asked
                if one["case"] == name and one["mode"] == mode
            )
            for mode in modes
        ]
        step = row["step_seconds"]
        lines.append(
            [
                name,
                row["library"],
                show_bytes(row["peak"]),
                "-" if step is None else f"{step * 1e3:.0f} ms",
                show_bytes(least.get(name)),
                *(outcome or "-" for outcome in outcomes),
            ]
        )
    return markdown(header, lines)


_COLUMNS = (
    *("case", "mode", "share", "budget", "outcome", "predicted", "measured", "error", "step 2"),
    *("last step", "losses", "planned in", "steps", "revision"),
)


def _table(rows: Sequence[Row]) -> str:
    return markdown(_COLUMNS, [cells(row) for row in rows])


def cells(row: Row) -> list[str]:
    """A planned row as a line of the table."""
    error = show_error(row["predicted"], row["peak"]) if row["outcome"] in _TRAINED else "-"
    differs = row["trained"] and row["outcome"] not in ("refused", "no room to build")
    return [
        row["case"],
        row["mode"],
        row["share"],
        show_bytes(row["budget"]),
        row["outcome"],
        show_bytes(row["predicted"]),
        show_bytes(row["peak"]),
        error,
        show_bytes(row["peak_second"]),
        show_bytes(row["peak_last"]),
        show_difference(row["difference"]) if differs else "-",
        f"{row['planning_seconds']:.1f} s",
        str(row["trained"]),
        row["revision"],
    ]


def line(row: Row) -> str:
    """A row as one line for a terminal."""
    if row["mode"] not in _MODES:
        figures = f"peak {show_bytes(row['peak'])}, least {show_bytes(row['least'])}"
        return f"{row['case']:36} {row['mode']:8} {row['outcome']}, {figures} {row['reason'][:160]}"
    shown = (
        f"{row['case']:36} {row['mode']:8} {row['share']:5} {row['outcome']}: "
        f"budget {show_bytes(row['budget'])}, predicted {show_bytes(row['predicted'])}, "
        f"measured {show_bytes(row['peak'])}, {row['trained']} steps, {row['seconds']} s"
    )
    if row["trained"]:
        shown += f", losses {show_difference(row['difference'])}"
    return f"{shown}; {row['reason'][:200]}" if row["reason"] else shown


def _list(rows: Iterable[Row]) -> str:
    lines = []
    for row in rows:
        share = f" {row['share']} ({show_bytes(row['budget'])})" if row["budget"] else ""
        reason = " ".join(row["reason"].split()) or "; ".join(row["warnings"])
        lines.append(
            f"- `{row['case']}` {row['mode']}{share}: {row['outcome']} in {row['phase']}"
            f"{': ' + _plain_text(reason) if reason else ''}"
        )
    return "\n".join(lines) or "None."


def _plain_text(text: str) -> str:
    """Text whose angle brackets and underscores Markdown leaves alone."""
    return f"`{text.replace('`', chr(39))}`"


def _is_unanswered(row: Row) -> bool:
    if row["mode"] == "plain":
        return row["outcome"] != "trained"
    return row["mode"] == "least" and row["least"] is None
