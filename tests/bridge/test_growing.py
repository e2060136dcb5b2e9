"""How long lists are where they are stacked: as reserved, as taken apart, as they have grown."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from, only
from tfmem.functions.contents import with_contents
from tfmem.simulation.contents import lengths

ROWS, WIDTH = 12, 64


def _filled(x: tf.Tensor, *, is_loop: bool, reserved: int = 0) -> tf.TensorArray:
    rows = tf.TensorArray(tf.float32, reserved, dynamic_size=True, element_shape=[WIDTH])
    for i in tf.range(ROWS) if is_loop else range(ROWS):
        rows = rows.write(i, x[i] * 2.0)
    return rows


@pytest.mark.parametrize("reserved", [0, 1])
@pytest.mark.parametrize("is_loop", [True, False])
def test_what_is_stacked_is_as_long_as_the_list_became(is_loop: bool, reserved: int):
    def step(x):
        return tf.exp(_filled(x, is_loop=is_loop, reserved=reserved).stack())

    captured = captured_from(tf.function(step), tf.ones([ROWS, WIDTH]), count=lengths)
    assert only(captured, "Exp").nbytes == (ROWS * WIDTH * 4,)


def test_the_length_of_one_list_may_follow_from_that_of_another():
    def step(x):
        first = _filled(x, is_loop=True).stack()
        again = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[WIDTH])
        for i in tf.range(2 * tf.shape(first)[0]):
            again = again.write(i, first[i // 2])
        return tf.exp(again.stack())

    captured = captured_from(tf.function(step), tf.ones([ROWS, WIDTH]), count=lengths)
    assert only(captured, "Exp").nbytes == (2 * ROWS * WIDTH * 4,)


def test_what_a_branch_stacks_is_as_long_as_the_list_became_there():
    def step(x):
        return tf.cond(
            tf.reduce_sum(x) > 0.0,
            lambda: tf.reduce_sum(tf.exp(_filled(x, is_loop=True).stack())),
            lambda: 0.0,
        )

    captured = captured_from(tf.function(step), tf.ones([ROWS, WIDTH]), count=lengths)
    (branches,) = captured.bodies.values()
    sizes = [node.nbytes[0] for body in branches for node in body.graph.nodes if node.op == "Exp"]
    assert sizes == [ROWS * WIDTH * 4]


def test_a_list_whose_length_is_not_known_is_refused():
    def step(x):
        rows, i = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[WIDTH]), 0
        while tf.reduce_sum(x) > tf.cast(i, tf.float32):
            rows, i = rows.write(i, x[i]), i + 1
        return tf.exp(rows.stack())

    captured = captured_from(tf.function(step), tf.ones([ROWS, WIDTH]), count=lengths)
    with pytest.raises(tfmem.UnsupportedFunctionError, match="how many there are at most"):
        with_contents(captured)


def test_what_a_loop_passes_on_has_the_size_of_what_it_was_given():
    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def step(x):
        twice = tf.exp(x)
        for _ in tf.range(3):
            for _ in tf.range(2):
                twice += tf.sin(twice)
        return tf.tanh(twice)

    captured = captured_from(step, args=[tf.ones([ROWS, WIDTH])])
    assert only(captured, "Tanh").nbytes == (ROWS * WIDTH * 4,)


def test_numbers_that_no_turn_changes_are_known_in_a_loop():
    """Such as the size of the filter whose gradient a turn computes."""

    def step(x, is_changed):
        def turn(i, rows, total):
            following = rows + tf.constant([0, 1]) if is_changed else rows
            return i + 1, following, total + tf.exp(tf.ones(rows))[0, 0]

        start = 0, tf.shape(x), 0.0
        return tf.while_loop(lambda i, *_: i < 5, turn, start)[2]

    captured = captured_from(tf.function(lambda x: step(x, False)), tf.ones([3, 4]))
    (body,) = [body for one in captured.bodies.values() for body in one if len(body.returns) > 1]
    assert [n.nbytes for n in body.graph.nodes if n.op == "Exp"] == [(3 * 4 * 4,)]
    with pytest.raises(tfmem.UnsupportedFunctionError, match="Fill"):
        captured_from(tf.function(lambda x: step(x, True)), tf.ones([3, 4]))


def test_what_a_loop_makes_larger_has_no_size():
    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def step(x):
        for _ in tf.range(3):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(x, tf.TensorShape([None, WIDTH]))]
            )
            x = tf.concat([x, x], 0)
        return tf.tanh(x)

    with pytest.raises(tfmem.UnsupportedFunctionError, match="not known before the step runs"):
        captured_from(step, args=[tf.ones([ROWS, WIDTH])])


def test_a_list_that_follows_from_its_own_length_has_none():
    def step(x):
        size = tf.constant(1)
        rows = tf.zeros([1, WIDTH])
        for _ in tf.range(3):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(rows, tf.TensorShape([None, WIDTH]))]
            )
            made = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[WIDTH])
            for i in tf.range(size + 1):
                made = made.write(i, x[0])
            rows = made.stack()
            size = tf.shape(rows)[0]
        return tf.exp(rows)

    with pytest.raises(tfmem.UnsupportedFunctionError, match="not known before the step runs"):
        captured_from(tf.function(step), tf.ones([ROWS, WIDTH]), count=lengths)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_gradients_of_a_loop_over_an_open_batch_have_the_sizes_of_the_call(is_dynamic: bool):
    weights = tf.Variable(tf.ones([WIDTH, WIDTH]))

    @tf.function(input_signature=[tf.TensorSpec([None, ROWS, WIDTH])])
    def step(x):
        with tf.GradientTape() as tape:
            state = tf.zeros([tf.shape(x)[0], WIDTH])
            states = tf.TensorArray(tf.float32, 0 if is_dynamic else ROWS, dynamic_size=is_dynamic)
            for i in tf.range(ROWS):
                state = tf.tanh(x[:, i] @ weights + state)
                states = states.write(i, state)
            loss = tf.reduce_sum(tf.exp(states.stack()))
        return tape.gradient(loss, weights)

    captured = captured_from(step, args=[tf.ones([5, ROWS, WIDTH])], count=lengths)
    assert only(captured, "Exp").nbytes == (ROWS * 5 * WIDTH * 4,)
    gradients = only(captured, "StatelessWhile")
    assert 5 * WIDTH * 4 in gradients.nbytes


def test_elements_of_what_a_loop_takes_apart_have_the_sizes_of_the_call():
    @tf.function(input_signature=[tf.TensorSpec([ROWS, None])])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.foldl(lambda a, row: tf.tanh(a) + row, x, tf.zeros([tf.shape(x)[1]]))
            loss = tf.exp(found)
        return tape.gradient(loss, x)

    captured = captured_from(step, args=[tf.ones([ROWS, WIDTH])], count=lengths)
    assert only(captured, "Exp").nbytes == (WIDTH * 4,)
    loops = [functions for functions in captured.bodies.values() if len(functions) == 2]
    sizes = [max(n.nbytes) for _, body in loops for n in body.graph.nodes if n.op == "Tanh"]
    assert sizes == [WIDTH * 4]


def test_gradients_of_a_loop_over_an_open_length_are_as_long_as_what_it_took_apart():
    """What a loop reads out of a list is added up in another one.

    x --unstack--> list --> While           gradient: zeros_like(list) --> While --stack--> dx
    """

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.foldl(lambda a, row: tf.tanh(a) + row, x, tf.zeros([WIDTH]))
        return tf.exp(tape.gradient(found, x))

    captured = captured_from(step, args=[tf.ones([ROWS, WIDTH])])
    assert only(captured, "Exp").nbytes == (ROWS * WIDTH * 4,)


def test_a_list_filled_in_a_loop_is_as_long_as_what_depends_on_data_can_be():
    def step(x):
        chosen = tf.boolean_mask(x, x[:, 0] > 0.0)
        return tf.exp(tf.map_fn(lambda row: tf.tanh(row), chosen))

    captured = captured_from(tf.function(step), tf.ones([ROWS, WIDTH]))
    assert only(captured, "Exp").nbytes == (ROWS * WIDTH * 4,)


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_list_that_a_turn_makes_anew_is_not_as_long_as_the_one_before(is_swapped: bool):
    """Reserved with one element, it has `ROWS` after the loop."""

    def reserved(count):
        return tf.TensorArray(tf.float32, count, element_shape=[WIDTH])

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def step(x):
        count = tf.shape(x)[0]
        rows, others = reserved(count // ROWS), reserved(count)
        for i in tf.range(3):
            if is_swapped:
                rows, others = others, rows
            else:
                rows = reserved(count)
            rows = rows.write(0, x[i])
        return tf.exp(rows.stack()), others.size()

    x = tf.ones([ROWS, WIDTH])
    assert step(x)[0].shape == (ROWS, WIDTH)
    with pytest.raises(tfmem.UnsupportedFunctionError, match="not known before the step runs"):
        captured_from(step, args=[x])
