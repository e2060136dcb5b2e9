"""What branches give and nobody reads."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfmem.bridge.capture import capture
from tfmem.bridge.graphdefs import FunctionDef
from tfmem.bridge.rebuild import rebuild

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def chosen(x: tf.Tensor, which: tf.Tensor) -> Any:
    """Of three outputs the second is not read."""
    found = tf.switch_case(
        which,
        [
            lambda: (x + 1.0, x @ x, tf.zeros([4, 4])),
            lambda: (tf.zeros([4, 4]), x @ x, x - 1.0),
        ],
    )
    return found[0], found[2]


def functions_of(graph: Any) -> dict[str, FunctionDef]:
    library = graph.as_graph_def(add_shapes=False).library.function
    return {one.signature.name: one for one in library}


def test_a_number_is_given_instead_and_waited_for() -> None:
    traced = tf.function(chosen).get_concrete_function(
        tf.TensorSpec([4, 4]), tf.TensorSpec([], tf.int32)
    )
    captured = capture(traced, device=DEVICE)
    rewritten = rebuild(captured, captured.graph)
    x = tf.random.stateless_normal([4, 4], [1, 2])
    for which in (0, 1):
        found, expected = rewritten(x, tf.constant(which)), chosen(x, tf.constant(which))
        tf.debugging.assert_equal(found[0], expected[0])
        tf.debugging.assert_equal(found[1], expected[1])
    (node,) = (op for op in rewritten.function.graph.get_operations() if "Case" in op.type)
    (done,) = (op for op in rewritten.function.graph.get_operations() if op.type == "IdentityN")
    assert {tensor.op.name for tensor in done.inputs} == {node.name}
    assert sorted(tensor.value_index for tensor in done.inputs) == [0, 1, 2]
    functions = functions_of(rewritten.function.graph)
    for branch in node.get_attr("branches"):
        function = functions[branch.name]
        by_name = {one.name: one for one in function.node_def}
        second = function.ret[function.signature.output_arg[1].name].partition(":")[0]
        number = by_name[by_name[second].input[0].partition(":")[0]]
        (product,) = (one.name for one in function.node_def if one.op == "MatMul")
        assert (number.op, list(number.input)) == ("Const", [f"^{product}"])


def test_no_output_is_a_constant_that_would_be_folded_for_each_of_them() -> None:
    def zeros(x: tf.Tensor, which: tf.Tensor) -> Any:
        none = tf.zeros([4, 4])
        return tf.cond(which > 0, lambda: (x, none), lambda: (none, none))

    traced = tf.function(zeros).get_concrete_function(
        tf.TensorSpec([4, 4]), tf.TensorSpec([], tf.int32)
    )
    captured = capture(traced, device=DEVICE)
    rewritten = rebuild(captured, captured.graph)
    (node,) = (op for op in rewritten.function.graph.get_operations() if op.type.endswith("If"))
    functions = functions_of(rewritten.function.graph)
    for name in ("then_branch", "else_branch"):
        function = functions[node.get_attr(name).name]
        ops = {one.name: one.op for one in function.node_def}
        sources = {text.partition(":")[0] for text in function.ret.values()}
        assert "Const" not in {ops.get(source) for source in sources}
    x = tf.ones([4, 4])
    assert [float(tf.reduce_sum(one)) for one in rewritten(x, tf.constant(0))] == [0.0, 0.0]
    assert [float(tf.reduce_sum(one)) for one in rewritten(x, tf.constant(1))] == [16.0, 0.0]


def test_what_an_assignment_alone_reads_is_read() -> None:
    """The least loss so far, or the norms of a layer that are renewed while it trains."""
    least, norm = tf.Variable(5.0), tf.Variable(tf.ones([1, 4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.reduce_mean(x**2)
        least.assign(tf.cond(loss < least, lambda: loss, lambda: least.read_value()))
        norm.assign(tf.cond(loss < 9.0, lambda: 0.5 * norm + loss, lambda: norm.read_value()))
        return loss

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([4, 4]))
    captured = capture(concrete, device=DEVICE)
    loss = rebuild(captured, captured.graph)(2.0 * tf.ones([4, 4]))
    assert float(loss) == least.numpy() == 4.0
    assert norm.numpy().tolist() == [[4.5] * 4]
