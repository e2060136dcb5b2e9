"""`fit` of families of Keras models under `MemoryBudget`, with hard limits equal to the budgets.

    python -m models.bench.families [--only=hub,embedding,applications] [--cases=PREFIX,...]
        [--shares=0.8,0.6] [--rows=out/families.jsonl] [--page=docs/measured/families.md]
        [--page-only]

Each case of `hub_fits`, `embedding_fits` and `application_fits` of `wild_cases` trains as it is
first, without a limit: its peak and its losses. Then it trains under each share of that peak, as
budget and as hard limit of a process of its own, whose allocator has claimed it as one region. A
share that is less than tfmem can reach gives way to 1.05 times the least that it names, and that
to 1.05 times what it names then.

Rows are kept as they are made, and not made again: a line that is taken out of the file is.
`--page-only` makes the page of the rows that are there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.bench import families_page
from models.bench.book import Book
from models.bench.table import show_bytes, show_difference
from models.bench.wild import LEAST_FACTOR, observed, revision, whole_mib
from models.bench.wild_cases import FITS, Case, cases, find
from models.bench.wild_child import Job
from models.bench.wild_verdict import Events, judged, or_of_tensorflow
from tfmem.runtime.memory import MIB

GROUPS = dict(zip(("hub", "embedding", "applications"), FITS, strict=True))
"""Modules of cases by what the command calls them."""

_TRIES = 3
"""Budgets by the least that is named: that of another limit, with other gaps, may be more."""

LOGS = Path("out") / "families"


@dataclass(frozen=True)
class Asked:
    """A run of a case.

    Attributes:
      case: its name.
      code: fingerprint of what makes it.
      kind: as of `wild_child.Job`.
      steps: of its `fit`.
      budget: bytes, for `planned`.
    """

    case: str
    code: str
    kind: str
    steps: int
    budget: int | None = None


@dataclass(frozen=True)
class Row:
    """What became of it; bytes and seconds, None where there is none.

    Attributes:
      outcome: as of `wild_verdict.judged`.
      reason: the first line of the error.
      phase: where it ended.
      losses: step by step, of a run that is not planned.
      peak: the most that the allocator held in a step; as it is, from the second step on.
      predicted: peak of the plan.
      original: predicted peak without a plan.
      least: the least budget that tfmem named.
      difference: the largest relative one of the losses from those of the case as it is.
      drift: that of the case as it is, rounded otherwise; asked for where `difference` is large.
      planning_seconds: of all plans.
      step_seconds: median.
      replanned: how often a watched step had something done about it.
      noop: why nothing was changed.
      warnings: what tfmem logged besides.
      revision: of the code.
    """

    outcome: str
    reason: str
    phase: str
    losses: list[list[float]] = field(default_factory=list)
    peak: int | None = None
    predicted: int | None = None
    original: int | None = None
    least: int | None = None
    difference: float | None = None
    drift: float | None = None
    planning_seconds: float = 0.0
    step_seconds: float | None = None
    replanned: int = 0
    noop: str = ""
    warnings: list[str] = field(default_factory=list)
    revision: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the budget is less than what tfmem can reach."""
        return self.outcome == "refused" and self.least is not None


class _Unknown(Exception):
    """A row does not stand in the file."""


class Families:
    """Rows of cases, from the file or made now."""

    def __init__(
        self, path: Path, shares: Sequence[float], steps: int, patience: float | None
    ) -> None:
        """Takes the file, shares of plain's peak, and steps of a `fit`.

        `patience` are the seconds without a word after which it has hung; without nothing is made.
        """
        self._book = Book(path, self._made, Row)
        self._path, self._shares, self._steps, self._patience = path, shares, steps, patience

    @property
    def seconds(self) -> float:
        """What all rows asked for so far took."""
        return self._book.spent

    def examine(self, case: Case) -> Iterator[tuple[str, Asked, Row]]:
        """Every row of a case, with the share of plain's peak, ``plain`` or ``least``."""
        plain = self._row("plain", case)
        yield "plain", *plain
        peak = plain[1].peak
        if plain[1].outcome != "trained" or peak is None:
            return
        rows = []
        for share in self._shares:
            asked, row = self._row("planned", case, whole_mib(share * peak))
            rows.append(row)
            yield f"{share:g}", asked, row
        if any(row.outcome == "no room to build" for row in rows):
            rows.append(self._row("least", case)[1])
        leasts = [row.least for row in rows if row.least is not None]
        tried = 0
        for _ in range(_TRIES if leasts else 0):
            budget = whole_mib(LEAST_FACTOR * max(leasts))
            if budget <= tried:
                break
            asked, row = self._row("planned", case, budget)
            yield "least", asked, row
            if not row.is_refused:
                break
            leasts.append(row.least)
            tried = budget

    def known(self, case: Case) -> list[tuple[str, Asked, Row]]:
        """Those rows of a case that stand in the file; the rest is not made."""
        found = []
        with contextlib.suppress(_Unknown):
            for one in Families(self._path, self._shares, self._steps, patience=None).examine(case):
                found.append(one)
        return found

    def _row(self, kind: str, case: Case, budget: int | None = None) -> tuple[Asked, Row]:
        asked = Asked(case.name, case.code, kind, self._steps, budget)
        return asked, self._book(asked)

    def _made(self, asked: Asked) -> Row:
        if self._patience is None:
            raise _Unknown
        case, budget = find(asked.case), asked.budget
        limit = budget // MIB if budget else None
        job = Job(case.name, asked.kind, asked.steps, "", budget, claims=budget is not None)
        log = LOGS / f"{case.name}-{limit or 0}-{asked.kind}.log"
        events = observed(case, job, limit, log, self._patience, threading.Event())
        plain = self._losses("plain", case) if budget else None
        found = judged(events, budget, plain, lambda: self._losses("rounding", case))

        def plainly() -> Events:
            other = replace(job, kind="plain")
            place = log.with_suffix(".plain.log")
            return observed(case, other, limit, place, self._patience, threading.Event())

        found = or_of_tensorflow(found, events, plainly)
        names = {one.name for one in dataclasses.fields(Row)}
        known = {name: value for name, value in found.items() if name in names}
        return Row(**known, revision=revision())

    def _losses(self, kind: str, case: Case) -> dict[str, Any]:
        return {"losses": self._row(kind, case)[1].losses}


def main(arguments: Sequence[str]) -> None:
    """Makes the rows and the page."""
    options = _parser().parse_args(arguments)
    shares = [float(share) for share in options.shares.split(",")]
    families = Families(Path(options.rows), shares, options.steps, options.patience)
    beginnings = tuple(options.cases.split(","))
    for case in cases([GROUPS[name] for name in options.only.split(",")]).values():
        if options.page_only or not case.name.startswith(beginnings):
            continue
        for share, asked, row in families.examine(case):
            print(_line(share, asked, row), f"{families.seconds:.0f} s so far", flush=True)
        _write_page(families, Path(options.page))
    _write_page(families, Path(options.page))


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m models.bench.families", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of cases: %(default)s")
    parser.add_argument("--cases", default="", help="beginnings of names")
    parser.add_argument("--shares", default="0.8,0.6", help="of plain's peak: %(default)s")
    parser.add_argument("--rows", default="out/families.jsonl", help="where rows are kept")
    parser.add_argument("--page", default="docs/measured/families.md", help="where it is written")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--steps", type=int, default=4, help="of each fit")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds without a word")
    return parser


def _write_page(families: Families, path: Path) -> None:
    """The page of all groups, of the rows that there are."""

    def rows(case: Case) -> list[tuple[str, int | None, dict[str, Any]]]:
        found = families.known(case)
        return [(share, asked.budget, dataclasses.asdict(row)) for share, asked, row in found]

    groups = {
        group: {one.name: found for one in cases([module]).values() if (found := rows(one))}
        for group, module in GROUPS.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(families_page.page(groups), encoding="utf-8")


def _line(share: str, asked: Asked, row: Row) -> str:
    difference = row.difference if row.peak else None
    return (
        f"{asked.case:36} {share:5} {row.outcome}: budget {show_bytes(asked.budget)}, peak "
        f"{show_bytes(row.peak)}, losses {show_difference(difference)}, planned in "
        f"{row.planning_seconds:.1f} s; {row.reason[:160]}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
