"""tfmem is lied to about every size, and trains as if it had not been.

    python -m models.bench.lies                          a table; rows are kept in out/lies.jsonl
    python -m models.bench.lies --only=gpt,two_players   some of the models
    python -m models.bench.lies --page=docs/measured/lies.md

Sizes of tensors, variables and workspaces are 0.8 of what they are (see `lying`), so that plans are
accepted which do not fit: steps run out of memory, are put back and made again under other plans.
Three processes for each model: plain TensorFlow with plenty of memory; tfmem that is not lied to,
whose budget is a part of plain's peak and the hard limit of its device, too; tfmem that is. The
budget is one of which the second needs no more than nine tenths, as a process before it shows. On a
CPU some of oneDNN's kernels crash where their scratch memory finds no room; the last process is
then started again, and finds what the one before it has learned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import app, flags

import tfmem
from models.bench.experiment import load
from models.bench.lying import lied
from models.bench.odd_steps import SEED, STEPS, Odd
from models.bench.smaller import SMALLER
from models.bench.table import markdown, show_bytes, show_difference, stamp, table
from tfmem.runtime import memory
from tfmem.runtime.limited import Outcome, run_limited

flags.DEFINE_list("only", [], "Some of the models; default: all.")
flags.DEFINE_string(
    "rows", "out/lies.jsonl", "Where rows are kept; those there are not made again."
)
flags.DEFINE_string("page", "", "File that takes the table, such as docs/measured/lies.md.")

ZOO: dict[str, dict[str, Any]] = {**SMALLER, "resnet": {"batch": 8, "side": 64}}
"""Models of the zoo, with fields of their small configurations."""

TRUTH, LIE = 1.0, 0.8
STEPS_MADE = 10
_PLENTY, _TIMEOUT = 6 * 2**30, 580.0
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Budgets over plain's peak, tried from the first on until tfmem, not lied to, trains."""

_LESS = 0.9
"""Part of the budget in which tfmem, not lied to, has to train as well: a plan that just fits
leaves nothing to learn with."""

_STARTS = 5
"""Most processes of a run that is lied to."""


def train(name: str, budget: int | None, share: float) -> dict[str, Any]:
    """In a process of its own: what became of training."""
    tf.keras.utils.set_random_seed(SEED)
    odd = STEPS[name]() if name in STEPS else _of_zoo(name)
    with lied(share) if share != TRUTH else contextlib.nullcontext():
        step = odd.function if budget is None else tfmem.optimize(odd.function, budget=budget)
        memory.reset_peak("CPU:0")
        losses = [float(odd.call(step)) for _ in range(STEPS_MADE)]
    peak = memory.memory_info("CPU:0")[1]
    values = b"".join(variable.numpy().tobytes() for variable in odd.variables)
    events: list[str] = []
    if budget is not None:
        events = [event for report in step.reports() for event in report.events]
    digest = hashlib.sha256(values).hexdigest()
    return {"losses": losses, "digest": digest, "peak": peak, "events": events}


def _of_zoo(name: str) -> Odd:
    module = load(name)
    task = module.build(dataclasses.replace(module.CONFIGS["small"], **ZOO[name]))
    batches = iter(task.batches)
    return Odd(tf.function(task.step), lambda step: step(*next(batches)), task.variables)


@dataclasses.dataclass(frozen=True)
class Row:
    """What was seen of a model.

    Attributes:
      name: of the model.
      plain_peak: bytes, with plenty of memory.
      limit: bytes that the device had, and the budget.
      truth: what became of the run that was not lied to: "ok", or what went wrong.
      lie: the same of the other.
      events: what was said of the watched steps of the other.
      truth_events: of the first.
      is_equal: whether losses and variables of both are the same bit for bit.
      difference: how far the losses are from plain TensorFlow's, relatively.
      peak: bytes, of the run that was lied to; the most of all steps, those that failed too.
      crashes: how often a kernel of TensorFlow ended its process.
    """

    name: str
    plain_peak: int
    limit: int
    truth: str
    lie: str
    events: tuple[str, ...] = ()
    truth_events: tuple[str, ...] = ()
    is_equal: bool = False
    difference: float | None = None
    peak: int | None = None
    crashes: int = 0


def row_of(name: str) -> Row:
    """Runs the three processes."""

    def run(limit: int, *args: Any, cache: str = "") -> Outcome:
        return run_limited(
            "models.bench.lies:train",
            name,
            *args,
            limit_bytes=limit,
            timeout=_TIMEOUT,
            reserve=True,
            environment={"TFMEM_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    plain = run(_PLENTY, None, TRUTH)
    if plain.status != "ok":
        return Row(name, 0, 0, _said(plain), "")
    for share in _SHARES:
        limit = int(share * plain.result["peak"] / memory.MIB) * memory.MIB
        less = int(_LESS * limit / memory.MIB) * memory.MIB
        truth = run(less, less, TRUTH)
        if truth.status == "ok":
            truth = run(limit, limit, TRUTH)
        if truth.status == "ok":
            break
    with tempfile.TemporaryDirectory() as cache:
        starts, lie = 1, run(limit, limit, LIE, cache=cache)
        while lie.status == "crashed" and starts < _STARTS:
            starts, lie = starts + 1, run(limit, limit, LIE, cache=cache)
    row = Row(name, plain.result["peak"], limit, _said(truth), _said(lie), crashes=starts - 1)
    if truth.status == lie.status == "ok":
        row = dataclasses.replace(
            row,
            events=tuple(lie.result["events"]),
            truth_events=tuple(truth.result["events"]),
            is_equal=all(truth.result[key] == lie.result[key] for key in ("losses", "digest")),
            difference=_difference(plain.result["losses"], lie.result["losses"]),
            peak=lie.result["peak"],
        )
    return row


def _said(outcome: Outcome) -> str:
    text = " ".join(outcome.error.split())[:300]
    return outcome.status if outcome.status == "ok" else f"{outcome.status}: {text}"


def _difference(plain: list[float], losses: list[float]) -> float:
    largest = max(map(abs, plain))
    return max(abs(a - b) for a, b in zip(plain, losses, strict=True)) / largest


HEADER = (
    "model",
    "plain's peak",
    "budget and limit",
    "out of memory",
    "above the budget",
    "crashed",
    "peak",
    "losses and variables",
    "from plain",
)


def _cells(row: Row) -> list[str]:
    found = [show_bytes(row.plain_peak or None), show_bytes(row.limit or None)]
    if row.truth != "ok" or row.lie != "ok":
        return [row.name, *found, row.truth if row.truth != "ok" else row.lie, *[""] * 5]
    failed = sum("was out of memory" in event for event in row.events)
    above = sum("were in use on" in event for event in row.events)
    same = "equal" if row.is_equal else "DIFFER"
    counts = map(str, (failed, above, row.crashes))
    rest = [show_bytes(row.peak), same, show_difference(row.difference)]
    return [row.name, *found, *counts, *rest]


def page(rows: list[Row]) -> str:
    """The table as a page."""
    kept = sum(row.lie == "ok" and row.is_equal for row in rows)
    return "\n".join(
        [
            "# Lied to about sizes",
            "",
            f"`python -m models.bench.lies`, {stamp()}. {kept} of {len(rows)} models trained under "
            "the hard limit with the losses and the variables, bit for bit, of a run that was not "
            "lied to.",
            "",
            f"Every size is {LIE} of the truth. Budget and hard limit (one region) are the same; "
            f"{_LESS} of them are enough where nobody lies. "
            f"{STEPS_MADE} steps, a new batch each; how many steps ran out of memory or were above "
            "the budget, and had the plan made again; how often a kernel of oneDNN, which does not "
            "look whether its scratch memory was there, ended the process, which was started "
            "again and found what had been learned; the peak of all steps of the last process, "
            "those that failed among them.",
            "",
            markdown(HEADER, [_cells(row) for row in rows]),
            "",
        ]
    )


def _kept(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    made = (Row(**row | {k: tuple(row[k]) for k in ("events", "truth_events")}) for row in rows)
    return {row.name: row for row in made}


def main(_: list[str]) -> None:
    """Makes the rows that are not there, and shows all."""
    path = Path(flags.FLAGS.rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _kept(path)
    for name in flags.FLAGS.only or (*ZOO, *STEPS):
        if name not in rows:
            rows[name] = row_of(name)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(rows[name])) + "\n")
            print("  " + "  ".join(_cells(rows[name])), flush=True)
    print(table(HEADER, [_cells(row) for row in rows.values()]))
    if flags.FLAGS.page:
        Path(flags.FLAGS.page).write_text(page(list(rows.values())), encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
