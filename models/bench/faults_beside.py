"""What others do while functions are planned and make steps: threads, forks, disks, processes.

Each function makes its own small model; `tfmem` is to change no number, lose no update, and hang
nowhere.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import tfmem
from models.bench.train import limit_memory
from tfmem.costs import store
from tfmem.errors import Error
from tfmem.functions import decide

WIDTH, LAYERS, ROWS = 64, 4, (32, 48, 64, 96)

PATIENCE = 10.0
"""Seconds that a fork has until it is held to hang."""


def updates(times: int) -> dict[str, int]:
    """What becomes of updates by another thread beside `plan`, `explain` and `report`.

    Returns:
      Of `assign_add(1)` how many there were ("updates") and how many were lost, and how often a
      function was planned, explained and reported meanwhile ("calls").
    """
    model = Model()
    made = calls = 0
    is_over = threading.Event()

    def update() -> None:
        nonlocal made
        while not (is_over.is_set() and made >= times):
            model.weights[made % LAYERS].assign_add(tf.ones([WIDTH, WIDTH]))
            made += 1
            time.sleep(1e-2)  # or planning would see but a few of them

    begin = tf.zeros([WIDTH, WIDTH])  # one buffer for all
    for weight in model.weights:
        weight.assign(begin)
    thread = threading.Thread(target=update)
    thread.start()
    while made < times:
        optimized = tfmem.optimize(model.step, budget="20MB", host="")
        for call in (optimized.plan, optimized.explain, optimized.report):
            call(inputs(ROWS[0]))
            calls += 1
    is_over.set()
    thread.join()
    found = sum(float(weight.numpy().min()) for weight in model.weights)
    return {"updates": made, "lost": made - round(found), "calls": calls}


def caches(processes: int = 2) -> dict[str, str]:
    """What is wrong where plans cannot be kept, or several processes keep them at once.

    Args:
      processes: how many; 0 leaves that out.

    Returns:
      Of each that was done "" if losses are those of plain TensorFlow and what went wrong was told.
    """
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="tfmem-faults-") as name:
        folder = Path(name)
        step = tf.function(Model().step)
        plain = [float(step(inputs(ROWS[0]))) for _ in range(3)]
        (folder / "file").write_text("", encoding="utf-8")
        losses, said = kept(folder / "file")
        found["a file in the folder's place"] = _wrong(losses == plain, "cannot be kept" in said)
        with mock.patch.object(Path, "write_bytes", _write_half):
            losses, said = kept(folder / "full")
        left = [one for one in (folder / "full").rglob("*") if one.is_file()]
        is_told = "No space left" in said and not left
        found["a disk that is full"] = _wrong(losses == plain, is_told)
        losses, said = kept(folder / "full")
        found["and has room again"] = _wrong(losses == plain, "cannot be kept" not in said)
        if processes:
            found[f"{processes} processes"] = _by_many(processes, folder / "many", plain)
    return found


def _by_many(processes: int, folder: Path, plain: list[float]) -> str:
    run = [sys.executable, "-m", "models.bench.faults_beside", str(folder)]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    first = [json.loads(process.communicate()[0]) for process in started]
    last = json.loads(subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout)
    are_same = all(losses == plain for losses, _ in (*first, last))
    is_bad = any("damaged" in said or "cannot" in said for _, said in (*first, last))
    return _wrong(are_same, "the plan is taken from" in last[1] and not is_bad)


def _wrong(is_same: bool, is_told: bool = True) -> str:
    return "" if is_same and is_told else "other numbers" if not is_same else "not told"


def _write_half(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kept(cache: Path) -> tuple[list[float], str]:
    """Losses of steps whose plan is kept in a folder, or found there, and what was logged."""
    written, log = io.StringIO(), logging.getLogger("tfmem")
    handler, level = logging.StreamHandler(written), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with (
            mock.patch.dict(os.environ, {store.DIRECTORY: str(cache)}),
            mock.patch.object(decide, "_SLOW", 0.0),
        ):
            step = Model().optimized()
            losses = [float(step(inputs(ROWS[0]))) for _ in range(3)]
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
    return losses, written.getvalue()


def forks() -> dict[str, str]:
    """What a fork of this process says of a function that this one has optimised and called.

    Returns:
      Of each call what it raised, or "works", or "hangs".
    """
    model = Model()
    optimized = model.optimized()
    x, larger = inputs(ROWS[0]), inputs(ROWS[1])
    optimized(x)
    calls: dict[str, Callable[[], Any]] = {
        "the same shape": lambda: optimized(x),
        "another shape": lambda: optimized(larger),
        "plan": lambda: model.optimized().plan(x),
        "explain": lambda: tfmem.explain(model.step, x),
        "restore_variables": optimized.restore_variables,
        "host_process": tfmem.host_process().__enter__,
    }
    found = {name: _in_a_fork(call) for name, call in calls.items()}
    optimized(x)  # the fork has taken nothing away
    return found


def _in_a_fork(call: Callable[[], Any]) -> str:
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            call()
            said = "works"
        except Exception as error:
            said = f"{'' if isinstance(error, Error) else 'bare '}{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    deadline = time.monotonic() + PATIENCE
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs"
        time.sleep(0.01)
    with os.fdopen(reads, "rb") as told_by:
        return told_by.read().decode()


def threads(times: int, shapes: int = len(ROWS)) -> dict[str, int]:
    """One function that threads call with several shapes while others train another one.

    Args:
      times: how many calls each of four threads makes.
      shapes: how many there are.

    Returns:
      How many results there were ("results"), and how many differ from plain TensorFlow's.
    """
    scored, alone, trained = Model(), Model(), Model()
    plain = tf.function(scored.score)
    expected = {rows: plain(inputs(rows)).numpy() for rows in ROWS[:shapes]}
    train = tf.function(alone.step)
    losses = [float(train(inputs(ROWS[0]))) for _ in range(times)]
    score, step = tfmem.optimize(scored.score, budget="20MB", host=""), trained.optimized()
    found: list[bool] = []

    def scores(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(times):
            rows = order.choice(ROWS[:shapes])
            found.append(np.array_equal(score(inputs(rows)).numpy(), expected[rows]))

    def trains() -> None:
        found.extend(float(step(inputs(ROWS[0]))) == loss for loss in losses)

    started = [threading.Thread(target=scores, args=(seed,)) for seed in range(3)]
    started.append(threading.Thread(target=trains))
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return {"results": 4 * times, "different": 4 * times - sum(found)}


class Model:
    """A chain of dense layers, with what scores and trains it."""

    def __init__(self) -> None:
        self.weights = [
            tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], seed=[i, 7]) * 0.1)
            for i in range(LAYERS)
        ]

    def score(self, x: Any) -> Any:
        """A number for each row."""
        for weight in self.weights:
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x, axis=1)

    def step(self, x: Any) -> Any:
        """The loss before a step of gradient descent."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.score(x) ** 2)
        for weight, slope in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(0.1 * slope)
        return loss

    def optimized(self) -> tfmem.Optimized:
        """The step in an order of tfmem's, where the device has no limit."""
        return tfmem.optimize(self.step, techniques=("order",), profile="static")


def inputs(rows: int) -> Any:
    """A batch of so many rows, always the same."""
    return tf.random.stateless_normal([rows, WIDTH], seed=[rows, 3])


if __name__ == "__main__":
    limit_memory(None)
    print(json.dumps(kept(Path(sys.argv[1]))))
