"""What tests ask of a process of its own: the memory of steps whose sizes data decide."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import tfmem
from tfmem.runtime import memory

ROWS, WIDTH, LAYERS, SHARE = 1000, 256, 8, 0.75
LENGTHS = (40, 56, 8, 25, 70, 3)
"""Of the rows of some batches of text, the longest as long as the plan has room for that is made
for the second."""

ROW_LENGTHS = ((100, 200), (250, 1), (3, 300), (1, 375))
"""Of ragged rows, the last as many as the plan has room for that is made for the third."""

TEXTS, COUNTS = 8, (400, 320, 480, 600)
"""Of segments, or words; the last as many as the plan has room for that is made for the third."""


def steps_of_batches() -> dict[str, dict[str, Any]]:
    """What the steps of each kind of batch take under `SHARE` of what they take as they are."""

    def calls(kind: str) -> Iterator[tuple[Any, ...]]:
        iterator = iter(_data(kind))
        while True:
            yield (iterator,)

    return {
        kind: _compared(partial(_rows, kind), partial(calls, kind))
        for kind in ("rows", "pairs", "text", "ragged")
    }


def steps_of_numbers() -> dict[str, dict[str, Any]]:
    """The same of steps whose sizes follow from numbers that are arguments."""
    import tensorflow as tf

    def mean(x: Any, ids: Any) -> Any:
        return tf.math.segment_mean(tf.nn.gelu(x), ids)

    def most(x: Any, ids: Any) -> Any:
        return tf.math.unsorted_segment_max(x, ids, tf.reduce_max(ids) + 1)

    def padded(x: Any, ids: Any) -> Any:
        rows = tf.RaggedTensor.from_value_rowids(tf.nn.gelu(x), ids, nrows=TEXTS)
        return tf.reshape(rows.to_tensor(), [-1, WIDTH])

    def words(texts: Any) -> Any:
        found = tf.strings.to_hash_bucket_fast(tf.strings.split(texts).flat_values, WIDTH)
        return tf.one_hot(found, WIDTH)

    def calls(kind: str) -> Iterator[tuple[Any, ...]]:
        x = tf.constant(np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32))
        for count in COUNTS:
            if kind == "words":
                yield (tf.constant([" ".join(["ab"] * (count // TEXTS))] * TEXTS),)
            elif kind == "padded":
                others = 1 + np.arange(ROWS - count) * (TEXTS - 1) // (ROWS - count)
                yield x, np.concatenate([np.zeros(count, np.int64), others])
            else:
                yield x, np.arange(ROWS) * count // ROWS

    cases = {"mean": mean, "most": most, "padded": padded, "words": words}
    return {kind: _compared(rows, partial(calls, kind)) for kind, rows in cases.items()}


def _compared(rows: Callable[..., Any], calls: Callable[[], Iterator[Any]]) -> dict[str, Any]:
    plain = _steps(rows, calls())
    budget = int(SHARE * plain["peak"])
    planned = _steps(rows, calls(), budget)
    return {
        "is kept": planned["peak"] <= budget,
        "is equal": planned["numbers"] == plain["numbers"],
        "predicted": planned["predicted"] / planned["peak"],
        "planned at": planned["planned at"],
        "steps": planned["steps"],
    }


def _steps(
    rows: Callable[..., Any], calls: Iterator[tuple[Any, ...]], budget: int | None = None
) -> dict[str, Any]:
    """Steps on rows made of arguments, until these end, or TensorFlow says that an iterator has."""
    import tensorflow as tf

    noise = tf.random.Generator.from_seed(1)
    weights = [tf.Variable(noise.normal([WIDTH, WIDTH]) / WIDTH**0.5) for _ in range(LAYERS)]

    @tf.function
    def step(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = rows(*args)
            for weight in weights:
                hidden = tf.nn.gelu(hidden @ weight)
            loss = tf.reduce_mean(hidden**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    run: Any = step if budget is None else tfmem.optimize(step, budget=budget)
    losses: list[float] = []
    made: list[tuple[int, Any]] = []  # plans, and at which call
    memory.reset_peak("CPU:0")
    with contextlib.suppress(tf.errors.OutOfRangeError):
        for args in calls:
            losses.append(float(run(*args)))
            plans = run.plans if budget is not None else ()
            made += ((len(losses), plan) for plan in plans if plan not in [p for _, p in made])
    return {
        "peak": memory.memory_info("CPU:0")[1],
        "predicted": max((plan.peak_bytes for _, plan in made), default=0),
        "planned at": [call for call, _ in made],
        "steps": len(losses),
        "numbers": [losses, *(weight.numpy().tolist() for weight in weights)],
    }


def _rows(kind: str, iterator: Any) -> Any:
    """Rows [N, WIDTH] of the next batch of an iterator, or of the next two."""
    import tensorflow as tf

    batch = next(iterator)
    if kind == "pairs":
        return tf.concat([batch["x"], next(iterator)["x"]], 0)
    if kind == "ragged":
        return batch.flat_values
    return tf.reshape(batch, [-1, WIDTH])


def _data(kind: str) -> Any:
    """Batches of open sizes: the last of rows is smaller, texts have one length in each."""
    import tensorflow as tf

    numbers = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    if kind == "ragged":
        spec = tf.RaggedTensorSpec([2, None, WIDTH], tf.float32, ragged_rank=1)
        return tf.data.Dataset.from_generator(lambda: _ragged(numbers), output_signature=spec)
    rows = tf.data.Dataset.from_tensor_slices(numbers)
    if kind == "text":
        spec = tf.TensorSpec([None, WIDTH], tf.float32)
        texts = (numbers[:length] for length in LENGTHS for _ in range(8))
        one = tf.data.Dataset.from_generator(lambda: texts, output_signature=spec)
        return one.padded_batch(8)
    return rows.batch(150 if kind == "pairs" else 300).map(
        lambda x: {"x": x, "y": x[:, 0]} if kind == "pairs" else x
    )


def _ragged(numbers: Any) -> Iterator[Any]:
    import tensorflow as tf

    for lengths in ROW_LENGTHS:
        yield tf.RaggedTensor.from_row_lengths(numbers[: sum(lengths)], lengths)
