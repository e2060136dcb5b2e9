"""Rows that are kept as they are made: an interrupted benchmark goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

import tfmem
from models.train import Row, Setting


class Book:
    """Runs settings, each once: what stands in its file is not run again.

    A line of the file is a JSON object: `asked`, the setting and the versions it ran with, and
    `row`. A line that was cut off is left out, and run again.
    """

    def __init__(self, path: Path, run: Callable[[Setting], Row]) -> None:
        self.path, self.run = path, run
        self.rows: dict[str, Row] = {}
        self.made = 0
        if path.exists():
            text = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith("\n"):
                path.write_text(text + "\n", encoding="utf-8")

    def __call__(self, setting: Setting) -> Row:
        """The row of a setting."""
        versions = {"tensorflow": tf.__version__, "tfmem": tfmem.__version__}
        asked = dataclasses.asdict(setting) | versions
        key = json.dumps(asked, sort_keys=True)
        if key not in self.rows:
            row = self.rows[key] = self.run(setting)
            self.made += 1
            line = json.dumps({"asked": asked, "row": dataclasses.asdict(row)}, sort_keys=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return self.rows[key]

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            return
        self.rows[json.dumps(entry["asked"], sort_keys=True)] = Row(**entry["row"])
