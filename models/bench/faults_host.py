"""The host process is killed, or stopped, at random moments of an optimised function's life.

In each life variables are made, a step is planned, its variables move to the host or its
activations are swapped through it, and steps add one to every element of each variable, so that a
value tells how many steps it has seen, and whether one was cut in two.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

import tfmem
from tfmem.costs import history, store
from tfmem.errors import HostMemoryError
from tfmem.graph import device_names
from tfmem.runtime import host, memory

LAYERS = 6

PATIENCE = 10.0
"""Seconds within which what a step is waiting for has to be an error."""

STEPS, AFTER = 8, 3
"""Steps of a life in which nothing happens, and those after a signal, unless one fails."""


COLD = 5
"""One life of so many begins with nothing known of the machine, which is then probed."""


@dataclass(frozen=True)
class Work:
    """What a function does: the widths of its layers, rows of a batch, and how it is planned.

    The budget is what it may take, in bytes, beside what TensorFlow never freed of lives before.
    """

    width: int
    rows: int
    budget: int
    techniques: tuple[str, ...]


WORKS = (
    Work(512, 512, 14_000_000, ("order", "swap", "place")),
    Work(192, 1024, 5_600_000, ("order", "swap")),
)
"""The first has its variables placed, the second its activations swapped."""


@dataclass
class Life:
    """One function from its making to the end of its host.

    Attributes:
      variables: all of them.
      phase: what was being done when the signal was sent.
      done: steps that have returned.
      seconds: from the signal until something was raised or the life ended.
      said: type and message of what was raised; "" if nothing was.
      is_meant: whether that tells of the host.
      placed: how many variables were on the host when the signal was sent.
      swapped: how many activations the plan swaps.
      lost: how many variables cannot be read, or have a value that no step leaves.
    """

    variables: list[Any] = field(default_factory=list)
    phase: str = "planning"
    done: int = 0
    seconds: float = 0.0
    said: str = ""
    is_meant: bool = True
    placed: int = 0
    swapped: int = 0
    lost: int = 0


COUNTS = ("times", "errors", "bare", "late", "seconds", "placed", "swapped", "lost")
"""What is counted; see `hosts`."""


def hosts(
    times: int,
    seed: int = 0,
    paused: int = 4,
    seconds: float | None = None,
    copies: str | None = None,
) -> dict[str, Any]:
    """What became of functions whose host process was killed or stopped.

    Args:
      times: how many.
      seed: of the moments.
      paused: one of so many is stopped (SIGSTOP), not killed.
      seconds: in which signals are sent; default: what a life of the same work takes.
      copies: as of `host_process`.

    Returns:
      Of "killed" and "paused" how many there were ("times"), in how many an error was raised
      ("errors") and in how many it was not a `HostMemoryError` ("bare"), in how many it took more
      than ten seconds ("late"), and the longest ("seconds"); in how many variables were on the host
      ("placed") or activations were swapped, and in how many any variable was lost. "phases" says
      what was being done when the signals came, "said" what else was raised.
    """
    moments = random.Random(seed)
    wholes = dict.fromkeys(WORKS, seconds)
    if seconds is None:
        _live(WORKS[0], None, 0.0, copies)  # so that the others find what was probed
        wholes = {work: _live(work, None, 0.0, copies).seconds for work in WORKS}
    found: dict[str, Any] = {kind: dict.fromkeys(COUNTS, 0) for kind in ("killed", "paused")}
    found |= {"phases": {}, "said": []}
    for number in range(times):
        is_paused = number % paused == paused - 1
        sent = signal.SIGSTOP if is_paused else signal.SIGKILL
        work = WORKS[number // paused % len(WORKS)]
        if number % COLD == 0:
            _forget()
        life = _live(work, sent, moments.uniform(0, wholes[work] or 0), copies)
        _count(found["paused" if is_paused else "killed"], life)
        found["phases"][life.phase] = found["phases"].get(life.phase, 0) + 1
        if not life.is_meant:
            found["said"].append(life.said[:300])
    return found


def _forget() -> None:
    """Deletes what is kept of plans and probes."""
    history.IN_PROCESS.facts.clear()
    for path in store.files():
        path.unlink()


def _count(counts: dict[str, Any], life: Life) -> None:
    counts["times"] += 1
    counts["errors"] += bool(life.said)
    counts["bare"] += not life.is_meant
    counts["late"] += life.seconds > PATIENCE
    counts["seconds"] = max(counts["seconds"], life.seconds)
    counts["placed"] += bool(life.placed)
    counts["swapped"] += bool(life.swapped)
    counts["lost"] += bool(life.lost)


def _live(work: Work, sent: signal.Signals | None, moment: float, copies: str | None) -> Life:
    """One life, in which a signal is sent after so many seconds; with None how long it takes."""
    gc.collect()
    life, is_sent = Life(), threading.Event()
    with tfmem.host_process(copies=copies) as device:
        process = host.running()
        assert process is not None
        start = [time.monotonic()]

        def send() -> None:
            life.placed = sum(not device_names.is_local(one.device) for one in life.variables)
            start[0] = time.monotonic()
            if sent is not None:
                os.kill(process.pid, sent)
            is_sent.set()

        timer = threading.Timer(moment, send)
        if sent is not None:
            timer.start()
        try:
            _train(work, life, device, is_sent.is_set if sent else lambda: life.done >= STEPS)
        except Exception as error:
            life.said = f"{type(error).__name__}: {error}"
            life.is_meant = isinstance(error, HostMemoryError)
        life.seconds = time.monotonic() - start[0]
        timer.cancel()
        life.lost = sum(_is_lost(one, life.done) for one in life.variables)
    life.variables = []  # they would take the budget of the next life
    return life


def adding(variables: Sequence[Any]) -> Callable[[Any], Any]:
    """A step that adds one to every element of square variables and keeps what it needs for that.

    Args:
      variables: the weights of layers, one after the other.

    Returns:
      A function of a batch [rows, width]; it returns a number.
    """

    def step(x: Any) -> Any:
        kept = []
        for one in variables:
            kept.append(x)
            x = tf.tanh(x @ one)
        for one, before in zip(reversed(variables), reversed(kept), strict=True):
            x = x * before
            one.assign_add(tf.ones_like(one) + 0 * tf.matmul(before, x, transpose_a=True))
        return tf.reduce_sum(x)

    return step


def _train(work: Work, life: Life, device: str, is_sent: Callable[[], bool]) -> None:
    left, _ = memory.memory_info("CPU:0")
    shape = [work.width, work.width]
    variables = [tf.Variable(tf.zeros(shape), name=f"w{i}") for i in range(LAYERS)]
    life.variables = variables
    x = tf.random.stateless_normal([work.rows, work.width], seed=[1, 2])
    asked = {"host": device, "budget": left + work.budget, "techniques": work.techniques}
    optimized = tfmem.optimize(adding(variables), **asked)
    plan = optimized.plan(x)
    life.swapped = len(plan.evictions)
    _enter(life, "moving", is_sent)
    optimized.prepare(x)
    _enter(life, "making steps", is_sent)
    after = 0
    while after < AFTER:
        after += is_sent()
        float(optimized(x))
        life.done += 1


def _enter(life: Life, phase: str, is_sent: Callable[[], bool]) -> None:
    if not is_sent():
        life.phase = phase


def _is_lost(variable: Any, done: int) -> bool:
    """Whether it has neither the value after the steps that returned nor that after one more."""
    try:
        value = variable.numpy()
    except Exception:
        return True
    return not any(np.array_equal(value, np.full_like(value, n)) for n in (done, done + 1))
