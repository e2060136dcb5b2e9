"""What draws numbers runs once, whatever it is wrapped in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfmem.bridge.capture import capture
from tfmem.bridge.rebuild import rebuild
from tfmem.graph.ops import facts_of

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def augmented(x: tf.Tensor, which: tf.Tensor) -> Any:
    return tf.switch_case(
        which, [lambda: x + tf.random.normal([64]), lambda: tf.nn.dropout(x, 0.5), lambda: 2.0 * x]
    )


def within(x: tf.Tensor, which: tf.Tensor) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: augmented(x, which), lambda: x)


def plain(x: tf.Tensor, which: tf.Tensor) -> Any:
    return tf.switch_case(which, [lambda: x + 1.0, lambda: 2.0 * x])


def test_a_case_whose_branches_draw_numbers_is_not_pure() -> None:
    for function, is_stateful in ((augmented, True), (within, True), (plain, False)):
        concrete = tf.function(function).get_concrete_function(
            tf.TensorSpec([64]), tf.TensorSpec([], tf.int32)
        )
        captured = capture(concrete, device=DEVICE)
        (node,) = (node for node in captured.graph.nodes if node.name in captured.bodies)
        assert facts_of(node.op).is_stateful == is_stateful
        run = rebuild(captured, captured.graph)
        first, second = (run(tf.ones([64]), tf.constant(0)).numpy() for _ in range(2))
        assert (first != second).any() == is_stateful
