"""Rows of the wild suite that are kept in a file, and the page beside it."""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models.bench import wild_page
from models.bench.wild_cases import cases


class Book:
    """Rows in a file, one for each case, share, mode and room; the page is beside it.

    Several cases may write at once. A line that was cut off is measured again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        if path.exists():
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(text)
                except ValueError:
                    continue
                self._rows[_key(row)] = row

    def find(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The row of this setting, if it was made with the same code and no fewer steps."""
        row = self._rows.get(_key(asked))
        if row is None or (row["mode"] == "plain" and row["outcome"] != "trained"):
            return None
        is_same = all(row[name] == asked[name] for name in ("code", "budget"))
        return row if is_same and row["steps"] >= asked["steps"] else None

    def least_kept(self, case: str, mode: str) -> int | None:
        """The least budget of a case that was kept, in bytes, without rows of a factor of it."""
        rows = (row for row in self._rows.values() if row["room"] == 1.0)
        rows = (row for row in rows if not row["share"].startswith(wild_page.KEPT))
        kept = (row for row in rows if (row["case"], row["mode"]) == (case, mode))
        return min((row["budget"] for row in kept if row["outcome"] == "kept"), default=None)

    def keep(self, row: dict[str, Any]) -> None:
        """Puts a row in the place of the earlier one, and writes the page."""
        with self._lock:
            self._rows[_key(row)] = row
            rows = self._ordered()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write(self._path, "".join(json.dumps(one) + "\n" for one in rows))
            _write(self._path.with_suffix(".md"), wild_page.page(rows))

    def _ordered(self) -> Iterable[dict[str, Any]]:
        names = list(cases())
        places = collections.defaultdict(lambda: len(names), {n: i for i, n in enumerate(names)})
        return sorted(
            self._rows.values(),
            key=lambda row: (places[row["case"]], row["share"] == "", row["share"], row["mode"]),
        )


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["case"], row["share"], row["mode"], row["room"]


def _write(path: Path, text: str) -> None:
    """Replaces a file at once, so that one who reads it meanwhile finds it whole."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
