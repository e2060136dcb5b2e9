"""Steps that take their batches from an iterator themselves, whose sizes are open."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tfmem.functions import decide
from tfmem.runtime.limited import run_limited

WIDTH = 64
STEPS = {"rows": 4, "pairs": 3, "text": 6, "ragged": 4}
PLANNED_AT = {"rows": [1], "pairs": [1], "text": [1, 2], "ragged": [1, 3]}
"""Calls with batches that are larger than a plan before has room for."""


@pytest.mark.memory
def test_each_step_keeps_the_budget_whatever_the_size_of_its_batch() -> None:
    outcome = run_limited("tests.children.sizes:steps_of_batches", limit_bytes=2**30, timeout=200)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert {kind: one.pop("steps") for kind, one in found.items()} == STEPS
    assert {kind: one.pop("planned at") for kind, one in found.items()} == PLANNED_AT
    predicted = {kind: one.pop("predicted") for kind, one in found.items()}
    assert all(0.95 < one < 1.15 for one in predicted.values()), predicted  # in a window, less
    assert all(one == {"is kept": True, "is equal": True} for one in found.values()), found


def made(take: Callable[[Any], Any], budget: str = "2MB", **options: Any) -> tuple[Any, Any]:
    """An optimised step of what is taken from an iterator, and the variable that it updates."""
    weight = tf.Variable(tf.eye(WIDTH))

    @tf.function(**options)
    def step(*args: Any, **kwargs: Any) -> Any:
        rows = take(*args, **kwargs)
        weight.assign_add(tf.matmul(rows, rows, transpose_a=True))
        return tf.reduce_sum(rows)

    return tfmem.optimize(step, budget=budget), weight


def batches(size: int = 3, count: int = 8) -> Any:
    """An iterator of batches of open sizes, the rows of which are numbered."""
    numbers = tf.range(count, dtype=tf.float32)
    rows = tf.data.Dataset.from_tensor_slices(tf.repeat(numbers[:, None], WIDTH, 1))
    return iter(rows.batch(size))


def of(*numbers: int) -> float:
    """What a step returns that has taken rows of these numbers."""
    return float(WIDTH * sum(numbers))


@pytest.mark.parametrize(
    ("take", "given"),
    [
        (lambda x: next(x), lambda x: ((x,), {})),
        (lambda x: x.get_next(), lambda x: ((x,), {})),
        (lambda x=None: next(x), lambda x: ((), {"x": x})),
        (lambda x: next(x["of"][0]) * x["times"], lambda x: (({"of": (x,), "times": 1},), {})),
        (lambda x, by: next(x) * by, lambda x: ((x, tf.constant(1.0)), {})),
        (lambda x, by: next(x) * by, lambda x: ((x, np.ones(1, np.float32)), {})),
    ],
)
def test_an_iterator_may_be_any_argument(take: Any, given: Any) -> None:
    optimized, _ = made(take)
    args, kwargs = given(batches())
    assert [float(optimized(*args, **kwargs)) for _ in range(3)] == [
        of(0, 1, 2),
        of(3, 4, 5),
        of(6, 7),
    ]
    with pytest.raises(tf.errors.OutOfRangeError):
        optimized(*args, **kwargs)
    assert len(optimized.plans) == len(optimized.reports()) == 1


def test_without_autograph_and_from_two_iterators() -> None:
    take = lambda x, y: next(x) + 0 * next(x) + next(y)  # noqa: E731 - its name is not needed
    optimized, _ = made(take, autograph=False)
    first, second = batches(2), batches(2)
    assert float(optimized(first, second)) == of(0, 1) + of(0, 1)
    assert float(optimized(first, second)) == of(4, 5) + of(2, 3)
    assert float(next(first, [[-1.0]])[0][0]) == -1.0
    assert float(next(second)[0][0]) == 4.0


def test_what_was_taken_for_a_plan_is_the_batch_of_the_next_call() -> None:
    optimized, weight = made(next)
    iterator = batches()
    plan = optimized.plan(iterator)
    assert optimized.report(iterator).plan == plan
    assert optimized.explain(iterator).plan.is_noop
    assert np.array_equal(weight.numpy(), np.eye(WIDTH))
    assert float(optimized(iterator)) == of(0, 1, 2)
    assert float(optimized(iterator)) == of(3, 4, 5)


def test_what_was_taken_for_a_plan_that_cannot_be_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> Any:
        raise tfmem.BudgetError("no room")

    optimized, weight = made(next)
    iterator = batches()
    with monkeypatch.context() as patch:
        patch.setattr(decide, "decide", refused)
        for _ in range(2):
            with pytest.raises(tfmem.BudgetError):
                optimized(iterator)
    assert np.array_equal(weight.numpy(), np.eye(WIDTH))
    assert float(optimized(iterator)) == of(0, 1, 2)


def test_threads_that_share_an_iterator_use_each_batch_once() -> None:
    optimized, _ = made(next)
    iterator, found = batches(1, 200), []

    def run() -> None:
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                found.append(float(optimized(iterator)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [of(number) for number in range(200)]


def test_a_tape_that_wants_the_gradient_has_that_of_the_batch() -> None:
    weight = tf.Variable(2.0)
    optimized = tfmem.optimize(lambda x: weight * tf.reduce_sum(next(x)), budget="2MB")
    iterator = batches()
    for numbers in ((0, 1, 2), (3, 4, 5)):
        with tf.GradientTape() as tape:
            loss = optimized(iterator)
        assert float(tape.gradient(loss, weight)) == of(*numbers)


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x.get_next_as_optional().get_value(),
        lambda x: tf.cond(tf.constant(True), lambda: next(x), lambda: tf.zeros([1, WIDTH])),
        lambda x: tf.function(lambda y: next(y))(x),
    ],
)
def test_what_does_more_with_an_iterator_is_refused_and_takes_nothing(take: Any) -> None:
    optimized, _ = made(take)
    iterator = batches()
    with pytest.raises(tfmem.UnsupportedFunctionError, match="in a straight line"):
        optimized(iterator)
    assert float(next(iterator)[0][0]) == 0.0


def test_an_iterator_that_is_passed_twice_is_not_told_apart() -> None:
    optimized, _ = made(lambda x, y: next(x) - next(y))
    iterator = batches()
    with pytest.raises(tfmem.UnsupportedFunctionError, match="IteratorGetNext"):
        optimized(iterator, iterator)
    assert float(next(iterator)[0][0]) == 0.0


def test_an_iterator_that_is_not_used_gives_nothing_away() -> None:
    optimized, _ = made(lambda x: tf.ones([2, WIDTH]))
    iterator = batches()
    assert float(optimized(iterator)) == of(1, 1)
    assert float(next(iterator)[0][0]) == 0.0


def test_errors_of_the_function_are_its_own() -> None:
    optimized, _ = made(lambda x: next(x).there_is_no_such_thing)
    with pytest.raises(AttributeError, match="there_is_no_such_thing"):
        optimized(batches())
