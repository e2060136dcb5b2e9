"""The wild suite: train steps of other libraries and styles, under budgets that are hard limits.

    python -m models.bench.wild [--only=PREFIX,...] [--modes=region,growing]
        [--shares=0.8,0.6,0.45,least] [--steps=60] [--again] [--jobs=1] [--gpu] [--list]

Each case runs as it is first, without a limit: its peak and its losses. Then tfmem is asked for the
least budget, and the case runs under each share of that peak, and under 1.05 times the least budget
(`least`; `least*1.2` for another factor), as the hard limit of a process of its own: with the
allocator's memory claimed as one region, and growing by regions. The share `tightest` looks for the
least budget that is kept, below those that are known to be, and each that it tries has its row;
`kept*1.02` is 1.02 times the least one that is known to be.

Rows are kept, as JSON lines, beside the page that is written anew after each of them; those of
processors without oneDNN's kernels (decision 0089), and of GPUs, have pages of their own. A row is
measured again if the sources of tfmem, or of its case, are others than it was made with; or by
`--again`. To try something without touching the page: `--rows=FILE`. What a process wrote is in
out/wild/CASE-MIB-MODE.log, of one that fell silent where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from models.bench import wild_page
from models.bench.wild_book import Book
from models.bench.wild_cases import CORE, Case, cases
from models.bench.wild_child import Job
from models.bench.wild_verdict import Events, judged, or_of_tensorflow
from tfmem.bridge import kernels
from tfmem.runtime.memory import MIB

ROOT = Path(__file__).parent.parent.parent
KERNELS = "oneDNN's" if kernels.onednn_types() else "TensorFlow's own"
"""Whose kernels run on this machine's processor: what steps take depends on it."""
ROWS = ROOT / "docs" / "measured" / f"wild{'' if kernels.onednn_types() else '_own_kernels'}.jsonl"
LOGS = ROOT / "out" / "wild"
GPU_ROWS = ROWS.with_name("wild_gpu.jsonl")

MODES, GPU_MODE = ("region", "growing"), "gpu"
SHARES = ("0.8", "0.6", "0.45", "least")
LEAST_FACTOR = 1.05
_BELOW, _CLOSE = 0.75, 1.015
"""The search for the tightest budget begins with a part of the least that tfmem names, and ends
where what is kept is so much more than what is not."""

_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that no failure raises: somebody ends the suite."""

_LONGEST = 1800.0
"""Seconds after which a process is ended, even if it goes on telling."""


def main(arguments: Sequence[str]) -> int:
    """The command; returns 0 whatever became of the cases, for that is what the page tells."""
    options = _parser().parse_args(arguments)
    if options.gpu:
        options.modes = GPU_MODE
    options.rows = options.rows or str(GPU_ROWS if options.gpu else ROWS)
    chosen = _chosen(options.only)
    if not chosen:
        print(f"no case begins with {options.only}; --list shows them")
        return 2
    if options.list:
        print("\n".join(f"{one.name:40} {one.library}" for one in chosen))
        return 0
    suite = Suite(Book(Path(options.rows)), options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for done in [pool.submit(suite.examine, one) for one in chosen]:
                done.result()
        except KeyboardInterrupt:
            suite.is_stopped.set()
            pool.shutdown(cancel_futures=True)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m models.bench.wild", description=__doc__, formatter_class=formatter
    )
    parser.add_argument(
        "--only", default="", help="beginnings of names, or core: some of each kind"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="of: %(default)s")
    parser.add_argument("--shares", default=",".join(SHARES), help="of plain's peak: %(default)s")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--again", action="store_true", help="also what was measured already")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--list", action="store_true", help="names of the cases, nothing else")
    parser.add_argument("--rows", help="where rows are kept; the page beside it")
    parser.add_argument("--gpu", action="store_true", help="on GPU:0, whose memory is limited then")
    parser.add_argument("--room", type=float, default=1.0, help="the hard limit over the budget")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds without a word")
    return parser


def _chosen(only: str) -> list[Case]:
    beginnings = tuple(filter(None, only.split(","))) or ("",)
    chosen = [one for name, one in cases().items() if name.startswith(beginnings)]
    if "core" in beginnings:
        chosen += [cases()[name] for name in CORE]
    return list(dict.fromkeys(chosen))


# One case.


class Suite:
    """Examines cases with the options of the command; what is known already is not asked again."""

    def __init__(self, book: Book, options: argparse.Namespace) -> None:
        self._book, self._options = book, options
        self.is_stopped = threading.Event()

    def examine(self, case: Case) -> None:
        """Makes every row of a case that is asked for."""
        plain = self._row(case, "plain", "plain")
        if plain["outcome"] != "trained":
            return
        for share in filter(None, self._options.shares.split(",")):
            if share == wild_page.TIGHTEST:
                for mode in self._options.modes.split(","):
                    self._look_for_tightest(case, plain, mode)
                continue
            for mode in self._options.modes.split(","):
                budget = self._budget(case, plain, share, mode)
                if budget is not None:
                    self._row(case, "planned", mode, share, budget, plain)

    def _budget(self, case: Case, plain: dict[str, Any], share: str, mode: str) -> int | None:
        """Bytes, whole MiB; None for a share of a least budget that nobody knows."""
        of, _, factor = share.partition("*")
        if of not in ("least", wild_page.KEPT):
            return whole_mib(float(share) * plain["peak"])
        if of == "least":
            least = self._row(case, "least", "least")["least"]
        else:
            least = self._book.least_kept(case.name, mode)
        return None if least is None else whole_mib(float(factor or LEAST_FACTOR) * least)

    def _look_for_tightest(self, case: Case, plain: dict[str, Any], mode: str) -> None:
        """Bisects for the least budget that is kept; each budget that is tried has its row."""
        least = self._row(case, "least", "least")["least"]
        if least is None:
            return
        low, high = _BELOW * least, self._book.least_kept(case.name, mode) or plain["peak"]
        while high > _CLOSE * low and (budget := whole_mib(math.sqrt(low * high))) < high:
            share = f"{wild_page.TIGHTEST} {budget // MIB}"
            if self._row(case, "planned", mode, share, budget, plain)["outcome"] == "kept":
                high = budget
            else:
                low = budget

    def _row(
        self,
        case: Case,
        kind: str,
        mode: str,
        share: str = "",
        budget: int | None = None,
        plain: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The row that is kept, if it is of this code, or a new one."""
        of_tfmem = kind in ("planned", "least")
        asked = {
            "case": case.name,
            "share": share,
            "mode": mode,
            "room": self._options.room if budget else 1.0,
            "budget": budget,
            "steps": self._options.steps,
            "code": f"{case.code} {fingerprint()}" if of_tfmem else case.code,
        }
        known = self._book.find(asked)
        if known is not None and not (self._options.again and of_tfmem):
            return known
        started = time.perf_counter()
        events = self._run(case, kind, mode, budget)
        found = judged(events, budget, plain, lambda: self._row(case, "rounding", "rounding"))
        row = {
            **asked,
            "library": case.library,
            "revision": revision(),
            "date": datetime.date.today().isoformat(),
            "kernels": KERNELS,
            **({"gpu": events.gpu} if self._options.gpu else {}),
            **or_of_tensorflow(found, events, lambda: self._run(case, "plain", mode, budget)),
            "seconds": round(time.perf_counter() - started, 1),
        }
        if kind == "plain":
            row["versions"] = versions(case.library)
        self._book.keep(row)
        print(wild_page.line(row), flush=True)
        return row

    def _run(self, case: Case, kind: str, mode: str, budget: int | None) -> Events:
        """Runs a process and returns what it told."""
        limit = math.ceil(self._options.room * budget / MIB) if budget else None
        job = Job(case.name, kind, self._options.steps, "", budget, claims=mode == "region")
        if mode == GPU_MODE:
            job, limit = replace(job, gpu_mib=limit), None
        part = kind if kind == "plain" else mode
        log = LOGS / f"{case.name}-{budget // MIB if budget else 0}-{part}.log"
        return observed(case, job, limit, log, self._options.patience, self.is_stopped)


def observed(
    case: Case,
    job: Job,
    limit_mib: int | None,
    log: Path,
    patience: float,
    is_stopped: threading.Event,
) -> Events:
    """Runs a job in a process and returns what it told; where it tells that is chosen here.

    Raises:
      KeyboardInterrupt: as of `watched`.
    """
    with tempfile.TemporaryDirectory(prefix="tfmem-wild-") as folder:
        told = Path(folder) / "events.jsonl"
        environment = environment_of(case, limit_mib, folder)
        telling = replace(job, events=str(told))
        ended = watched(telling, environment, log, patience, is_stopped)
        text = told.read_text(encoding="utf-8") if told.exists() else ""
        return Events.parse(text, ended, log.read_text(encoding="utf-8", errors="replace"))


def whole_mib(nbytes: float) -> int:
    """Bytes rounded up to whole MiB, as hard limits are given."""
    return math.ceil(nbytes / MIB) * MIB


def environment_of(case: Case, limit_mib: int | None, folder: str) -> dict[str, str]:
    """Variables of a case's process, whose plans are kept nowhere."""
    variables = {
        **os.environ,
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_USE_LEGACY_KERAS": "1" if case.legacy_keras else "0",
        "KERAS_BACKEND": "tensorflow",
        "KERAS_HOME": folder,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
        "TFMEM_CACHE_DIR": "",
    }
    variables.pop("TF_CPU_BFC_MEM_LIMIT_IN_MB", None)
    if limit_mib is not None:
        variables["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mib)
    return variables


def watched(
    job: Job,
    environment: dict[str, str],
    log: Path,
    patience: float,
    is_stopped: threading.Event,
) -> int | None:
    """Runs a job and returns its exit status; None if it told nothing for `patience` seconds.

    The whole group of processes is ended, those that a case may have started included.

    Raises:
      KeyboardInterrupt: the suite was stopped, or somebody ended the process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "models.bench.wild_child", json.dumps(asdict(job))]
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return _waited(child, Path(job.events), patience, is_stopped)
        finally:
            _end(child)


def _waited(
    child: subprocess.Popen[bytes], told: Path, patience: float, is_stopped: threading.Event
) -> int | None:
    started = heard = time.monotonic()
    size = 0
    while time.monotonic() - heard < patience and time.monotonic() - started < _LONGEST:
        if is_stopped.is_set():
            raise KeyboardInterrupt
        try:
            status = child.wait(0.25)
            if -status in _FROM_OUTSIDE:
                raise KeyboardInterrupt
            return status
        except subprocess.TimeoutExpired:
            now = told.stat().st_size if told.exists() else 0
            if now != size:
                size, heard = now, time.monotonic()
    child.send_signal(signal.SIGUSR1)  # where it is, for the log
    time.sleep(1.0)
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


# What a row is of.


def revision() -> str:
    """Short hash of the state of the code, with a plus where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    named = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "tfmem"])
    return named.stdout.strip() + ("+" if changed.returncode else "")


def fingerprint() -> str:
    """Of the sources of tfmem."""
    whole = hashlib.sha256()
    for path in sorted((ROOT / "tfmem").rglob("*.py")):
        whole.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return whole.hexdigest()[:12]


def versions(library: str) -> dict[str, str]:
    """Versions of TensorFlow and of a case's library, by their names."""
    found = {}
    for name in ("tensorflow", "keras", "tf-keras", library):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
