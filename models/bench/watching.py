"""What it costs that the first steps of a plan are watched, and that later ones are not.

python -m models.bench.watching --model=gpt

The same step is optimised twice, with `watch` and without, and called in turn, so that load falls
on both alike. Watched steps are timed without the copy that is made before them, which is told
apart; then the steps after them; then calls of a step that does nearly nothing, for microseconds.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf
from absl import app, flags

import tfmem
from models.bench.experiment import load
from models.bench.lies import ZOO
from models.bench.odd_steps import STEPS
from models.bench.table import show_bytes, show_seconds, table
from models.bench.train import limit_memory
from tfmem.functions import watched
from tfmem.functions.watch import WATCHED
from tfmem.runtime import snapshot

flags.DEFINE_string("model", "gpt", "Of the zoo, or one of the odd steps.")
flags.DEFINE_integer("rounds", 6, "How often both are made anew.")
flags.DEFINE_float(
    "share", 0.8, "The budget over the predicted peak; above 1.2 nothing is changed."
)
flags.DEFINE_integer("calls", 4000, "Calls of the step that does nearly nothing.")


@dataclasses.dataclass
class Times:
    """Seconds of steps with and without `watch`, and of the copies before watched ones."""

    on: list[float] = dataclasses.field(default_factory=list)
    off: list[float] = dataclasses.field(default_factory=list)
    copies: list[float] = dataclasses.field(default_factory=list)
    nbytes: int = 0

    def row(self, name: str) -> list[str]:
        """A line of the table."""
        pairs = zip(self.on, self.copies or [0.0] * len(self.on), self.off, strict=True)
        ratio = statistics.median((on - copy) / off for on, copy, off in pairs)
        copy = show_seconds(statistics.median(self.copies)) if self.copies else "-"
        on, off = (show_seconds(statistics.median(times)) for times in (self.on, self.off))
        return [name, off, on, copy, show_bytes(self.nbytes or None), f"{ratio - 1:+.2%}"]


def timed(call: Callable[[Any], Any], step: Any) -> float:
    """Seconds of a step, its loss read."""
    start = time.perf_counter()
    float(call(step))
    return time.perf_counter() - start


def spied(times: Times) -> Any:
    """Notes the seconds of each copy that is made before a watched step."""
    prepare = watched._Step._prepare

    class Spy(snapshot.Snapshot):
        def __init__(self, variables: Any) -> None:
            super().__init__(variables)
            times.nbytes = self.nbytes

    def noted(step: Any) -> None:
        start = time.perf_counter()
        prepare(step)
        times.copies.append(time.perf_counter() - start)

    return mock.patch.multiple(watched, Snapshot=Spy), mock.patch.object(
        watched._Step, "_prepare", noted
    )


def steps_of(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """The step of a model, and how it is called."""
    if name in STEPS:
        odd = STEPS[name]()
        return odd.function, odd.call
    module = load(name)
    task = module.build(dataclasses.replace(module.CONFIGS["small"], **ZOO.get(name, {})))
    batch = next(iter(task.batches))
    return tf.function(task.step), lambda step: step(*batch)


def compare(name: str, share: float, rounds: int) -> Iterator[list[str]]:
    """Rows of watched steps, and of those after them."""
    function, call = steps_of(name)
    float(call(function))
    seen, later = Times(), Times()
    plan = call(_Asked(function)).plan
    budget = int(share * plan.baseline_peak_bytes)
    patches = spied(seen)
    with patches[0], patches[1]:
        for _ in range(rounds):
            on, off = (tfmem.optimize(function, budget=budget, watch=w) for w in (True, False))
            timed(call, on)
            timed(call, off)
            seen.copies.pop()  # of the first step, which is planned in
            for number in range(1, 2 * WATCHED):
                times = seen if number < WATCHED else later
                times.on.append(timed(call, on))
                times.off.append(timed(call, off))
    yield seen.row(f"{name}, watched steps")
    yield later.row(f"{name}, steps after them")


class _Asked:
    """Stands for a step, and plans for the arguments that it is called with."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        self.plan = tfmem.optimize(self.function, budget="100GB").plan(*args)
        return self


def nearly_nothing(calls: int) -> list[str]:
    """The row of a step of a few microseconds, after its watched steps."""
    count = tf.Variable(0.0)
    function = tf.function(lambda x: count.assign_add(x))
    one = tf.constant(1.0)
    times, steps = Times(), {}
    for is_watched in (True, False):
        steps[is_watched] = tfmem.optimize(function, budget="1GB", watch=is_watched)
        for _ in range(2 * WATCHED):
            steps[is_watched](one)
    for _ in range(calls):
        times.on.append(timed(lambda step: step(one), steps[True]))
        times.off.append(timed(lambda step: step(one), steps[False]))
    return times.row("a count")


def main(_: list[str]) -> None:
    """Prints the table."""
    values = flags.FLAGS
    limit_memory(None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFMEM_CACHE_DIR"] = folder
        rows = [*compare(values.model, values.share, values.rounds), nearly_nothing(values.calls)]
    header = ["", "not watched", "watched", "copy", "of", "more, beside the copy"]
    print(table(header, rows))


if __name__ == "__main__":
    app.run(main)
