"""Functions made at random, planned for a budget that can be met, and compared with TensorFlow's.

    python -m models.bench.random_functions --first=0 --count=1000

Each is made of a seed: ops of many kinds on tensors of some hundred kilobytes, branches, loops,
nested functions, two processes, gradients, variables that are read, updated, assigned one tensor or
twice, or what a branch gives. It runs as it is, and then with half of what its steps take beside
its variables, or more; where that is refused, with a part of what is between that and the least
that tfmem names. What it returns, what its variables hold after three steps, and the peak that the
allocator counted are compared.
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

import tfmem
from models.bench.differences import relative_difference
from models.bench.random_ops import OPS, ROWS, WIDTH
from tfmem.bridge import instances
from tfmem.costs import store
from tfmem.runtime import memory
from tfmem.runtime.limited import run_limited

STEPS = 3
IN_A_PROCESS, LIMIT_BYTES, SECONDS = 50, 2**31, 900
"""Functions of a process: TensorFlow keeps for good what gradients of their own have captured.
That is what others hold, beside which mistakes of some kilobytes are rounded away."""

TOLERANCE = 1e-3
"""Of outputs and variables, relatively to the largest number among them: kernels that are fused or
ordered otherwise round otherwise, and a dozen ops in a row magnify that. A wrong number is one of
another value, another step or another variable, and differs by the size of itself."""

TECHNIQUES = (
    {"order", "recompute"},
    {"order", "recompute"},
    {"order", "recompute", "swap", "place"},
)
"""What may be done for a function, one of these: with a host, plans take longer to find."""

DEEPEST = 14
"""Most ops on the way from the argument to the last value, where nothing else is asked for."""

flags.DEFINE_integer("first", 0, "The first seed.")
flags.DEFINE_integer("count", 1000, "How many functions.")
flags.DEFINE_boolean("hold", True, "Whether callers hold batches and outputs until the next.")
flags.DEFINE_integer("jobs", 1, "Processes at a time.")
flags.DEFINE_integer("deepest", DEEPEST, "Most ops from the argument to the last value.")

Tensors = list[tf.Tensor]


@dataclass
class Maker:
    """Makes one function of a seed: always the same ops, whenever it is traced.

    Attributes:
      deepest: most ops on the way from the argument to the last value.
      elsewhere: another device.
      is_held: whether its caller holds what a step returns, and its batch, until the next has
        ended, as a loop does. It is predicted so: one who does not leaves room for mistakes.
    """

    seed: int
    deepest: int = DEEPEST
    elsewhere: str = "CPU:0"
    is_held: bool = True
    variables: list[tf.Variable] = field(init=False)
    narrow: tf.Variable = field(init=False)
    least: tf.Variable = field(init=False)
    steps: tf.Variable = field(init=False)
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        choose = random.Random(self.seed)
        *values, narrow, least, steps = self._first_values(choose)
        self.variables = [tf.Variable(value) for value in values]
        self.narrow = tf.Variable(narrow, trainable=False)
        self.least = tf.Variable(least, trainable=False)
        self.steps = tf.Variable(steps, trainable=False)
        self.depth = choose.randint(2, self.deepest)

    def _first_values(self, choose: random.Random) -> Tensors:
        count = choose.randint(1, 4)
        values = [noise(WIDTH, WIDTH, seed=self.seed + i) / WIDTH**0.5 for i in range(count)]
        if choose.random() < 0.3:  # two that begin with one buffer
            values.append(values[0])
        steps = tf.zeros([], tf.int64)
        return [*values, tf.cast(values[0], tf.bfloat16), tf.constant(1e9), steps]

    def begin_again(self) -> None:
        """Gives all variables the values that they had before the first step."""
        values = self._first_values(random.Random(self.seed))
        for variable, value in zip(self.every_variable, values, strict=True):
            variable.assign(value)

    @property
    def every_variable(self) -> list[tf.Variable]:
        """All of them, those that are not trained last."""
        return [*self.variables, self.narrow, self.least, self.steps]

    def function(self) -> Any:
        """The tf.function, of a tensor [ROWS, WIDTH]."""
        return tf.function(self._step, autograph=False)

    def _step(self, x: tf.Tensor) -> Any:
        self.random.seed(self.seed)
        found = self._trained(x) if self.random.random() < 0.6 else self._updated(x)
        if self.random.random() < 0.2:
            self._assign_of_branches(x)
        return found

    def _assign_of_branches(self, x: tf.Tensor) -> None:
        """Assigns what branches give, which nothing else reads."""
        loss, matrix = tf.reduce_mean(x**2), self.variables[0]
        is_less = loss < self.least
        self.least.assign(tf.cond(is_less, lambda: loss, lambda: self.least.read_value()))
        matrix.assign(tf.cond(is_less, lambda: 0.9 * matrix, lambda: matrix.read_value()))

    def _updated(self, x: tf.Tensor) -> Any:
        outputs = self._chain(x, self.depth)
        for variable in self.variables:
            if self.random.random() < 0.5:
                variable.assign_add(1e-2 * tf.tanh(self._square(outputs[-1])))
        return outputs[-self.random.randint(1, 3) :]

    def _trained(self, x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = self._chain(x, self.depth)
            loss = tf.reduce_mean(outputs[-1] ** 2)
        found = tape.gradient(loss, [*self.variables, x], unconnected_gradients="zero")
        gradients = [tf.clip_by_norm(tf.convert_to_tensor(one), 1.0) for one in found]
        for variable, gradient in zip(self.variables, gradients[:-1], strict=True):
            variable.assign_sub(0.1 * gradient)
        if self.random.random() < 0.3:  # two are assigned one tensor, and one of them once more
            first, last = self.variables[0], self.variables[-1]
            mean = (first + last) / 2
            first.assign(mean)
            last.assign(mean)
            if self.random.random() < 0.5:
                last.assign(0.9 * last + 0.1 * mean)
        return {"loss": loss, "x": gradients[-1], "last": outputs[-1]}

    def _chain(self, x: tf.Tensor, depth: int) -> Tensors:
        """Values [ROWS, WIDTH], each from one or two before it."""
        values = [x]
        for _ in range(depth):
            source = self.random.choice(values[-3:])
            made = self.random.choice(OPS)(self, source)
            if self.random.random() < 0.3:
                made = made + self.random.choice(values)
            values.append(tf.ensure_shape(tf.tanh(made), [ROWS, WIDTH]))
        return values

    def batch(self, number: int) -> tf.Tensor:
        """The argument of a step."""
        return noise(ROWS, WIDTH, seed=10 * self.seed + number)

    def weight(self) -> tf.Variable:
        """One of the variables."""
        return self.random.choice(self.variables)

    def _square(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x, transpose_a=True) / ROWS


def noise(*shape: int, seed: int) -> tf.Tensor:
    """Normal numbers, by one op, so that nothing else is on the device meanwhile."""
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=[seed, 17])


# One function, and many.


def verdict(seed: int, deepest: int, host: str, is_held: bool = True) -> dict[str, Any]:
    """What came of the function of a seed.

    Args:
      seed: of the function, its numbers, its budget and what may be done for it.
      deepest, is_held: as of `Maker`.
      host: the device of a host process, where some of its nodes run.

    Returns:
      "outcome": "kept", "refused", or what went wrong; "budget", "peak" and "predicted" in bytes;
      "why", what was said; "window" and "crossings" of the plan.
    """
    try:
        return {"seed": seed} | _verdict(seed, deepest, host, is_held)
    except tfmem.UnsupportedFunctionError as error:
        return {"seed": seed, "outcome": "unsupported", "why": str(error)}
    except Exception:
        return {"seed": seed, "outcome": "raised", "why": traceback.format_exc()[-2500:]}


def _verdict(seed: int, deepest: int, host: str, is_held: bool) -> dict[str, Any]:
    make, choose = Maker(seed, deepest, host), random.Random(seed)
    step, share, techniques = make.function(), choose.random(), choose.choice(TECHNIQUES)
    plain = trained(make, step)
    make.begin_again()
    make.is_held = is_held
    gc.collect()  # what it returned
    held, _ = memory.memory_info("CPU:0")
    most = held + plain.taken
    budget = held + int((1 + share) / 2 * plain.taken)
    for is_last in (False, True):
        try:
            optimized = tfmem.optimize(step, budget=budget, techniques=techniques)
            optimized.prepare(make.batch(0))
            break
        except tfmem.BudgetError as error:
            if is_last:
                return {"outcome": "refused", "budget": budget, "why": str(error)[:300]}
            least = error.least_bytes or 0
            budget = int(1.01 * least + share * max(0, most - least)) + 2**14
    (plan,) = optimized.plans
    planned = trained(make, optimized)
    events = [event for report in optimized.reports() for event in report.events]
    found = {"budget": budget, "peak": planned.peak, "predicted": plan.peak_bytes, "events": events}
    found |= {"window": plan.window, "crossings": len(plan.transfers)}
    off = distance(plain.numbers, planned.numbers)
    if not off <= TOLERANCE:  # nor is what is no number
        return found | {"outcome": "wrong", "why": f"off by {off:.2g}"}
    return found | {"outcome": "kept" if planned.peak <= budget else "exceeded", "off": off}


@dataclass(frozen=True)
class Trained:
    """Numbers that steps returned and left in variables.

    Attributes:
      numbers: of each step, then of the variables.
      peak: bytes that the allocator held at most.
      taken: how many more that is than before the first step.
    """

    numbers: list[np.ndarray]
    peak: int
    taken: int


def trained(make: Maker, step: Any) -> Trained:
    """Runs steps, each with a new batch.

    Args:
      make: what has the variables.
      step: the function, as it is or optimised.
    """
    numbers: list[np.ndarray] = []
    memory.reset_peak("CPU:0")
    held, _ = memory.memory_info("CPU:0")
    for number in range(STEPS):
        batch = make.batch(number)
        found = step(batch)
        numbers += [np.array(one) for one in tf.nest.flatten(found)]  # else it stays there for good
        if not make.is_held:
            del batch, found
    _, peak = memory.memory_info("CPU:0")
    numbers += [np.array(one) for one in make.every_variable]
    return Trained(numbers, peak, peak - held)


def distance(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The largest difference, relatively to the largest number of its array."""
    return float(np.max([relative_difference(*pair) for pair in zip(expected, found, strict=True)]))


def verdicts(first: int, count: int, deepest: int, is_held: bool) -> list[dict[str, Any]]:
    """Those of some seeds, one after the other; for a process of its own."""
    instances.freeze()
    with tfmem.host_process() as host:
        return [verdict(seed, deepest, host, is_held) for seed in range(first, first + count)]


def many(
    first: int, count: int, deepest: int = DEEPEST, is_held: bool = True, jobs: int = 1
) -> Iterator[dict[str, Any]]:
    """Those of any number of seeds, in processes whose allocator counts, `jobs` at a time."""
    end, pool = first + count, ThreadPoolExecutor(jobs)
    with tempfile.TemporaryDirectory(prefix="tfmem-random-") as cache:
        parts = [
            pool.submit(_part, start, min(IN_A_PROCESS, end - start), deepest, is_held, cache)
            for start in range(first, end, IN_A_PROCESS)
        ]
        try:
            for part in parts:
                yield from part.result()
        finally:
            pool.shutdown(cancel_futures=True)  # else who interrupts it waits for all that is left


def _part(start: int, count: int, deepest: int, is_held: bool, cache: str) -> list[dict[str, Any]]:
    outcome = run_limited(
        "models.bench.random_functions:verdicts",
        start,
        count,
        deepest,
        is_held,
        limit_bytes=LIMIT_BYTES,
        timeout=SECONDS,
        environment={store.DIRECTORY: cache},  # without what other runs learned of the same seeds
    )
    if outcome.status == "ok":
        return outcome.result
    why = f"{outcome.status}: {outcome.error}{outcome.output[-1500:]}"
    return [{"seed": start, "outcome": "ended", "why": why}]


def main(_: list[str]) -> None:
    """Prints what went wrong, and how many went well."""
    values, counts = flags.FLAGS, Counter[str]()
    found = many(values.first, values.count, values.deepest, values.hold, values.jobs)
    for number, one in enumerate(found, 1):
        counts[one["outcome"]] += 1
        if one["outcome"] != "kept":
            print(json.dumps(one), flush=True)
        if number % IN_A_PROCESS == 0:
            print(dict(counts), flush=True)
    print(dict(counts))


if __name__ == "__main__":
    app.run(main)
