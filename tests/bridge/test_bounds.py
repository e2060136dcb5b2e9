"""Sizes that depend on data: the largest that they can be."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfmem
from tests.support.captures import captured_from, only
from tfmem.graph.ir import Value


def test_sizes_that_depend_on_data_are_bounded():
    captured = captured_from(tf.function(lambda x: tf.unique(x)[0] * 2.0), tf.ones([7]))
    assert only(captured, "Mul").nbytes == (28,)
    expected = {Value("Unique"): (7,), Value("mul"): (7,), Value("Identity"): (7,)}
    assert captured.bounds == expected


def test_what_branches_return_is_as_large_as_the_largest():
    def step(x):
        both, rows = tf.cond(
            tf.reduce_sum(x) > 0.0,
            lambda: (tf.concat([x, tf.unique(x)[0]], 0), tf.constant([3, 2])),
            lambda: (x, tf.constant([3, 2])),
        )
        return both * 2.0, tf.zeros(rows) + x[0]

    captured = captured_from(tf.function(step), tf.ones([7]))
    assert only(captured, "Mul").nbytes == (14 * 4,)
    assert (3 * 2 * 4,) in [node.nbytes for node in captured.graph.nodes if node.op == "AddV2"]


def test_bounds_that_differ_though_sizes_are_equal_count_as_the_least():
    def step(x):
        twice = tf.unique(tf.concat([x, x], 0))[0]
        return tf.gather(x, tf.where(x > 0.0)[:, 0]) * twice, tf.stack([twice, twice]) / x

    captured = captured_from(tf.function(step), tf.range(1.0, 8.0))
    assert only(captured, "Mul").nbytes == (7 * 4,)
    assert only(captured, "RealDiv").nbytes == (2 * 7 * 4,)


def test_sizes_of_gradients_of_broadcasts_follow_from_bounds():
    def step(x):
        rows = tf.where(x[:, 0] > 0.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.gather_nd(x, rows) * tf.gather_nd(x[:, 0], rows)[:, tf.newaxis]
        return tape.gradient(y, x)

    captured = captured_from(tf.function(step), tf.ones([7, 3]))
    axes = [n.nbytes for n in captured.graph.nodes if n.op == "BroadcastGradientArgs"]
    assert axes == [(0, 4)]
    assert (7 * 4,) in [node.nbytes for node in captured.graph.nodes if node.op == "Sum"]


def test_a_branch_that_is_known_is_the_only_one_that_counts():
    @tf.function
    def step(x):
        if tf.rank(x) == 1:
            x = tf.reshape(x, (-1, 1))
        chosen = tf.switch_case(tf.constant(1), [lambda: x, lambda: x[:3], lambda: x[:5]])
        return tf.exp(tf.transpose(x)), tf.sin(chosen)

    captured = captured_from(step, tf.ones([7]))
    assert only(captured, "Exp").nbytes == (7 * 4,)
    assert only(captured, "Sin").nbytes == (3 * 4,)


def test_a_branch_that_could_not_run_for_these_sizes_has_no_size():
    """Another batch may take it, for which the same trace is used."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x):
        count = tf.reduce_min(tf.stack([tf.shape(x)[0], 40]))
        return tf.cond(count > 12, lambda: tf.range(12, count), lambda: tf.range(12))

    with pytest.raises(tfmem.UnsupportedFunctionError, match="the size of cond/cond/range:0"):
        tfmem.optimize(step, budget="1GiB")(tf.ones([8, 4]))


def test_a_branch_that_could_not_run_is_none_if_grappler_knows_that_it_does_not():
    def turn(i, total):
        count = tf.reduce_min(tf.constant([8, 40]))
        more = tf.cond(count > 12, lambda: tf.size(tf.range(12, count)), lambda: count)
        return i + 1, total + more

    step = tf.function(lambda n: tf.while_loop(lambda i, _: i < n, turn, (0, 0))[1])
    assert int(tfmem.optimize(step, budget="1GiB")(tf.constant(3))) == 24


def test_parts_and_choices_are_no_larger_than_what_they_are_made_from():
    def step(x, parts, scores):
        few, many = tf.dynamic_partition(x, parts, 2)
        places = tf.dynamic_partition(tf.range(7), parts, 2)
        whole = tf.dynamic_stitch(places, [tf.square(few), tf.exp(many)])
        best = tf.image.non_max_suppression(x[:, :4], scores, 5)
        others = tf.raw_ops.ListDiff(x=tf.range(7), y=best).out
        return tf.tanh(whole), tf.gather(x, best), tf.abs(others)

    arguments = tf.ones([7, 8]), tf.constant([0, 1, 1, 0, 1, 0, 0]), tf.range(7.0)
    captured = captured_from(tf.function(step), *arguments)
    assert only(captured, "Square").nbytes == only(captured, "Exp").nbytes == (7 * 8 * 4,)
    assert only(captured, "Tanh").nbytes == (7 * 8 * 4,)
    assert only(captured, "Abs").nbytes == (7 * 4,)
    assert [7 * 8 * 4] in [list(n.nbytes) for n in captured.graph.nodes if n.op == "GatherV2"]


def test_gradients_of_parts_are_put_together_in_the_place_of_what_was_taken_apart():
    def step(x, parts):
        with tf.GradientTape() as tape:
            tape.watch(x)
            few, many = tf.dynamic_partition(x, parts, 2)
            loss = tf.reduce_sum(tf.square(few)) + tf.reduce_sum(tf.exp(many))
        return tape.gradient(loss, x)

    captured = captured_from(tf.function(step), tf.ones([7, 8]), tf.constant([0, 1, 1, 0, 1, 0, 0]))
    (whole,) = [n for n in captured.graph.nodes if n.op.endswith("DynamicStitch")]
    assert whole.nbytes == (7 * 8 * 4,)


@pytest.mark.parametrize(("count", "most"), [(17, 7), (70, 70 * 7)])
def test_gradients_of_many_parts_are_no_larger_than_these(count: int, most: int):
    """From 17 on the gradient of a `tf.concat` is a `SplitV`; of 65 numbers none are looked at."""

    def step(x, places):
        with tf.GradientTape() as tape:
            tape.watch(x)
            parts = tf.dynamic_partition(x, places, count)
            together = tf.concat([tf.exp(part) for part in parts], 0)
            loss = tf.reduce_sum(together**2)
        return tape.gradient(loss, x)

    x, places = tf.range(1.0, 8.0) / 7.0, tf.constant([0, 3, 1, 3, 3, 2, 0])
    captured = captured_from(tf.function(step), x, places)
    assert only(captured, "SplitV").nbytes == (most * 4,) * count
    optimized = tfmem.optimize(tf.function(step), budget="1GiB")
    assert tf.reduce_all(optimized(x, places) == step(x, places))


@pytest.mark.parametrize("is_in_parts", [True, False])
def test_what_is_stitched_by_numbers_from_elsewhere_has_no_bound(is_in_parts: bool):
    def step(x, places):
        parts = tf.dynamic_partition(places, places % 2, 2) if is_in_parts else [places, places]
        return tf.dynamic_stitch(parts, [x, x])

    with pytest.raises(tfmem.UnsupportedFunctionError, match="DynamicStitch"):
        captured_from(tf.function(step), tf.ones([6, 8]), tf.range(6))


@pytest.mark.parametrize("rows", [7, None])
def test_what_fills_up_to_a_fixed_size_is_a_copy_where_data_decide(rows: int | None):
    """It would be a view if as many were chosen as there can be, and that is what counts."""

    def step(x):
        chosen = x if rows else tf.boolean_mask(x, x[:, 0] > 0.0)
        missing = 7 - (rows or tf.shape(chosen)[0])
        return tf.exp(tf.pad(tf.square(chosen), [[0, missing], [0, 0]])) + tf.reduce_sum(chosen)

    captured = captured_from(tf.function(step), tf.ones([7, 16]))
    pads = [node for node in captured.graph.nodes if node.op == "Pad"]
    assert [node.shares for node in pads] == ([] if rows else [None])


def test_sizes_that_fall_as_others_rise_are_bounded():
    def step(x):
        chosen = tf.shape(tf.where(x[:, 0] > 0.0))[0]
        rest = 7 - chosen
        negatives = tf.minimum(rest, 3 * chosen)
        square = tf.ones([chosen, rest])
        return (
            tf.exp(x[chosen:]),
            tf.sin(tf.ones([rest, 5])),
            tf.tanh(tf.ones([negatives, 3])),
            tf.abs(tf.ones([tf.math.floormod(-chosen, 4), 2])),
            tf.cos(square),
        )

    captured = captured_from(tf.function(step), tf.ones([7, 16]))
    expected = {"Exp": 7 * 16, "Sin": 7 * 5, "Tanh": 7 * 3, "Abs": 3 * 2, "Cos": 7 * 7}
    assert {op: only(captured, op).nbytes[0] // 4 for op in expected} == expected


def test_what_fills_up_to_a_fixed_size_has_that_size():
    def step(x):
        rows = tf.exp(tf.boolean_mask(x, x[:, 0] > 0.0))
        missing = 7 - tf.shape(rows)[0]
        joined = tf.concat([rows, tf.zeros([missing, 16])], 0)
        return tf.sin(tf.pad(rows, [[0, missing], [0, 0]])), tf.cos(joined)

    captured = captured_from(tf.function(step), tf.ones([7, 16]))
    assert only(captured, "Sin").nbytes == only(captured, "Cos").nbytes == (7 * 16 * 4,)


def test_numbers_of_branches_span_those_of_all():
    def step(x):
        rows = tf.cond(tf.reduce_sum(x) > 0.0, lambda: 2, lambda: 5)
        return tf.exp(tf.ones([rows, 3])), tf.sin(tf.ones([7 - rows, 3]))

    captured = captured_from(tf.function(step), tf.ones([7]))
    assert only(captured, "Exp").nbytes == only(captured, "Sin").nbytes == (5 * 3 * 4,)


def test_each_true_class_is_hit_by_one_sampled_class_at_most():
    def step(classes, sampled):
        hits = tf.nn.compute_accidental_hits(classes, sampled, 2)
        return [tf.abs(hits[0]), tf.square(hits[1]), tf.exp(hits[2])]

    classes, sampled = tf.constant([[3, 3], [1, 3], [0, 9]], tf.int64), [3, 3, 1]
    captured = captured_from(tf.function(step), classes, tf.constant(sampled, tf.int64))
    sizes = [only(captured, op).nbytes[0] for op in ("Abs", "Square", "Exp")]
    assert sizes == [6 * 4, 6 * 8, 6 * 4]


@tf.function(experimental_attributes={"_noinline": True})
def _called(rows):
    return tf.reduce_sum(tf.exp(tf.ones([7 - tf.shape(rows)[0], 16])))


def _looped(count):
    def turn(i, total, count):
        return i + 1, total + tf.reduce_sum(tf.exp(tf.ones([7 - count, 16]))), count

    return tf.while_loop(lambda i, *_: i < 3, turn, (0, 0.0, count))[1]


@pytest.mark.parametrize("run", ["a call", "a branch", "a loop"])
def test_what_a_function_makes_of_sizes_and_numbers_may_rise_where_they_fall(run: str):
    def step(x):
        rows = tf.boolean_mask(x, x > 0.0)
        if run == "a call":
            return _called(rows)
        if run == "a branch":
            return tf.cond(x[0] > 0.0, lambda: _called(rows), lambda: 0.0)
        return _looped(tf.shape(rows)[0])

    captured = captured_from(tf.function(step), tf.ones([7]))
    bodies = [body for one in captured.bodies.values() for body in one]
    bodies += [inner for body in bodies for one in body.bodies.values() for inner in one]
    sizes = [n.nbytes for body in bodies for n in body.graph.nodes if n.op == "Exp"]
    assert sizes == [(7 * 16 * 4,)]


def test_the_largest_of_a_number_that_depends_on_data_are_all_at_most():
    def step(x):
        count = tf.maximum(1, tf.reduce_sum(tf.cast(x[0] > 0.0, tf.int32)))
        values, places = tf.math.top_k(x, count)
        return tf.exp(values), tf.abs(places)

    captured = captured_from(tf.function(step), tf.ones([3, 7]))
    assert only(captured, "Exp").nbytes == only(captured, "Abs").nbytes == (3 * 7 * 4,)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_what_is_decoded_has_a_symbol_of_each_time_at_most(is_greedy: bool):
    def step(x):
        lengths = tf.fill([3], 5)
        if is_greedy:
            (decoded,), _ = tf.nn.ctc_greedy_decoder(x, lengths)
        else:
            (_, decoded), _ = tf.nn.ctc_beam_search_decoder(x, lengths, top_paths=2)
        return tf.abs(decoded.values), tf.square(decoded.indices)

    captured = captured_from(tf.function(step), tf.ones([5, 3, 7]))
    assert only(captured, "Abs").nbytes == (5 * 3 * 8,)
    assert only(captured, "Square").nbytes == (5 * 3 * 2 * 8,)


@pytest.mark.parametrize("most", [9, 0, -2])
def test_a_count_that_is_cut_is_as_large_as_that_at_most(most: int):
    def step(x, numbers):
        count = tf.minimum(tf.reduce_max(numbers), most)
        return tf.exp(tf.ones([count, 5])), tf.sin(tf.ones([20 - count, 5]))

    arguments = tf.ones([3]), tf.constant([4, 12, 7])
    if most > 0:
        captured = captured_from(tf.function(step), *arguments)
        sizes = [only(captured, op).nbytes[0] // 4 for op in ("Exp", "Sin")]
        assert sizes == [9 * 5, 20 * 5]
    else:
        with pytest.raises(tfmem.UnsupportedFunctionError, match="Fill"):
            captured_from(tf.function(step), *arguments)


ROWS, LENGTHS = tf.range(12.0)[:, tf.newaxis], [5, 0, 7]
MENDED = {
    "unsorted_segment_sum": (
        lambda x, ids: tf.math.segment_mean(x, ids),
        lambda x, ids: tf.math.unsorted_segment_mean(x, ids, 3),
    ),
    "num_segments of Python": (
        lambda x, ids: tf.math.unsorted_segment_max(x, ids, tf.reduce_max(ids) + 1),
        lambda x, ids: tf.math.unsorted_segment_max(x, ids, 3),
    ),
    r"to_tensor\(shape=": (
        lambda x, ids: tf.RaggedTensor.from_value_rowids(x, ids, 3).to_tensor(),
        lambda x, ids: tf.RaggedTensor.from_value_rowids(x, ids, 3).to_tensor(
            shape=[None, 7, None]
        ),
    ),
    "pass maxlength": (
        lambda _, ids: tf.math.bincount(ids, dtype=tf.float32),
        lambda _, ids: tf.math.bincount(ids, maxlength=3, dtype=tf.float32),
    ),
}


@pytest.mark.parametrize("advice", MENDED)
def test_a_refusal_says_what_makes_the_size_known_and_that_does(advice: str):
    ids, (refused, mended) = tf.repeat([0, 1, 2], LENGTHS), MENDED[advice]
    first = tf.Variable(0)  # nor are they decided by arguments alone

    def step(made):
        return tf.function(lambda x, ids: tf.exp(made(x, ids + first)))

    with pytest.raises(tfmem.UnsupportedFunctionError, match=advice):
        tfmem.optimize(step(refused), budget="1GiB")(ROWS, ids)
    expected = step(mended)(ROWS, ids)
    found = tfmem.optimize(step(mended), budget="1GiB")(ROWS, ids)
    tf.debugging.assert_equal(expected, found)
