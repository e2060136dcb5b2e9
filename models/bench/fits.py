"""The same `fit` with and without `MemoryBudget`, under a limit that ends the plain one.

python -m models.bench.fits --library=keras,tf_keras --rows=out/fits.jsonl

For each kind of `fit` in `fit_cases` three processes: plain with plenty of memory, plain under a
hard limit below its peak, and with the callback under that limit. Rows that the file of `--rows`
has already are not run again. With `--gpu` on GPU:0, whose limit it is then.
"""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

import tfmem.keras
from models.bench.book import Book
from models.bench.fit_cases import CASES, Fitted, difference, fitted
from models.bench.table import markdown, show_bytes, show_difference
from tfmem.runtime import devices, memory
from tfmem.runtime.limited import Outcome, run_limited

flags.DEFINE_list("library", "keras,tf_keras", "Whose models.")
flags.DEFINE_list("cases", None, "Kinds of fit, by name; all by default.")
flags.DEFINE_string("rows", "out/fits.jsonl", "Where rows are kept.")
flags.DEFINE_boolean("gpu", False, "Train on GPU:0, not on the CPU.")

_PLENTY = 4 * 2**30
_TIMEOUT = 400.0
_SHARES = (0.65, 0.5, 0.4, 0.3)
"""Limits over the plain peak, tried from the first on until one ends the plain fit."""

_BUDGET = 0.95
"""The budget over the limit: on a CPU the buffers of tf.data live in the same memory."""


@dataclass(frozen=True)
class Asked:
    """A kind of `fit`, by name, the library, ``keras`` or ``tf_keras``, and whether on a GPU."""

    library: str
    case: str
    gpu: bool = False


@dataclass(frozen=True)
class Row:
    """What was seen of a kind of `fit`.

    Attributes:
      plain_peak: bytes, with plenty of memory.
      limit: bytes that the device had in the other two runs.
      plain: what became of the plain fit under the limit: `tfmem.limited.Outcome.status`.
      planned: what became of the fit with the callback.
      planned_peak: bytes; None if it did not train.
      difference: the largest relative one of any number of the history and of any weight.
      is_equal: whether the difference is within the case's tolerance.
      error: the planned fit's.
    """

    plain_peak: int
    limit: int
    plain: str
    planned: str
    planned_peak: int | None = None
    difference: float | None = None
    is_equal: bool = False
    error: str = ""


def train(library: str, name: str, is_planned: bool, budget: int, file: str) -> Any:
    """In a process of its own: the history and the peak; the weights are left in a file."""
    case = CASES[name]
    _spread(case.devices)
    keras = importlib.import_module(library)
    callback = tfmem.keras.MemoryBudget(budget, **case.options) if is_planned else None
    done = fitted(keras, case, callback)
    np.savez(file, *done.weights)
    _, peak = memory.memory_info(devices.scarce())  # since the last evaluation
    return {
        "history": done.history,
        "peak": max([peak, *done.history.get("tfmem/peak_bytes", ())]),
        "is_planned": bool(callback) and not all(plan.is_noop for plan in callback.plans),
    }


def _spread(count: int) -> None:
    """Makes logical devices of the one whose memory is scarce, which share its limit."""
    gpus = tf.config.list_physical_devices("GPU")
    one = gpus[0] if gpus else tf.config.list_physical_devices("CPU")[0]
    known = tf.config.get_logical_device_configuration(one)
    limit = known[0].memory_limit / count if known else None
    part = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
    tf.config.set_logical_device_configuration(one, [part] * count)


def compared(asked: Asked) -> Row:
    """Runs a kind of `fit` in all three ways."""
    case = CASES[asked.case]
    with tempfile.TemporaryDirectory() as folder:

        def run(kind: str, limit: int) -> Outcome:
            is_planned = kind == "planned"
            budget = int(_BUDGET * limit / case.devices)
            arguments = (asked.library, asked.case, is_planned, budget, f"{folder}/{kind}.npz")
            return run_limited(
                "models.bench.fits:train",
                *arguments,
                limit_bytes=limit,
                timeout=_TIMEOUT,
                gpu=asked.gpu,
            )

        def result(kind: str, outcome: Outcome) -> Fitted:
            with np.load(f"{folder}/{kind}.npz") as weights:
                return Fitted(None, list(weights.values()), outcome.result["history"])

        free = run("free", _PLENTY)
        if free.status != "ok":
            raise RuntimeError(f"{asked}: {free.error}\n{free.output}")
        peak = free.result["peak"]
        tried = (run("plain", int(share * peak)) for share in _SHARES)
        plain = next((outcome for outcome in tried if outcome.status != "ok"), free)
        planned = run("planned", plain.limit_bytes)
        row = Row(peak, plain.limit_bytes, plain.status, planned.status)
        if planned.status != "ok":
            return dataclasses.replace(row, error=planned.error or planned.output[-1000:])
        if not planned.result["is_planned"]:
            return dataclasses.replace(row, error="nothing was planned")
        apart = difference(result("free", free), result("planned", planned))
        return dataclasses.replace(
            row,
            planned_peak=planned.result["peak"],
            difference=apart,
            is_equal=apart <= case.tolerance,
        )


def main(argv: list[str]) -> None:
    """Prints a table of all rows."""
    del argv
    values = flags.FLAGS
    book = Book(Path(values.rows), compared, Row)
    lines = []
    for library in values.library:
        for case in values.cases or CASES:
            row = book(Asked(library, case, values.gpu))
            lines.append([case, library, *_cells(row)])
            print(f"{library}, {case}: {_said(row)}, {book.spent:.0f} s so far", flush=True)
    print(markdown(_HEADER, lines))


_HEADER = ["fit", "library", "plain peak", "limit", "plain", "with the callback", "difference"]


def _said(row: Row) -> str:
    return row.error.splitlines()[0] if row.error else ("equal" if row.is_equal else "NOT EQUAL")


def _cells(row: Row) -> list[str]:
    kept = show_bytes(row.planned_peak) if row.planned == "ok" else row.planned
    return [
        show_bytes(row.plain_peak), show_bytes(row.limit), row.plain.replace("_", " "), kept,
        show_difference(row.difference),
    ]  # fmt: skip


if __name__ == "__main__":
    app.run(main)
