"""Loops run as a whole where an order puts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfmem.bridge.branches import hold_together
from tfmem.bridge.graphdefs import NodeDef

SIZE, PRODUCTS = 512, 8


def node(name: str, op: str, *inputs: str) -> NodeDef:
    return tf.compat.v1.NodeDef(name=name, op=op, input=inputs)


def test_all_nodes_of_a_loop_wait_for_all_that_it_reads() -> None:
    nodes = [
        node("n", "Relu", "argument:0"),
        node("x", "Split", "n"),
        node("y", "While", "n", "x", "x:1", "argument:0", "^n"),
        node("z", "Neg", "y:1"),
        node("u", "NoOp", "^y"),
        node("v", "StatelessWhile", "y:1", "z"),
    ]
    assert hold_together(nodes) == []
    inputs = {one.name: list(one.input) for one in nodes}
    assert inputs == {
        "n": ["argument:0"],
        "x": ["n"],
        "y": ["n", "x", "x:1", "argument:0", "^n", "^x"],
        "z": ["y:1", "^y"],
        "u": ["^y"],
        "v": ["y:1", "z", "^y", "^z"],
    }


@pytest.mark.usefixtures("no_optimizer")
def test_a_turn_begins_when_every_input_is_there() -> None:
    began, half_made = _moments()
    assert began > half_made


def _moments() -> tuple[float, float]:
    """When the body of a loop began, and when half of an input was made that it reads later."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        large = x
        for number in range(PRODUCTS):
            large = large @ x / SIZE
            if number == PRODUCTS // 2:
                with tf.control_dependencies([large]):
                    half_made = tf.timestamp()
                with tf.control_dependencies([half_made]):
                    large = tf.identity(large)

        def turn(n: tf.Tensor, _: tf.Tensor, held: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return n + 1, tf.timestamp(), held + 1

        loop = tf.while_loop(lambda n, *_: n < 1, turn, [0, tf.zeros([], tf.float64), large])
        return loop[1], half_made

    # Traced by wrap_function, stateful nodes do not wait for one another.
    traced = tf.compat.v1.wrap_function(step, [tf.TensorSpec([SIZE, SIZE])])
    graph_def = traced.graph.as_graph_def()
    hold_together(graph_def.node)
    first, *others = (one.name for one in (*traced.inputs, *traced.outputs))

    def imported(x: tf.Tensor) -> list[tf.Tensor]:
        known = {first: x}
        return tf.graph_util.import_graph_def(graph_def, known, return_elements=others, name="")

    again = tf.compat.v1.wrap_function(imported, [tf.TensorSpec([SIZE, SIZE])])
    began, half_made = again(tf.ones([SIZE, SIZE]))
    return float(began), float(half_made)


@pytest.fixture
def no_optimizer() -> Iterator[None]:
    """As where tfmem hands a graph to TensorFlow: Grappler drops an edge that says nothing new."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False} | before)
