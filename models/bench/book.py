"""Rows that are kept as they are made: an interrupted benchmark goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import tfmem
from models.bench.experiment import Row


class Book:
    """Runs experiments, or other dataclasses, each once: what stands in its file is not run again.

    A line of the file is a JSON object: `asked`, the experiment and the versions it ran with,
    `row`, and `seconds`, what it took. A line that was cut off, or lacks one of them, is run again.

    Attributes:
      made: how many rows were made, not read.
      kind: the dataclass of the rows.
      spent: seconds that the rows asked for so far took, also those that were made earlier.
    """

    def __init__(self, path: Path, run: Callable[[Any], Any], kind: type = Row) -> None:
        self.path, self.run, self.kind = path, run, kind
        self.rows: dict[str, Any] = {}
        self.made = 0
        self.spent = 0.0
        self._unasked: dict[str, float] = {}
        if path.exists():
            text = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith("\n"):
                path.write_text(text + "\n", encoding="utf-8")

    def __call__(self, experiment: Any) -> Any:
        """The row of an experiment."""
        versions = {"tensorflow": tf.__version__, "tfmem": tfmem.__version__}
        asked = dataclasses.asdict(experiment) | versions
        key = json.dumps(asked, sort_keys=True)
        if key not in self.rows:
            start = time.perf_counter()
            row = self.rows[key] = self.run(experiment)
            seconds = self._unasked[key] = time.perf_counter() - start
            self.made += 1
            entry = {"asked": asked, "row": dataclasses.asdict(row), "seconds": round(seconds, 3)}
            line = json.dumps(entry, sort_keys=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        self.spent += self._unasked.pop(key, 0.0)
        return self.rows[key]

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            asked, row, seconds = entry["asked"], self.kind(**entry["row"]), entry["seconds"]
        except (json.JSONDecodeError, KeyError, TypeError):
            return
        key = json.dumps(asked, sort_keys=True)
        self.rows[key], self._unasked[key] = row, seconds
