"""What `capture` reads from a function: sizes, devices, operations, sharing; what it refuses."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context

from models.bench.experiment import load
from tests.support.captures import LOCAL, captured_from, only
from tests.support.functions import CASES, matrix
from tfmem.bridge.calls import flat_arguments
from tfmem.bridge.capture import capture
from tfmem.bridge.shapes import opaque_nbytes
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph.ir import ARG, VARIABLE, Value
from tfmem.graph.ops import facts_of
from tfmem.graph.verify import verify


@pytest.mark.parametrize("name", CASES)
def test_every_capture_is_a_valid_graph_on_full_devices(name):
    case = CASES[name]()
    args = case.renew() if case.renew else case.args
    concrete = case.function.get_concrete_function(*args, **case.kwargs)
    flat = flat_arguments(concrete, args, case.kwargs)
    captured = capture(concrete, device="CPU:0", args=flat)
    verify(captured.graph)
    assert {node.device for node in captured.graph.nodes} <= {LOCAL}
    assert [n.name for n in captured.graph.nodes if n.is_input] == [i.name for i in captured.inputs]


def test_sizes_are_exact():
    weight = tf.Variable(matrix(0, 16, 32))

    @tf.function
    def step(x, text, flag):
        y = tf.cast(x @ weight, tf.bfloat16)
        return tf.nn.top_k(y, 3), tf.strings.upper(text), tf.logical_not(flag)

    args = (matrix(1, 8, 16), tf.constant(["a", "b"]), tf.constant([True] * 5))
    graph = captured_from(step, *args).graph
    sizes = {node.op: node.nbytes for node in graph.nodes}
    assert sizes["MatMul"] == (8 * 32 * 4,)
    assert sizes["Cast"] == (8 * 32 * 2,)
    assert sizes["TopKV2"] == (8 * 3 * 2, 8 * 3 * 4)
    assert sizes["StringUpper"] == (2 * 24,)  # the texts themselves are not counted
    assert sizes["LogicalNot"] == (5,)
    assert sizes[VARIABLE] == (16 * 32 * 4,)
    assert [n.nbytes[0] for n in graph.nodes if n.op == ARG] == [8 * 16 * 4, 2 * 24, 5]


def test_handles_other_than_variables_take_no_bytes():
    case = CASES["iterator_argument"]()
    captured = captured_from(case.function, *case.renew())
    assert [(n.op, n.nbytes) for n in captured.graph.nodes if n.is_input] == [
        (ARG, (0,)),
        (VARIABLE, (4,)),
    ]
    assert list(captured.variables.values()) == case.variables


def test_open_dimensions_take_the_sizes_of_the_arguments():
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x):
        return tf.reshape(x @ tf.ones([4, 3]), [-1])

    concrete = step.get_concrete_function()
    captured = capture(concrete, device="CPU:0", args=[tf.zeros([10, 4])])
    assert only(captured, "MatMul").nbytes == (10 * 3 * 4,)
    with pytest.raises(UnsupportedFunctionError, match="size of x:0"):
        capture(concrete, device="CPU:0")


def test_known_shapes_stand_in_where_inference_ends():
    data = tf.data.Dataset.range(5).batch(2)  # the last batch is smaller

    @tf.function
    def step(iterator):
        return tf.cast(next(iterator), tf.float32) * 2.0

    concrete = step.get_concrete_function(iter(data))
    with pytest.raises(UnsupportedFunctionError) as raised:
        capture(concrete, device="CPU:0")
    message = str(raised.value)
    assert message.startswith("step: the size of IteratorGetNext:0 (IteratorGetNext, ")
    assert "test_capture.py:" in message
    assert "drop_remainder=True" in message
    assert "Mul" not in message  # what follows from the first cause is not repeated

    known = {Value("IteratorGetNext"): (2,)}
    assert only(capture(concrete, device="CPU:0", known=known), "Mul").nbytes == (8,)


def test_what_ensure_shape_reads_has_its_shape() -> None:
    @tf.function
    def step(x):
        mean = tf.numpy_function(lambda y: y.mean(), [x], tf.float32)
        return x - tf.ensure_shape(mean, [])

    captured = capture(step.get_concrete_function(tf.ones([5, 3])), device="CPU:0")
    (python,) = (node for node in captured.graph.nodes if node.op == "PyFunc")
    assert python.nbytes == (4,)


def test_gradients_of_a_python_function_are_as_large_as_what_it_was_given() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = tf.ensure_shape(tf.py_function(tf.sin, [x], tf.float32), [3, 3])
            loss = tf.py_function(lambda a, b: tf.reduce_sum(b @ a), [first, x[:2]], tf.float32)
            loss = tf.ensure_shape(loss, [])
        return tape.gradient(loss, x)

    captured = capture(step.get_concrete_function(), device="CPU:0", args=[tf.ones([3, 3])])
    python = [node.nbytes for node in captured.graph.nodes if node.op == "EagerPyFunc"]
    assert sorted(python) == [(4,), (36,), (36,), (36, 24)]


def test_bodies_of_loops_and_branches():
    captured = captured_from(CASES["while_loop"]().function, matrix(1, 4, 8))
    loops = [node for node in captured.graph.nodes if node.op in ("While", "StatelessWhile")]
    assert len(loops) == 2  # forward and backward
    for loop in loops:
        condition, body = captured.bodies[loop.name]
        verify(condition.graph)
        verify(body.graph)
        assert len(body.graph.outputs) == len(loop.nbytes)
    products = [
        n for loop in loops for n in captured.bodies[loop.name][1].graph.nodes if "MatMul" in n.op
    ]
    assert {node.nbytes for node in products} == {(4 * 8 * 4,), (8 * 8 * 4,)}

    case = CASES["case"]()
    branches = captured_from(case.function, *case.args)
    (graphs,) = branches.bodies.values()
    assert len(graphs) == 3


def test_flops():
    image, kernel = matrix(0, 2, 8, 8, 3), matrix(1, 3, 3, 3, 5)

    @tf.function
    def step(a, b, image, kernel):
        return a @ b, tf.einsum("ij,jk->ik", a, b), tf.nn.conv2d(image, kernel, 1, "SAME")

    captured = captured_from(step, matrix(0, 4, 16), matrix(1, 16, 8), image, kernel)
    by_op = {captured.graph.by_name[name].op: count for name, count in captured.flops.items()}
    assert by_op["MatMul"] == 2 * 4 * 16 * 8
    assert by_op["Einsum"] == 2 * 4 * 16 * 8
    assert by_op["Conv2D"] == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)


def test_flops_of_an_einsum_count_each_label_once():
    def counted(equation, *shapes):
        values = [matrix(seed, *shape) for seed, shape in enumerate(shapes)]
        captured = captured_from(tf.function(lambda *of: tf.einsum(equation, *of)), *values)
        return sum(captured.flops.values())

    assert counted("bij,bjk->bik", [3, 4, 16], [3, 16, 8]) == 2 * 3 * 4 * 16 * 8
    assert counted("...ij,...jk->...ik", [2, 1, 4, 16], [3, 16, 8]) == 2 * 2 * 3 * 4 * 16 * 8
    assert counted("ij->ji", [4, 16]) == 0


VIEWS = {
    "aligned rows": lambda x: tf.raw_ops.Slice(input=x, begin=[2, 0], size=[3, 16]),
    "inner columns": lambda x: tf.raw_ops.Slice(input=x, begin=[0, 2], size=[8, 3]),
    "row": lambda x: x[2],
    "rows": lambda x: x[2:5],
    "last row": lambda x: x[-1],
    "rows of all axes": lambda x: x[2:, ...],
    "last column of all": lambda x: x[..., -1:],
    "rows before a new axis": lambda x: x[2:, ..., None],
    "new axis": lambda x: x[:, None],
    "column": lambda x: x[:, 1],
    "one number": lambda x: x[1, 2],
    "every other": lambda x: x[::2],
    "split": lambda x: tf.split(x, 4),
    "split columns": lambda x: tf.split(x, 4, axis=1),
    "uneven split": lambda x: tf.split(x, [3, 5]),
    "unstack": tf.unstack,
    "unstack columns": lambda x: tf.unstack(x, axis=1),
    "unaligned rows": lambda x: tf.reshape(x, [-1])[:120:][4:20],
    "transpose": tf.transpose,
    "turn an axis of one": lambda x: tf.transpose(x[:, None], [1, 0, 2]),
    "sum": lambda x: tf.reduce_sum(x, 0),
    "pad": lambda x: tf.pad(x, [[1, 0], [0, 0]]),
    "whole band": lambda x: tf.linalg.band_part(x, -1, -1),
    "band": lambda x: tf.linalg.band_part(x, -1, 0),
    "tile": lambda x: tf.tile(x, [1, 2]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_sharing_is_what_the_kernels_do(name):
    """Where an op's outputs lie in memory decides; Grappler may have removed what does nothing."""
    x = matrix(0, 8, 16)
    function = VIEWS[name]
    outputs = tf.nest.flatten(function(x))
    lies_in = [address(x) <= address(y) < address(x) + 8 * 16 * 4 for y in outputs]

    graph = captured_from(tf.function(function), x).graph
    shared = [shares(graph, value) for value in graph.outputs]
    assert shared == lies_in


def address(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def shares(graph, value: Value) -> bool:
    """Whether a value lies in the buffer of the function's argument."""
    node = graph.by_name[value.node]
    if node.is_input:
        return node.op == ARG
    index = node.shares if node.shares is not None else facts_of(node.op).shares
    return index is not None and shares(graph, node.inputs[index])


def test_program_order():
    @tf.function
    def step(x):
        for _ in range(4):
            x = x @ x
        return x

    captured = captured_from(step, tf.ones([4, 4]))
    names = [node.name for node in captured.graph.nodes if node.op == "MatMul"]
    assert names == ["matmul", "matmul_1", "matmul_2", "matmul_3"]


def test_lines_of_user_code():
    captured = captured_from(CASES["variables"]().function, matrix(0, 4, 16))
    assert "functions.py:" in captured.source(only(captured, "Relu").name)
    assert captured.source("no such node") == ""
    names = {captured.source(name) for name in captured.variables}
    assert names == {f"variable {variable.name}" for variable in captured.variables.values()}


def test_grappler_has_run_and_calls_are_inlined():
    weight = tf.Variable(matrix(0, 8, 8))

    @tf.function
    def inner(x):
        return tf.nn.relu(tf.nn.bias_add(x @ weight, tf.ones([8])))

    captured = captured_from(tf.function(lambda x: inner(x)), matrix(0, 4, 8))
    assert {"_FusedMatMul"} <= {node.op for node in captured.graph.nodes}
    assert not [node for node in captured.graph.nodes if "Call" in node.op]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("moe_transformer", {"layers": 1, "experts": 2, "batch": 2}),
        ("convnet", {"blocks": 1, "batch": 4}),
        ("lstm", {"length": 4}),
    ],
)
def test_grappler_makes_of_a_function_what_it_makes_when_the_function_is_called(model, changes):
    task = load(model).build(dataclasses.replace(load(model).CONFIGS["small"], **changes))
    batch = next(iter(task.batches))
    concrete = tf.function(task.step).get_concrete_function(*batch)
    graph = capture(concrete, device="CPU:0").graph
    ours = {n.name: (n.op, [v.node for v in n.inputs]) for n in graph.nodes if not n.is_input}
    assert edges(ours) == edges(executed(concrete, batch))


def edges(nodes: dict[str, tuple[str, list[str]]]) -> collections.Counter:
    """How often an op reads an op at each of its inputs; "" stands for a function's inputs.

    Reads of variables are not counted, which `reads.share` makes fewer.
    """
    ops = {name: op for name, (op, _) in nodes.items()}
    return collections.Counter(
        (op, i, ops.get(name, ""))
        for op, names in nodes.values()
        for i, name in enumerate(names)
        if op != "ReadVariableOp"
    )


def executed(concrete, batch) -> dict[str, tuple[str, list[str]]]:
    """Each node's op and inputs in the graph that TensorFlow runs, without sums as accumulations.

    Grappler makes these of large sums unless it is told not to; their order is left open.
    """
    context = eager_context.context()
    config = config_pb2.ConfigProto()
    config.CopyFrom(context.config)
    rewrites = config.graph_options.rewrite_options
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    plain = context.function_call_options
    context.enable_graph_collection()
    try:
        context.function_call_options = eager_context.FunctionCallOptions(config_proto=config)
        concrete(*batch)
        graph_def = context.export_run_metadata().function_graphs[0].post_optimization_graph
    finally:
        context.function_call_options = plain
        context.disable_graph_collection()
    return {
        node.name: (node.op, [text.partition(":")[0] for text in node.input if text[0] != "^"])
        for node in graph_def.node
        if node.op not in ("_Arg", "_Retval")
    }


def test_grappler_fuses_inside_loops():
    weight = tf.Variable(matrix(0, 8, 8))

    @tf.function
    def step(x):
        for _ in tf.range(3):
            x = tf.nn.relu(tf.nn.bias_add(x @ weight, tf.ones([8])))
        return x

    (bodies,) = captured_from(step, matrix(0, 4, 8)).bodies.values()
    assert "_FusedMatMul" in {node.op for node in bodies[1].graph.nodes}


def test_a_capture_forgets_the_function():
    """It would keep the memory of a variable that moves away."""
    case = CASES["variables"]()
    concrete = case.function.get_concrete_function(*case.args)
    captured = capture(concrete, device="CPU:0")
    traced = weakref.ref(concrete.graph)
    del case.function, concrete
    gc.collect()
    assert traced() is None
    assert not captured.has_moved()


def test_a_variable_that_only_a_raw_op_takes_is_known():
    weight, slot = tf.Variable(tf.ones([64])), tf.Variable(tf.zeros([64]))

    @tf.function
    def step(gradient):
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle, accum=slot.handle, lr=0.1, grad=gradient, momentum=0.9
        )

    captured = captured_from(step, tf.ones([64]))
    assert {id(variable) for variable in captured.variables.values()} == {id(weight), id(slot)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mask_of_a_norm_fused_with_a_relu_is_as_large_as_the_kernel_makes_it(
    dtype: str,
) -> None:
    for channels in (8, 12, 16, 24, 40):
        shape = (2, 8, 8, channels)

        def step(x: tf.Tensor, channels: int = channels) -> tuple[tf.Tensor, tf.Tensor]:
            ones, zeros = tf.ones([channels]), tf.zeros([channels])
            facts = {"scale": ones, "offset": zeros, "mean": zeros, "variance": ones}
            y, *_, mask = tf.raw_ops.FusedBatchNormV3(x=x, **facts)
            return tf.nn.relu(y), mask

        _, mask = tf.function(step)(tf.cast(tf.random.normal(shape), dtype))
        if not mask.shape.rank or not mask.shape.num_elements():
            pytest.skip("another kernel than oneDNN's")
        outputs = [shape, *[(channels,)] * 4, None]
        found = opaque_nbytes("_FusedBatchNormEx", 5, outputs, dtype)
        assert found == mask.shape.num_elements() * 4, channels


def test_what_is_traced_anew_for_the_same_is_told_by_what_it_takes():
    """As functions are whose variables have moved."""

    class Scale:
        def __repr__(self):
            return "all alike"

    def step(x, scale):
        return tf.reduce_sum(tf.exp(x))

    def traced(scale, *shape):
        return tf.function(step).get_concrete_function(tf.TensorSpec(shape), scale)

    first, second = Scale(), Scale()
    captured = capture(traced(first, None, 4), device=LOCAL, args=(tf.ones([8, 4]),))
    again = traced(first, None, 4)
    assert captured.holds_for(again, (tf.ones([5, 4]),))
    assert not captured.holds_for(again, (tf.ones([9, 4]),))
    assert not captured.holds_for(traced(first, 5, 4), (tf.ones([5, 4]),))
    assert not captured.holds_for(traced(second, None, 4), (tf.ones([5, 4]),))
