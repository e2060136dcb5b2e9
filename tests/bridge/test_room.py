"""Plans have room for calls that are a little larger than those before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from, only
from tfmem.bridge.computing import Wanted
from tfmem.bridge.room import Before
from tfmem.functions import decide
from tfmem.graph.ir import Value

WIDTH = 8


@pytest.mark.parametrize(
    ("before", "now", "growth", "found"),
    [
        ([(4, 8)], [(6, 8)], 1.25, [(8, 8)]),  # what differs has a quarter more, rounded up
        ([(4, 8)], [(6, 8)], 1.0, [(6, 8)]),
        ([(4, 8)], [(6, 8)], 0.0, [(6, 8)]),
        ([(40, 8), (9,)], [(48, 8), (8,)], 1.25, [(60, 8), (10,)]),  # the second may be larger next
        ([(40, 8), (9,)], [(40, 8), (6,)], 1.25, [(40, 8), (9,)]),  # nothing is larger
        ([(100, 8), (9,)], [(20, 8), (10,)], 1.25, [(20, 8), (10,)]),  # it would be four times this
        ([(4, 8)], [(6, 8), (1,)], 1.25, [(6, 8), (1,)]),  # of another trace
    ],
)
def test_arguments_have_room(before: Any, now: Any, growth: float, found: Any) -> None:
    args = [tf.TensorSpec(shape) for shape in now]
    assert list(Before.of([before], [], growth).shapes_for(args)) == found


def test_each_size_is_at_least_the_most_of_any_plan() -> None:
    before = Before.of([[(4, 8)], [(6, 2)]], [], 1.25)
    assert before.shapes_for([tf.TensorSpec((5, 8))]) == ((6, 8),)


def test_what_is_computed_has_room_also_where_there_are_more_numbers() -> None:
    count, rows = (Wanted(Value(name), is_shape=False) for name in ("count", "rows"))
    plans = [{count: np.int32(3), rows: np.array([5, 2])}, {count: np.int32(2)}]
    before = Before.of(
        [[], []], [{k: np.asarray(v) for k, v in one.items()} for one in plans], 1.25
    )
    found = before.numbers_for({count: np.asarray(np.int32(8)), rows: np.array([2, 2, 4])})
    assert found[count] == 10
    assert found[count].dtype == np.int32
    assert found[rows].tolist() == [5, 2, 5]


def open_rows(function: Any, *others: tf.TensorSpec) -> Any:
    return tf.function(function, input_signature=[tf.TensorSpec([None, WIDTH]), *others])


def test_a_capture_holds_for_all_that_it_has_room_for() -> None:
    function = open_rows(tf.exp)
    concrete = function.get_concrete_function()
    args = {count: [tf.zeros([count, WIDTH])] for count in (4, 8, 10, 11)}
    captured = captured_from(function, args=args[8], before=Before(((4, WIDTH),)))
    assert only(captured, "Exp").nbytes == (10 * WIDTH * 4,)
    assert captured.has_room
    assert [captured.holds_for(concrete, one) for one in args.values()] == [True, True, True, False]
    assert not captured_from(function, args=args[8]).has_room


def test_as_many_numbers_are_computed_as_the_plan_has_room_for() -> None:
    """Those beyond the call's are as large as the largest of them."""

    def scattered(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        shape = tf.stack([tf.reduce_max(rows) + 1, WIDTH])
        return tf.exp(tf.scatter_nd(rows[:, None], x, shape))

    function = open_rows(scattered, tf.TensorSpec([None], tf.int32))
    args = tf.zeros([3, WIDTH]), tf.constant([4, 8, 2])
    captured = captured_from(function, args=args, before=Before(((2, WIDTH), (2,))))
    assert captured.shapes == ((4, WIDTH), (4,))
    assert only(captured, "Exp").nbytes == (9 * WIDTH * 4,)
    assert captured.sizing is not None
    rows = [[4, 8, 1, 8], [1, 0], [9, 0, 0], [1] * 5]
    held = [captured.sizing.holds_for([args[0], tf.constant(one)]) for one in rows]
    assert held == [True, True, False, False]


def made() -> tuple[Any, tf.Variable]:
    weight = tf.Variable(tf.eye(WIDTH))

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        weight.assign_add(tf.matmul(x, x, transpose_a=True))
        return tf.reduce_sum(x) + tf.reduce_sum(y)

    function = open_rows(step, tf.TensorSpec([None]))
    return tfmem.optimize(function, budget=2**20), weight


def called(optimized: Any, rows: int, others: int) -> float:
    return float(optimized(tf.ones([rows, WIDTH]), tf.ones([others])))


def shapes_planned(
    monkeypatch: pytest.MonkeyPatch, refuses: Callable[[Any], bool] = lambda captured: False
) -> list[Any]:
    """The shapes of arguments that are planned for from now on."""
    tried, before = list[Any](), decide.decide

    def deciding(captured: Any, *others: Any) -> Any:
        tried.append(captured.shapes)
        if refuses(captured):
            raise tfmem.BudgetError("no room")
        return before(captured, *others)

    monkeypatch.setattr(decide, "decide", deciding)
    return tried


def test_sizes_that_rise_in_turn_are_planned_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized, _ = made()
    tried = shapes_planned(monkeypatch)
    sizes = [(20, 20), (21, 19), (20, 22), (24, 21), (25, 23), (22, 24)]
    assert [called(optimized, *one) for one in sizes] == [8.0 * a + b for a, b in sizes]
    assert tried == [((20, WIDTH), (20,)), ((27, WIDTH), (24,))]
    assert len(optimized.plans) == 1  # the first is of no use any more
    called(optimized, 28, 20)
    assert tried[2:] == [((35, WIDTH), (25,))]


def test_what_is_much_smaller_keeps_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized, _ = made()
    tried = shapes_planned(monkeypatch)
    for rows in (8, 40, 8, 40, 7):
        called(optimized, rows, 1)
    assert tried == [((8, WIDTH), (1,)), ((50, WIDTH), (1,))]
    assert len(optimized.plans) == 2


def test_where_there_is_no_plan_with_room_there_is_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimized, _ = made()
    called(optimized, 20, 20)
    tried = shapes_planned(monkeypatch, refuses=lambda captured: captured.has_room)
    called(optimized, 24, 16)
    called(optimized, 25, 16)
    assert tried == [
        ((30, WIDTH), (20,)),
        ((24, WIDTH), (20,)),
        ((24, WIDTH), (16,)),
        ((25, WIDTH), (16,)),  # more was refused before
    ]
    assert len(optimized.plans) == 2
