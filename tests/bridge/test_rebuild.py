"""What `capture` reads and `rebuild` writes computes the same as the original function."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from tests.support.functions import CASES, Case, matrix
from tfmem.bridge.calls import flat_arguments
from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.rebuild import rebuild
from tfmem.errors import RewriteError
from tfmem.graph.ir import Graph, Node, Value
from tfmem.runtime.limited import run_limited


def unchanged(captured: Captured) -> Graph:
    return captured.graph


def in_strict_order(captured: Captured) -> Graph:
    """Each node waits for the one before it."""
    nodes = [node for node in captured.graph.nodes if node.is_input]
    last = ""
    for node in captured.graph.nodes:
        if not node.is_input:
            after = (*node.after, last) if last else node.after
            nodes.append(dataclasses.replace(node, after=after))
            last = node.name
    return Graph(tuple(nodes), captured.graph.outputs)


def with_copies(captured: Captured) -> Graph:
    """Half of all values with a size are read through a copy of a copy."""
    choose = random.Random(0)
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in captured.graph.nodes:
        inputs = tuple(copies.get(value, value) for value in node.inputs)
        nodes.append(dataclasses.replace(node, inputs=inputs))
        for value, nbytes in zip(node.values, node.nbytes, strict=True):
            if nbytes and choose.random() < 0.5 and node.op != "_Variable":
                out = Node(f"{node.name}/out{value.index}", "Identity", (value,), (), (nbytes,),
                           node.device, node.name)  # fmt: skip
                back = Node(f"{node.name}/back{value.index}", "Identity", out.values, (),
                            (nbytes,), node.device, node.name)  # fmt: skip
                nodes += [out, back]
                copies[value] = Value(back.name)
    return Graph(tuple(nodes), captured.graph.outputs)


def run(function, case: Case, steps: int = 3):
    """Outputs of some steps and the variables after them, from the state the case starts in."""
    before = [variable.numpy() for variable in case.variables]
    fixed = case.renew() if case.renew else case.args
    outputs = [opened(function(*fixed, **case.kwargs)) for _ in range(steps)]
    after = [variable.numpy() for variable in case.variables]
    for variable, value in zip(case.variables, before, strict=True):
        variable.assign(value)
    return outputs, after


def opened(outputs):
    """Keras 3 returns its logs in an Optional, a variant that cannot be compared."""
    return outputs.get_value() if isinstance(outputs, tf.experimental.Optional) else outputs


def assert_same(one, other) -> None:
    tf.nest.assert_same_structure(one, other, expand_composites=True)
    for a, b in zip(tf.nest.flatten(one, True), tf.nest.flatten(other, True), strict=True):
        if a is None or isinstance(a, (str, bytes)):
            assert a == b
        elif np.asarray(a).dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


def captured_of(case: Case) -> tuple[object, Captured]:
    args = case.renew() if case.renew else case.args
    concrete = case.function.get_concrete_function(*args, **case.kwargs)
    flat = flat_arguments(concrete, args, case.kwargs)
    return concrete, capture(concrete, device="CPU:0", args=flat)


@pytest.mark.parametrize("rewrite", [unchanged, in_strict_order, with_copies])
@pytest.mark.parametrize("name", CASES)
def test_same_results(name, rewrite):
    case = CASES[name]()
    expected = run(case.function, case)
    _, captured = captured_of(case)
    rewritten = rebuild(captured, rewrite(captured))
    assert_same(expected, run(rewritten, case))


# Keras.


def small_model(keras):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            # A bias before a norm has a gradient of nothing but rounding, which Adam blows up.
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, keras.optimizers.Adam(0.01)


@pytest.mark.parametrize("package", ["tf_keras", "keras"])
def test_train_step_of_keras(package):
    keras = importlib.import_module(package)
    model, loss_of, optimizer = small_model(keras)
    variables = model.trainable_variables
    images, labels = matrix(0, 4, 8, 8, 3), tf.constant([0, 1, 2, 0])

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    optimizer.build(variables)
    captured = capture(step.get_concrete_function(images, labels), device="CPU:0")
    state = list(captured.variables.values())
    assert len(state) >= 3 * len(variables)
    case = Case(step, (images, labels), variables=state)
    expected = run(step, case)
    assert_same(expected, run(rebuild(captured, in_strict_order(captured)), case))


@pytest.mark.parametrize("package", ["tf_keras", "keras"])
def test_train_function_of_keras(package):
    """What `fit` calls: an iterator for argument, metrics, the step in a function of its own."""
    keras = importlib.import_module(package)
    model, loss, optimizer = small_model(keras)
    options = {"jit_compile": False} if package == "keras" else {}
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    data = tf.data.Dataset.from_tensors((matrix(0, 4, 8, 8, 3), tf.constant([0, 1, 2, 0])))
    model.fit(data, verbose=0, shuffle=False)
    function = model.train_function
    if package == "keras":  # a plain closure around the tf.function
        cells = (cell.cell_contents for cell in function.__closure__)
        (function,) = (item for item in cells if hasattr(item, "get_concrete_function"))

    def renew():
        return (iter(data.repeat()),)

    captured = capture(function.get_concrete_function(*renew()), device="CPU:0")
    case = Case(function, renew=renew, variables=list(captured.variables.values()))
    expected = run(function, case)
    assert_same(expected, run(rebuild(captured, in_strict_order(captured)), case))


# Calls.


def rebuilt(name: str):
    case = CASES[name]()
    _, captured = captured_of(case)
    return case, rebuild(captured, captured.graph)


def disables_grappler(serialized: bytes) -> bool:
    config = config_pb2.ConfigProto.FromString(serialized)
    return config.graph_options.rewrite_options.disable_meta_optimizer


def test_callers_options_are_restored():
    case, rewritten = rebuilt("variables")
    before = context.context().function_call_options
    rewritten(*case.args)
    assert context.context().function_call_options is before
    with pytest.raises(tf.errors.InvalidArgumentError, match="Condition x > y"):
        rebuilt("failing")[1](tf.constant(-1.0))
    assert context.context().function_call_options is before
    assert not disables_grappler(before.config_proto_serialized)


def test_inside_another_function_it_stays_a_call_without_grappler():
    case, rewritten = rebuilt("variables")
    outer = tf.function(lambda x: rewritten(x)[0] + 1.0)
    graph = outer.get_concrete_function(*case.args).graph
    (call,) = [op for op in graph.get_operations() if "Call" in op.type]
    assert disables_grappler(call.get_attr("config_proto"))
    assert rewritten.function.function_def.attr["_noinline"].b
    expected = run(case.function, case)
    results = [float(outer(*case.args)) - 1.0 for _ in range(3)]
    np.testing.assert_allclose(results, [float(loss) for loss, _ in expected[0]], rtol=1e-5)


def test_rebuilt_while_another_function_is_traced():
    case = CASES["variables"]()
    _, captured = captured_of(case)
    expected = run(case.function, case)
    made = []

    @tf.function
    def outer(x):
        made.append(rebuild(captured, captured.graph))
        return made[0](x)

    assert_same(expected, run(outer, case))


def test_arguments_that_do_not_fit_are_refused():
    case, rewritten = rebuilt("structures")
    with pytest.raises(TypeError):
        rewritten()
    with pytest.raises(TypeError):
        rewritten(*case.args, flag=False)  # another constant than was traced


def test_functions_leave_with_the_rewritten_one():
    names = context.context().list_function_names
    case = CASES["nested_loops"]()
    _, captured = captured_of(case)
    before = set(names())
    rewritten = [rebuild(captured, captured.graph) for _ in range(3)]
    for function in rewritten:
        function(*case.args)
    assert len(set(names()) - before) >= 3 * 3
    del function, rewritten
    gc.collect()
    assert set(names()) <= before


def test_it_outlives_the_original():
    case, rewritten = rebuilt("while_loop")
    expected = run(case.function, case)
    case.function = None
    gc.collect()
    assert_same(expected, run(rewritten, case))


# New nodes.


def test_clones_and_barriers():
    """The loop runs again behind a barrier, and the clone's results are those returned."""
    case = CASES["nested_loops"]()
    _, captured = captured_of(case)
    graph = captured.graph
    loop = next(node for node in graph.nodes if node.op in ("While", "StatelessWhile"))
    barrier = Node("barrier", "NoOp", after=(loop.name,), device=loop.device, origin=loop.name)
    clone = dataclasses.replace(loop, name="again", after=("barrier",), origin=loop.name)

    def moved(values):
        return tuple(Value("again", v.index) if v.node == loop.name else v for v in values)

    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(dataclasses.replace(node, inputs=moved(node.inputs)))
        nodes += [barrier, clone] if node is loop else []
    rewritten = rebuild(captured, Graph(tuple(nodes), moved(graph.outputs)))
    assert_same(run(case.function, case), run(rewritten, case))
    made = {op.name: op for op in rewritten.function.graph.get_operations()}
    assert made["barrier"].get_attr("_tfmem_id") != made["again"].get_attr("_tfmem_id")


def test_turns_of_a_loop_do_not_overlap():
    case = CASES["nested_loops"]()
    _, captured = captured_of(case)
    loop = next(node for node in captured.graph.nodes if node.op in ("While", "StatelessWhile"))
    body = captured.bodies[loop.name][1]
    assert captured.node_defs[loop.name].attr["parallel_iterations"].i == 10
    for bodies in ({}, {body.function: (body, body.graph)}):
        rewritten = rebuild(captured, captured.graph, bodies)
        made = rewritten.function.graph.get_operation_by_name(loop.name)
        assert made.get_attr("parallel_iterations") == 1
        assert_same(run(case.function, case), run(rewritten, case))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("new", "Identity"), r"new \(Identity\) is new but names no origin"),
        (Node("new", "Relu", origin="nowhere"), "made from nowhere, which is no node"),
        (Node("x", "_Arg"), "x is an input that the captured function lacks"),
    ],
)
def test_broken_rewrites_are_refused(node, message):
    _, captured = captured_of(CASES["constants_and_no_arguments"]())
    with pytest.raises(RewriteError, match=message):
        rebuild(captured, Graph((*captured.graph.nodes, node), captured.graph.outputs))


# Other devices.


@pytest.mark.memory
def test_copies_on_another_process_free_memory_here():
    outcome = run_limited(
        "tests.support.far:evict_activations", limit_bytes=400 * 2**20, timeout=120
    )
    assert outcome.status == "ok", outcome.output
    assert outcome.result["peak"] > 18
    assert outcome.result["swapped"] < 5
    assert outcome.result["difference"] == 0


@pytest.mark.memory
def test_a_variable_that_moved_is_read_and_updated_where_it_is():
    outcome = run_limited(
        "tests.support.far:move_and_rebuild", limit_bytes=400 * 2**20, timeout=120
    )
    assert outcome.status == "ok", outcome.output
    freed = outcome.result.pop("freed")
    assert freed > 0.9 * 4 * 2**20
    assert outcome.result == {
        "moved": True,
        "sums": [2.0, 3.0],
        "value": 3.0,
        "captured_there": True,
        "nested": 4.0,
    }
