"""What `capture` and `rebuild` make of a function for a GPU, without one."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.captures import LOCAL, only
from tfmem.bridge import grappler
from tfmem.bridge.capture import capture
from tfmem.bridge.rebuild import rebuild
from tfmem.costs import history, profiler
from tfmem.costs.types import Copies
from tfmem.errors import UnsupportedFunctionError
from tfmem.functions.rewrite import route_of
from tfmem.graph.compact import PLAIN
from tfmem.graph.ir import Value
from tfmem.graph.verify import FROM_HOST, TO_HOST, verify
from tfmem.passes.for_plan import passes_of
from tfmem.passes.pipeline import run_passes
from tfmem.plan import Fetch, Plan, Transfer
from tfmem.runtime import devices

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of devices and what Grappler is told, as if a GPU were here; nothing can run on it."""
    known = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(devices, "names", lambda: (LOCAL, GPU))
    monkeypatch.setattr(grappler, "gpus", lambda: {GPU: known})


def pictures():
    kernel = tf.Variable(tf.ones([3, 3, 8, 16]))

    @tf.function
    def step(images, rows, text):
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME"))
            y = tf.nn.relu(tf.nn.max_pool2d(y, 2, 2, "SAME") + tf.ones([16]))
            loss = tf.reduce_mean(tf.gather(tf.reshape(y, [4, -1]), rows, axis=1))
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss, tf.strings.upper(text)

    return step, (tf.ones([4, 32, 32, 8]), tf.range(10), tf.constant("a"))


def test_a_gpus_graph_has_its_layouts_and_leaves_on_the_host_what_its_kernels_do(a_gpu):
    step, args = pictures()
    concrete = step.get_concrete_function(*args)
    captured = capture(concrete, device="GPU:0", args=args)
    verify(captured.graph)
    (convolution,) = [n for n in captured.graph.nodes if n.op in ("Conv2D", "_FusedConv2D")]
    assert captured.node_defs[convolution.name].attr["data_format"].s == b"NCHW"
    turned = [n for n in captured.graph.nodes if n.op == "Transpose"]
    assert turned
    assert all(node.nbytes[0] > 0 for node in turned)
    by_name = captured.graph.by_name
    assert by_name["images"].nbytes == (4 * 32 * 32 * 8 * 4,)
    assert by_name["rows"].nbytes == (0,)  # int32 arguments stay in the host's memory
    assert captured.copied == ((GPU, 4 * 10),)  # and a kernel reads a copy of it
    assert only(captured, "StringUpper").device == LOCAL  # which a GPU has no kernel for
    assert "MaxPool" not in {by_name[name].op for name in captured.workspace}


def test_a_loop_runs_where_the_user_puts_it(a_gpu):
    count = tf.Variable(0.0)

    @tf.function
    def counted(x):
        total = tf.reduce_sum(x)
        with tf.device("/CPU:0"):
            for _ in tf.range(3):
                total = tf.sin(total)
        for _ in tf.range(3):
            x = tf.cos(x)
            with tf.device("/CPU:0"):
                count.assign_add(1.0)
        return x, total

    concrete = counted.get_concrete_function(tf.ones([8, 64]))
    captured = capture(concrete, device="GPU:0", args=(tf.ones([8, 64]),))
    nodes = [n for _, body in captured.bodies.values() for n in body.graph.nodes]
    places = {n.op: n.device for n in nodes if n.op in ("Sin", "Cos", "AssignAddVariableOp")}
    assert places == {"Sin": LOCAL, "Cos": GPU, "AssignAddVariableOp": LOCAL}


def test_a_branchs_kernels_read_copies_of_what_the_host_has(a_gpu):
    @tf.function
    def picked(x, rows, others):
        return tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: tf.gather(x, rows),
            lambda: x * tf.cast(tf.shape(others)[0], tf.float32),
        )

    args = (tf.ones([8, 64]), tf.range(8), tf.range(100))
    captured = capture(picked.get_concrete_function(*args), device="GPU:0", args=args)
    assert captured.copied == ((GPU, 4 * 8),)


def test_a_gpus_kernels_tell_what_crosses_to_the_host_and_back(a_gpu):
    count = tf.Variable(1, dtype=tf.int64)

    @tf.function
    def dropped(x):
        seed = tf.stack([count, count])
        return x * tf.random.stateless_uniform([8, 64], seed)

    concrete = dropped.get_concrete_function(tf.ones([8, 64]))
    captured = capture(concrete, device="GPU:0", args=(tf.ones([8, 64]),))
    seeds = only(captured, "StatelessRandomGetKeyCounter")
    assert (seeds.on_host, seeds.from_host, seeds.nbytes) == ((0,), (0, 1), (8, 16))
    numbers = only(captured, "StatelessRandomUniformV2")
    assert (numbers.on_host, numbers.from_host) == ((0, 3), ())
    form = captured.graph.form
    pair = form.number_of(Value(only(captured, "Pack").name))
    assert form.on_host[form.number[seeds.name]] == (pair,)
    assert form.on_host[form.number[numbers.name]] == ()  # its shape is there already


def test_what_a_gpus_kernel_passes_on_in_the_memory_of_the_host_is_another_buffer_on_it(a_gpu):
    @tf.function
    def picked(x):
        _, rows = tf.math.top_k(x, 4)
        return tf.gather(tf.reshape(x, [-1]), tf.reshape(rows, [-1]))

    args = (tf.ones([8, 64]),)
    captured = capture(picked.get_concrete_function(*args), device="GPU:0", args=args)
    (rows,) = (n for n in captured.graph.nodes if n.op == "Reshape" and n.inputs[0].index == 1)
    assert (rows.on_host, rows.from_host, rows.nbytes) == ((0, 1), (0,), (128,))
    form = captured.graph.form
    assert form.kind[form.number[rows.name]] == PLAIN


def test_copies_of_a_gpu_are_its_own_kernels_unless_others_are_faster(a_gpu, empty_cache):
    step, args = pictures()
    captured = capture(step.get_concrete_function(*args), device="GPU:0", args=args)
    graph = captured.graph
    value = next(n for n in graph.nodes if n.op in ("Conv2D", "_FusedConv2D")).values[0]
    users = [
        n for n in graph.consumers[value] if graph.position[n] > graph.position[value.node] + 2
    ]
    plan = Plan(
        order=tuple(node.name for node in graph.nodes),
        evictions=(Transfer(value, (Fetch(tuple(users), value.node),)),),
        device=GPU,
        host=LOCAL,
    )
    rewritten = rebuild(
        captured, run_passes(graph, passes_of(plan, route_of(plan.device, plan.host)))
    )
    history.keep_probe(Copies(on_device=False), profiler.machine(), GPU, LOCAL)
    other = run_passes(graph, passes_of(plan, route_of(plan.device, plan.host)))
    assert [node.device for node in other.nodes if node.origin] == [LOCAL, LOCAL]
    operations = {op.type: op for op in rewritten.function.graph.get_operations()}
    out, back = operations[TO_HOST], operations[FROM_HOST]
    assert out.device == back.device == GPU
    assert back.inputs[0] is out.outputs[0]
    assert {op.name for op in back.outputs[0].consumers()} == set(users)
    assert [op.name for op in back.control_inputs] == [value.node]


def test_a_loop_over_a_data_set_that_takes_a_gpus_memory_is_refused(a_gpu):
    weight = tf.Variable(tf.ones([256, 256]))

    @tf.function
    def step(rows):
        total = tf.constant(0.0)
        for x in tf.data.Dataset.from_tensor_slices(rows):
            total += tf.reduce_sum(x @ weight)
        return total

    args = (tf.ones([4, 256, 256]),)
    concrete = step.get_concrete_function(*args)
    with pytest.raises(UnsupportedFunctionError, match=r"runs functions of data sets, whose .*MiB"):
        capture(concrete, device="GPU:0", args=args)
    assert capture(concrete, device="CPU:0", args=args).workspace["ReduceDataset"] > 2**18
