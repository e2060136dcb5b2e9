"""Functions made at random, planned for a budget that can be met, and compared with TensorFlow's.

    python -m models.bench.random_functions --first=0 --count=1000

Each is made of a seed: ops of many kinds on tensors of some hundred kilobytes, branches, loops,
nested functions, gradients, and variables that are read, updated, assigned one tensor or assigned
twice. It runs as it is; then tfmem is asked for the least budget, and it runs under one between
that and its own peak. What it returns, what its variables hold after three steps, and the peak that
the allocator counted are compared. A process makes some dozen of them.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

import tfmem
from tfmem.runtime import memory
from tfmem.runtime.limited import run_limited

ROWS, WIDTH = 256, 128
STEPS = 3
IN_A_PROCESS, LIMIT_BYTES, SECONDS = 40, 2**31, 900
TOLERANCE = 1e-3
"""Of outputs and variables, relatively to the largest number among them: kernels that are fused or
ordered otherwise round otherwise, and a dozen ops in a row magnify that. A wrong number is one of
another value, another step or another variable, and differs by the size of itself."""

flags.DEFINE_integer("first", 0, "The first seed.")
flags.DEFINE_integer("count", 1000, "How many functions.")

Tensors = list[tf.Tensor]
Step = Callable[["Maker", tf.Tensor], tf.Tensor]


@dataclass
class Maker:
    """Makes one function of a seed: always the same ops, whenever it is traced."""

    seed: int
    variables: list[tf.Variable] = field(default_factory=list)
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        choose = random.Random(self.seed)
        count = choose.randint(1, 4)
        values = [noise(WIDTH, WIDTH, seed=self.seed + i) / WIDTH**0.5 for i in range(count)]
        self.variables = [tf.Variable(value) for value in values]
        if choose.random() < 0.3:  # two that begin with one buffer
            self.variables.append(tf.Variable(values[0]))
        self.depth = choose.randint(3, 14)

    def function(self) -> Any:
        """The tf.function, of a tensor [ROWS, WIDTH]."""
        return tf.function(self._step, autograph=False)

    def _step(self, x: tf.Tensor) -> Any:
        self.random.seed(self.seed)
        if self.random.random() < 0.6:
            return self._trained(x)
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

    def weight(self) -> tf.Variable:
        """One of the variables."""
        return self.random.choice(self.variables)

    def _square(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x, transpose_a=True) / ROWS


def noise(*shape: int, seed: int) -> tf.Tensor:
    """Normal numbers."""
    return tf.random.stateless_normal(shape, [seed, 17])


# Ops: of a maker and a tensor [ROWS, WIDTH], a tensor of that shape.


def dense(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return x @ weight


def twice(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.nn.relu(x @ weight) @ tf.transpose(weight)


def attention(make: Maker, x: tf.Tensor) -> tf.Tensor:
    heads = tf.reshape(x, [8, ROWS // 8, WIDTH])
    scores = tf.nn.softmax(tf.einsum("bik,bjk->bij", heads, heads))
    return tf.reshape(scores @ heads, [ROWS, WIDTH])


def convolution(make: Maker, x: tf.Tensor) -> tf.Tensor:
    image = tf.reshape(x, [4, 32, 32, 8])
    kernel = tf.reshape(make.weight()[: 3 * 3 * 8 * 8 // WIDTH + 1], [-1])[: 3 * 3 * 8 * 8]
    return tf.reshape(
        tf.nn.conv2d(image, tf.reshape(kernel, [3, 3, 8, 8]), 1, "SAME"), [ROWS, WIDTH]
    )


def pooled(make: Maker, x: tf.Tensor) -> tf.Tensor:
    image = tf.nn.max_pool2d(tf.reshape(x, [4, 32, 32, 8]), 2, 2, "SAME")
    return tf.reshape(tf.image.resize(image, [32, 32], "nearest"), [ROWS, WIDTH])


def normalised(make: Maker, x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def batch_norm(make: Maker, x: tf.Tensor) -> tf.Tensor:
    image, ones = tf.reshape(x, [4, 32, 32, 8]), tf.ones([8])
    made, _, _ = tf.compat.v1.nn.fused_batch_norm(image, ones, 0.0 * ones, is_training=True)
    return tf.reshape(made, [ROWS, WIDTH])


def parts(make: Maker, x: tf.Tensor) -> tf.Tensor:
    pieces = tf.split(x, 4, axis=1)
    make.random.shuffle(pieces)
    return tf.concat([tf.sin(piece) for piece in pieces], axis=1)


def stacked(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.stack([x, tf.cos(x), x * x]), axis=0)


def sums(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.cumsum(x, axis=make.random.randint(0, 1)) / WIDTH


def sorted_rows(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.sort(x, axis=1) - tf.reverse(x, [0])


def largest(make: Maker, x: tf.Tensor) -> tf.Tensor:
    values, places = tf.math.top_k(x, WIDTH // 2)
    return tf.concat([values, tf.cast(places, tf.float32) / WIDTH], axis=1)


def gathered(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.argsort(x[:, 0]))


def looked_up(make: Maker, x: tf.Tensor) -> tf.Tensor:
    rows = tf.cast(tf.abs(x[:, 0]) * (WIDTH - 1), tf.int32) % WIDTH
    return tf.nn.embedding_lookup(make.weight(), rows)


def masked(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > 0, x, 0.1 * tf.nn.elu(x))


def in_half(make: Maker, x: tf.Tensor) -> tf.Tensor:
    dtype = make.random.choice((tf.float64, tf.bfloat16, tf.float16))
    return tf.cast(tf.nn.sigmoid(tf.cast(x, dtype)), tf.float32)


def spectrum(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.math.real(tf.signal.ifft(tf.signal.fft(tf.cast(x, tf.complex64)) * 0.5))


def padded(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.pad(x, [[3, 0], [0, 0]])[:ROWS] * tf.tile(x[:1], [ROWS, 1])


def dropped(make: Maker, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.experimental.stateless_dropout(x, 0.2, seed=[make.seed, 3])


def written(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    weight.assign_add(1e-3 * tf.ones_like(weight))
    return x @ weight


def chosen(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.cond(tf.reduce_mean(x) > 0, lambda: tf.sin(x @ weight), lambda: x * 0.5)


def switched(make: Maker, x: tf.Tensor) -> tf.Tensor:
    index = tf.cast(tf.abs(x[0, 0]) * 3, tf.int32)
    branches = [lambda: tf.tanh(x), lambda: tf.exp(-x * x), lambda: x @ tf.transpose(x) @ x / 99]
    return tf.switch_case(index, branches)


def repeated(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight, turns = make.weight(), make.random.randint(2, 5)
    return tf.while_loop(
        lambda i, _: i < turns,
        lambda i, y: (i + 1, tf.tanh(y @ weight)),
        (tf.constant(0), x),
        maximum_iterations=turns,
    )[1]


def mapped(make: Maker, x: tf.Tensor) -> tf.Tensor:
    slices = tf.reshape(x, [4, ROWS // 4, WIDTH])
    return tf.reshape(tf.map_fn(lambda part: tf.nn.softmax(part) * 3, slices), [ROWS, WIDTH])


def scanned(make: Maker, x: tf.Tensor) -> tf.Tensor:
    slices = tf.reshape(x, [8, ROWS // 8, WIDTH])
    return tf.reshape(tf.scan(lambda a, b: 0.5 * a + tf.sin(b), slices), [ROWS, WIDTH])


def nested(make: Maker, x: tf.Tensor) -> tf.Tensor:
    attributes = {"_noinline": True} if make.random.random() < 0.3 else None
    inner = tf.function(lambda y: dense(make, tf.sin(y)), experimental_attributes=attributes)
    return inner(x)


def without_outputs(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()

    @tf.function
    def inner(y: tf.Tensor) -> None:
        weight.assign_sub(1e-4 * weight * y[0, 0])

    inner(x)
    return x @ weight


def own_gradient(make: Maker, x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def half(y: tf.Tensor) -> Any:
        return tf.sin(y), lambda gradient: 0.5 * gradient * tf.cos(y)

    return half(x)


def recomputed(make: Maker, x: tf.Tensor) -> tf.Tensor:
    weight = make.weight()
    return tf.recompute_grad(lambda y: tf.nn.gelu(y @ weight))(x)


def checked(make: Maker, x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 1e9)]):
        return tf.debugging.check_numerics(x * 1.5, "finite")


def solved(make: Maker, x: tf.Tensor) -> tf.Tensor:
    gram = tf.matmul(x, x, transpose_a=True) / ROWS + tf.eye(WIDTH)
    return tf.transpose(tf.linalg.solve(gram, tf.transpose(x)))


def counted(make: Maker, x: tf.Tensor) -> tf.Tensor:
    values, index = tf.unique(tf.cast(10 * x[:, 0], tf.int32))
    return x + tf.cast(tf.gather(values, index), tf.float32)[:, None] / 10


def selected(make: Maker, x: tf.Tensor) -> tf.Tensor:
    rows = tf.boolean_mask(x, x[:, 0] > 0)
    return x + tf.reduce_sum(rows, axis=0) / ROWS


def python(make: Maker, x: tf.Tensor) -> tf.Tensor:
    mean = tf.numpy_function(lambda y: np.float32(y.mean()), [x], tf.float32)
    return x - tf.ensure_shape(mean, [])


OPS: Sequence[Step] = (
    dense, dense, twice, attention, convolution, pooled, normalised, batch_norm, parts, stacked,
    sums, sorted_rows, largest, gathered, looked_up, masked, in_half, spectrum, padded, dropped,
    written, chosen, switched, repeated, mapped, scanned, nested, without_outputs, own_gradient,
    recomputed, checked, solved, counted, selected, python,
)  # fmt: skip


# One function, and many.


def verdict(seed: int) -> dict[str, Any]:
    """What came of the function of a seed.

    Returns:
      "outcome": "kept", "refused", or what went wrong; "budget", "peak" and "predicted" in bytes;
      "why", what was said.
    """
    try:
        return {"seed": seed} | _verdict(seed)
    except tfmem.UnsupportedFunctionError as error:
        return {"seed": seed, "outcome": "unsupported", "why": str(error)}
    except Exception:
        return {"seed": seed, "outcome": "raised", "why": traceback.format_exc()[-2500:]}


def _verdict(seed: int) -> dict[str, Any]:
    batches = [noise(ROWS, WIDTH, seed=10 * seed + i) for i in range(STEPS)]
    plain, begin = trained(make := Maker(seed), make.function(), batches), Maker(seed)
    step = begin.function()
    try:
        tfmem.optimize(step, budget=1).plan(batches[0])
        return {"outcome": "accepted a byte"}
    except tfmem.BudgetError as error:
        least = error.least_bytes or 0
    original = tfmem.optimize(step, budget=LIMIT_BYTES // 2).plan(batches[0]).baseline_peak_bytes
    share = random.Random(seed).random()
    budget = int(1.01 * least + share * max(0, original - least)) + 2**14
    try:
        optimized = tfmem.optimize(step, budget=budget)
        optimized.prepare(batches[0])
    except tfmem.BudgetError as error:
        return {"outcome": "refused", "budget": budget, "why": str(error)[:300]}
    predicted = optimized.plans[0].peak_bytes
    planned = trained(begin, optimized, batches)
    events = [event for report in optimized.reports() for event in report.events]
    found = {"budget": budget, "peak": planned.peak, "predicted": predicted, "events": events}
    if (off := distance(plain.numbers, planned.numbers)) > TOLERANCE:
        return found | {"outcome": "wrong", "why": f"off by {off:.2g}"}
    return found | {"outcome": "kept" if planned.peak <= budget else "exceeded", "off": off}


@dataclass(frozen=True)
class Trained:
    """Numbers that steps returned and left in variables, and their peak."""

    numbers: list[np.ndarray]
    peak: int


def trained(make: Maker, step: Any, batches: Tensors) -> Trained:
    """Runs steps, each with a new batch."""
    numbers: list[np.ndarray] = []
    memory.reset_peak("CPU:0")
    for batch in batches:
        numbers += [one.numpy() for one in tf.nest.flatten(step(batch))]
    peak = memory.memory_info("CPU:0")[1]
    return Trained([*numbers, *(one.numpy() for one in make.variables)], peak)


def distance(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The largest difference, relatively to the largest number of its array."""
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        scale = float(np.abs(one).max(initial=0)) or 1.0
        far = np.abs(one.astype("f8") - other.astype("f8")).max(initial=0) / scale
        worst = max(worst, float(far) if np.isfinite(far) else np.inf)
    return worst


def verdicts(first: int, count: int) -> list[dict[str, Any]]:
    """Those of some seeds, one after the other; for a process of its own."""
    return [verdict(seed) for seed in range(first, first + count)]


def many(first: int, count: int) -> list[dict[str, Any]]:
    """Those of any number of seeds, in processes whose allocator counts."""
    found: list[dict[str, Any]] = []
    for start in range(first, first + count, IN_A_PROCESS):
        part = min(IN_A_PROCESS, first + count - start)
        outcome = run_limited(
            "models.bench.random_functions:verdicts",
            start,
            part,
            limit_bytes=LIMIT_BYTES,
            timeout=SECONDS,
        )
        if outcome.status == "ok":
            found += outcome.result
        else:
            why = f"{outcome.status}: {outcome.error}{outcome.output[-1500:]}"
            found.append({"seed": start, "outcome": "ended", "why": why})
    return found


def main(_: list[str]) -> None:
    """Prints what went wrong, and how many went well."""
    counts: dict[str, int] = {}
    values = flags.FLAGS
    for start in range(values.first, values.first + values.count, IN_A_PROCESS):
        part = min(IN_A_PROCESS, values.first + values.count - start)
        for one in many(start, part):
            counts[one["outcome"]] = counts.get(one["outcome"], 0) + 1
            if one["outcome"] != "kept":
                print(json.dumps(one), flush=True)
        print(counts, flush=True)


if __name__ == "__main__":
    app.run(main)
