"""The core of the suite with each Python and TensorFlow that tfmem is meant for.

    python -m tests.versions [--only=3.11:2.16,3.13:2.21]

Each combination is installed into a virtual environment of its own, which is deleted afterwards;
pip takes the newest Keras and NumPy that fit. What was found is kept in
docs/measured/versions.jsonl, and versions.md beside it is written anew after each combination.

It runs on any Python of the list with nothing installed.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "measured" / "versions.md"
KEPT = PAGE.with_suffix(".jsonl")
LOGS = ROOT / "out"

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TENSORFLOWS = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")

CORE = (
    # Where private names of TensorFlow are used, and what is stated of its kernels.
    "tests/test_architecture.py",
    "tests/bridge/test_capture.py",
    "tests/graph/test_ops.py",
    "tests/bridge/test_reads.py",
    "tests/bridge/test_rebuild.py",
    "tests/bridge/test_sums.py",
    "tests/runtime/test_memory.py",
    "tests/costs/test_history.py",
    "tests/runtime/test_variables.py",
    "tests/test_keras.py",
    "tests/test_api.py",
    # The planner.
    "tests/simulation/test_allocator.py",
    "tests/costs/test_costs.py",
    "tests/simulation/test_liveness.py",
    "tests/passes/test_passes.py",
    "tests/planning/test_published.py",
    "tests/planning/test_bodies.py::test_a_step_within_a_body_is_equal_in_less_memory[in_a_branch]",
)
"""Every module that uses private names of TensorFlow, and the planner, in three minutes."""

LEFT_OUT = (
    "tests/test_keras.py::test_a_budget_changes_no_number",
    "tests/test_keras.py::test_a_limit_that_ends_plain_training_is_kept",
    "tests/runtime/test_memory.py::test_a_device_that_is_nearly_full_is_probed_with_less",
    "tests/runtime/test_memory.py::test_reserving_lets_the_whole_limit_be_had_in_one_piece",
    "tests/runtime/test_memory.py::test_running_out_of_memory_is_an_outcome",
    "tests/costs/test_history.py::test_a_foreign_or_damaged_profile_is_reported_and_not_used",
    "tests/runtime/test_variables.py::test_a_move_of_which_one_group_fails_moves_no_group",
    "tests/runtime/test_variables.py::test_a_move_that_the_host_cannot_take_moves_nothing",
    "tests/runtime/test_variables.py::test_a_move_to_a_dead_host_moves_nothing",
)
"""Those of the core that take longest, of what the others ask as well."""

SIDE_BY_SIDE = 2
"""Combinations at a time, each in one process: pip and the longest test then keep no core idle."""

ONE_AT_A_TIME = threading.Lock()
"""Held while tfmem is installed: pip writes its metadata beside the sources."""

_TOOLS = ("pytest", "hypothesis", "networkx", "absl-py")
"""What the core imports beside tfmem and tf-keras."""
_SHOWN = ("tensorflow", "keras", "tf-keras", "numpy")
_LONGEST = 1800.0
"""Seconds after which a run of the tests is given up."""


def main(arguments: Sequence[str]) -> int:
    """Runs the combinations that are asked for; returns 1 if a test failed in one of them."""
    combinations = [":".join(pair) for pair in itertools.product(PYTHONS, TENSORFLOWS)]
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("--only", help="combinations of Python and TensorFlow, with commas between")
    chosen = parser.parse_args(arguments).only
    asked = chosen.split(",") if chosen else combinations
    if unknown := sorted(set(asked) - set(combinations)):
        parser.error(f"{', '.join(unknown)} is none of {', '.join(combinations)}")
    paths = {name.partition("::")[0] for name in (*CORE, *LEFT_OUT)}
    if missing := sorted(path for path in paths if not (ROOT / path).exists()):
        parser.error(f"the core of the suite names what is not there: {', '.join(missing)}")

    os.nice(5)  # hours of work that nobody waits for
    LOGS.mkdir(exist_ok=True)
    rows = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for done in as_completed([pool.submit(examined, combination) for combination in asked]):
            rows.append(done.result())
            keep(rows[-1])
            print(line(rows[-1]), flush=True)  # noqa: T201 - a script tells its rows as they come
    return int(any(row.get("failed") for row in rows))


# One combination.


def examined(combination: str) -> dict[str, Any]:
    """Installs a combination and runs the tests: a row of the table."""
    python, tensorflow = combination.split(":")
    row: dict[str, Any] = {
        "combination": combination,
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
    }
    if (interpreter := interpreter_of(python)) is None:
        return row | {"reason": f"there is no Python {python} on this machine"}
    base = Path(os.environ.get("VERSIONS_ENVS") or ROOT / "out" / "versions")
    folder = base / f"{python}-{tensorflow}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        own = str(folder / "bin" / "python")
        with ONE_AT_A_TIME:
            reason = install(own, tensorflow)
        if reason:
            return row | {"reason": reason}
        return row | installed(own) | tested(own, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interpreter_of(python: str) -> str | None:
    """Path of an interpreter of this version, from PATH or from pyenv; None if there is none.

    A shim of pyenv may stand on PATH for a version that is not switched on.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{python}")]
    found += sorted(map(str, pyenv.glob(f"{python}.*/bin/python{python}")), reverse=True)
    for path in filter(None, found):
        said = subprocess.run([path, "--version"], capture_output=True, text=True)
        if said.stdout.startswith(f"Python {python}."):
            return path
    return None


def install(python: str, tensorflow: str) -> str:
    """Installs tfmem with a TensorFlow; returns why pip could not, "" if it could."""
    wanted = [f"{name}=={tensorflow}.*" for name in ("tensorflow", "tf-keras")]
    command = [python, "-m", "pip", "install", "--quiet", "--editable", str(ROOT), *wanted, *_TOOLS]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    errors = [text for text in done.stderr.splitlines() if text.startswith("ERROR:")]
    said = errors[0].removeprefix("ERROR: ") if errors else f"pip ended with {done.returncode}"
    return said.partition(" (from versions:")[0]


def installed(python: str) -> dict[str, Any]:
    """Versions of Python and of the packages that matter."""
    command = [python, "-m", "pip", "list", "--format=json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found = {package["name"].replace("_", "-"): package["version"] for package in listed}
    version = subprocess.run([python, "--version"], capture_output=True, text=True).stdout
    return {"python": version.split()[1], **{name: found.get(name) for name in _SHOWN}}


def tested(python: str, folder: Path) -> dict[str, Any]:
    """Runs the core of the suite: counts, seconds, and the tests that failed."""
    results = folder / "results.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=25"]
    command += [f"--junitxml={results}", *CORE]
    command += [f"--deselect={name}" for name in LEFT_OUT]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    started = time.perf_counter()
    with (LOGS / f"versions-{folder.name}.txt").open("w", encoding="utf-8") as log:
        try:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired:
            return {"failed": 1, "reason": f"the tests took more than {_LONGEST:.0f} s"}
    seconds = round(time.perf_counter() - started)
    if not results.exists():
        return {"failed": 1, "reason": f"pytest ended without results, see {log.name}"}

    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    failures = []
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = _outcome(case)
        counts[outcome] += 1
        if outcome == "failed":
            failures.append(f"{case.get('classname')}::{case.get('name')}")
    return {**counts, "seconds": seconds, "failures": failures}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def revision() -> str:
    """Short hash of the state of the code, with a plus where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    named = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "tfmem", "tests", "models"])
    return named.stdout.strip() + ("+" if changed.returncode else "")


# The table.


def keep(row: dict[str, Any]) -> None:
    """Puts a row in the place of the earlier one of its combination, and writes the page."""
    rows = {one["combination"]: one for one in [*_kept(), row]}
    ordered = [
        rows[name]
        for name in map(":".join, itertools.product(PYTHONS, TENSORFLOWS))
        if name in rows
    ]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text("".join(json.dumps(one) + "\n" for one in ordered), encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def _kept() -> list[dict[str, Any]]:
    if not KEPT.exists():
        return []
    return [json.loads(text) for text in KEPT.read_text(encoding="utf-8").splitlines()]


def page(rows: Iterable[dict[str, Any]]) -> str:
    """The page of the table, in Markdown."""
    rows = list(rows)
    columns = ["Python", "TensorFlow", "Keras", "tf-keras", "NumPy"]
    columns += ["passed", "failed", "skipped", "seconds", "date", "revision"]
    lines = [
        "# Versions",
        "",
        f"Written by `make versions` on {max(row['date'] for row in rows)}. Each row is a fresh "
        "environment, in which pip chose what the row does not fix, and a run of these tests, two "
        "environments at a time:",
        "",
        f"`{' '.join(CORE)}`, without `{' '.join(LEFT_OUT)}`",
        "",
        "Before 2.19 tf-keras makes no layer on Python 3.12 (it asks `random.randint` for a "
        "float), so tfmem asks for 2.19 there. A plus after a revision says that files differed.",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *map(line, rows),
    ]
    failures = [(row["combination"], name) for row in rows for name in row.get("failures", ())]
    if failures:
        lines += ["", "What failed:", ""]
        lines += [f"- {combination}: `{name}`" for combination, name in failures]
    return "\n".join(lines) + "\n"


def line(row: dict[str, Any]) -> str:
    """A row of the table; of one that could not run, the reason in the place of the counts."""
    python, tensorflow = row["combination"].split(":")
    cells = [row.get("python") or python, row.get("tensorflow") or tensorflow]
    cells += [row.get(name) or "" for name in ("keras", "tf-keras", "numpy")]
    if "reason" in row:
        cells += [row["reason"], "", "", ""]
    else:
        cells += [row[name] for name in ("passed", "failed", "skipped", "seconds")]
    return f"| {' | '.join(map(str, (*cells, row['date'], row['revision'])))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
