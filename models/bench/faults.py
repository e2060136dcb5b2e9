"""What breaks beside tfmem: the host process, files that it keeps, other threads, disks and forks.

    python -m models.bench.faults --kinds=host,files,updates,cache

Each is broken many times at random, and what is counted is what should never be: a variable that is
lost, a damaged file that is obeyed, an update that is gone, something that hangs.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from absl import app, flags

from models.bench import faults_beside, faults_files, faults_host
from models.bench.table import table
from models.bench.train import limit_memory
from tfmem.costs import store

SECTIONS = ("host", "files", "updates", "cache")

flags.DEFINE_list("kinds", list(SECTIONS), f"Of {', '.join(SECTIONS)}.")
flags.DEFINE_integer("hosts", 100, "How often the host process is killed, or stopped.")
flags.DEFINE_string("copies", "/dev/shm", "Folder for copies of what the host has; empty: none.")
flags.DEFINE_integer("files", 10_000, "How many files are damaged.")
flags.DEFINE_integer("updates", 1_000, "How many updates another thread makes at least.")
flags.DEFINE_integer("calls", 50, "How many calls each of four threads makes.")


def host_table(found: dict[str, Any]) -> str:
    """What `faults_host.hosts` found."""
    names = faults_host.COUNTS
    rows = [
        [kind, *(_figure(found[kind][name]) for name in names)] for kind in ("killed", "paused")
    ]
    lines = [table(["the host is", *names], rows)]
    lines += [f"{times} times while {phase}" for phase, times in sorted(found["phases"].items())]
    return "\n".join([*lines, *sorted(found["said"])])


def files_table(found: dict[str, dict[str, int]]) -> str:
    """What `faults_files.files` found."""
    names = faults_files.OUTCOMES
    rows = [[kind, *(str(one.get(name, 0)) for name in names)] for kind, one in found.items()]
    return table(["files", *names], rows)


def facts_table(title: str, found: dict[str, Any]) -> str:
    """Facts with their names."""
    return table([title, "found"], [[name, str(fact)[:80] or "ok"] for name, fact in found.items()])


def _figure(number: float) -> str:
    return f"{number:.1f}" if isinstance(number, float) else str(number)


def main(_: list[str]) -> None:
    """Prints the tables."""
    values = flags.FLAGS
    limit_memory(None)
    with tempfile.TemporaryDirectory(prefix="tfmem-faults-") as cache:
        os.environ[store.DIRECTORY] = cache
        if "host" in values.kinds:
            print(
                host_table(faults_host.hosts(values.hosts, copies=values.copies or None)),
                flush=True,
            )
        if "files" in values.kinds:
            print(files_table(faults_files.files(values.files)), flush=True)
        if "updates" in values.kinds:
            print(facts_table("updates", faults_beside.updates(values.updates)), flush=True)
        if "cache" in values.kinds:
            print(facts_table("plans kept", faults_beside.caches()), flush=True)
            print(facts_table("threads", faults_beside.threads(values.calls)), flush=True)
            print(facts_table("in a fork", faults_beside.forks()), flush=True)


if __name__ == "__main__":
    app.run(main)
