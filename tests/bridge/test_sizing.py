"""Sizes that nothing but arguments decides are computed before a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from, only
from tfmem.bridge.sizing import Sizing
from tfmem.runtime.limited import run_limited

WIDTH = 8
ROWS = tf.reshape(tf.range(20.0 * WIDTH), [20, WIDTH]) / 100.0


@pytest.mark.memory
def test_each_step_keeps_the_budget_whatever_follows_from_its_arguments() -> None:
    outcome = run_limited("tests.children.sizes:steps_of_numbers", limit_bytes=2**30, timeout=200)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert all(one.pop("planned at") == [1, 3] for one in found.values())
    predicted = {kind: one.pop("predicted") for kind, one in found.items()}
    assert all(0.95 < one < 1.15 for one in predicted.values()), predicted  # in a window, less
    expected = {"steps": 4, "is kept": True, "is equal": True}
    assert all(one == expected for one in found.values()), found


def ids(count: int) -> tf.Tensor:
    """Of the 20 rows, so many segments."""
    return tf.range(20) * count // 20


def sized(made: Callable[..., Any], *args: Any) -> tuple[tuple[int, ...], Sizing | None]:
    """Bytes of `Exp` of what is made of arguments, and what was computed for it."""
    captured = captured_from(tf.function(lambda *given: tf.exp(made(*given))), *args, args=args)
    return only(captured, "Exp").nbytes, captured.sizing


@pytest.mark.parametrize(
    "made",
    [
        lambda x, i: tf.math.segment_mean(x, i),
        lambda x, i: tf.math.segment_max(tf.sin(x), i),
        lambda x, i: tf.math.unsorted_segment_sum(x, i, tf.reduce_max(i) + 1),
        lambda x, i: tf.sparse.segment_sum(x, tf.range(20), i),
        lambda x, i: tf.scatter_nd(i[:, None], x, tf.stack([i[-1] + 1, WIDTH])),
        lambda x, i: tf.gather(x, tf.range(i[-1] + 1)),
        lambda x, i: tf.random.normal(tf.stack([i[-1] + 1, WIDTH])) + x[:1],
        lambda x, i: tf.zeros([i[-1] + 1, WIDTH]) + x[:1],
        lambda x, i: tf.repeat(x[:1], i[-1] + 1, axis=0),
    ],
)
def test_what_numbers_decide_has_the_size_that_they_give(made: Callable[..., Any]) -> None:
    nbytes, sizing = sized(made, ROWS, ids(7))
    assert nbytes == (7 * WIDTH * 4,)
    assert sizing is not None
    assert [sizing.holds_for([ROWS, ids(count)]) for count in (5, 7, 8)] == [True, True, False]


def test_words_are_counted_and_rows_as_long_as_the_longest() -> None:
    def words(texts: tf.Tensor) -> tf.Tensor:
        numbers = tf.strings.to_hash_bucket_fast(tf.strings.split(texts), 100)
        return tf.cast(numbers.to_tensor(), tf.float32)

    nbytes, sizing = sized(words, tf.constant(["one two", "", "three four five"]))
    assert nbytes == (3 * 3 * 4,)
    assert sizing is not None
    assert sizing.holds_for([tf.constant(["one two three", "four", ""])])
    assert not sizing.holds_for([tf.constant(["one two three four", "", ""])])


def test_what_runs_again_has_no_effect_and_reads_no_variable() -> None:
    variable, table = tf.Variable(3), tf.Variable(tf.zeros([5], tf.int32))
    for made in (
        lambda x: tf.zeros([variable + x]),
        lambda x: tf.zeros([variable.assign_add(x)]),
        lambda x: tf.zeros([tf.random.uniform([], 1, x, tf.int32) + tf.gather(table, x)]),
    ):
        with pytest.raises(tfmem.UnsupportedFunctionError):
            sized(made, tf.constant(4))
    assert int(variable) == 3


def test_a_call_with_more_is_planned_anew_and_one_with_less_is_not() -> None:
    step = tf.function(lambda x, i: tf.exp(tf.math.segment_mean(x, i)))
    optimized, rows = tfmem.optimize(step, budget="1GiB"), tf.tile(ROWS, [1, 100])
    plans = []
    for count in (4, 3, 8, 10, 11, 4):
        tf.debugging.assert_equal(optimized(rows, ids(count)), step(rows, ids(count)))
        (plan,) = optimized.plans
        plans.append(plan.peak_bytes)
    assert plans[0] == plans[1] < plans[2] == plans[3] < plans[4] == plans[5]


def test_rows_that_a_model_computes_may_be_fewer_in_the_next_call() -> None:
    rows, numbers = tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None], tf.int32)
    step = tf.function(
        lambda x, i: tf.exp(tf.math.segment_mean(tf.sin(x), i)), input_signature=[rows, numbers]
    )
    optimized = tfmem.optimize(step, budget="1GiB")
    for count in (20, 12, 15):
        args = ROWS[:count], ids(7)[:count]
        tf.debugging.assert_equal(optimized(*args), step(*args))
    assert len(optimized.plans) == 1


def test_a_call_that_has_no_room_leaves_the_plan_that_is_there() -> None:
    step = tf.function(lambda x, n: tf.reduce_sum(tf.exp(tf.zeros([n, 1000]) + x)))
    optimized = tfmem.optimize(step, budget="64MiB")
    few, many = tf.constant(10), tf.constant(10_000_000)
    assert float(optimized(1.0, few)) == float(step(1.0, few))
    plans = optimized.plans
    with pytest.raises(tfmem.BudgetError):
        optimized(1.0, many)
    assert optimized.plans == plans
    assert float(optimized(1.0, few)) == float(step(1.0, few))


def test_what_is_called_in_a_function_has_no_numbers_yet() -> None:
    optimized = tfmem.optimize(lambda x, i: tf.exp(tf.math.segment_mean(x, i)), budget="1GiB")
    outer = tf.function(lambda x, i: optimized(x, i), autograph=False)
    captured = tf.function(lambda: optimized(ROWS, ids(4)), autograph=False)
    for _ in range(2):
        with pytest.raises(tfmem.UnsupportedFunctionError, match="the size of SegmentMean"):
            outer(ROWS, ids(4))
        with pytest.raises(tfmem.UnsupportedFunctionError, match="the size of SegmentMean"):
            captured()
        assert optimized(ROWS, ids(4)).shape == (4, WIDTH)


def test_an_error_of_the_numbers_is_that_of_the_step() -> None:
    step = tf.function(lambda x, i: tf.exp(tf.math.segment_mean(x, i)))
    optimized = tfmem.optimize(step, budget="1GiB")
    optimized(ROWS, ids(4))
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment ids"):
        optimized(ROWS, tf.reverse(ids(4), [0]))
