"""How long tfmem takes to capture, plan and rebuild, by the size of the graph.

    python -m models.bench.speed --repeats=1,2,5
    python -m models.bench.speed --depths=302,602
    python -m models.bench.speed --chain=10000,100000

The graph of the first is the train step of tf_keras' ResNet-50 with Adam, unrolled over a few
batches to make it larger; it is ordered. Tracing is TensorFlow's own and is timed apart. The other
two are planned for a budget, a part of the original's peak, with recomputation: ResNets as deep as
asked, and a made-up chain of layers, forwards and backwards.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from absl import app, flags

from models.bench.table import show_bytes, show_count, show_seconds, table

if TYPE_CHECKING:
    import tfmem
    from tfmem.costs.types import Costs
    from tfmem.graph.ir import Graph
    from tfmem.planning.request import Request

flags.DEFINE_list("repeats", ["1"], "Batches over which the step is unrolled; a row for each.")
flags.DEFINE_list("depths", [], "Depths, 3n + 2, of ResNets to plan for a budget.")
flags.DEFINE_list("chain", [], "Nodes of chains to plan for a budget.")
flags.DEFINE_float("share", 0.7, "The budget over the original's peak.")
flags.DEFINE_integer("size", 64, "Height and width of the images.")
flags.DEFINE_integer("batch", 4, "Images in a batch.")


def make_step(repeats: int) -> Any:
    """A train step of ResNet-50 that trains on `repeats` batches, one after another."""
    import tensorflow as tf
    import tf_keras

    size = flags.FLAGS.size
    model = tf_keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classes=10)
    optimizer = tf_keras.optimizers.Adam(1e-4)
    losses = tf_keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in range(repeats):
            with tf.GradientTape() as tape:
                loss = losses(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def time_repeats(repeats: int) -> tuple[int, float, float]:
    """Nodes as traced, seconds to trace, and seconds from the trace to the rewritten function."""
    import tensorflow as tf

    import tfmem

    size, batch = flags.FLAGS.size, flags.FLAGS.batch
    images, labels = tf.zeros([batch, size, size, 3]), tf.zeros([batch], tf.int32)
    step = make_step(repeats)
    start = time.perf_counter()
    traced = step.get_concrete_function(images, labels)
    tracing = time.perf_counter() - start
    definitions = traced.graph.as_graph_def()
    nodes = len(definitions.node) + sum(len(f.node_def) for f in definitions.library.function)

    optimized = tfmem.optimize(step, techniques=["order"], strategy=tfmem.TensorFlowMem())
    start = time.perf_counter()
    optimized.get_concrete_function(images, labels)
    return nodes, tracing, time.perf_counter() - start


def plan_resnet(depth: int) -> tuple[int, float, tfmem.Plan]:
    """Nodes of a captured ResNet's train step, seconds to plan it for the budget, the plan."""
    import tensorflow as tf

    from models.zoo import resnet
    from tfmem.bridge.capture import capture
    from tfmem.functions.pricing import price
    from tfmem.passes.prune import Prune

    sys.setrecursionlimit(100 * depth)  # Keras walks the layers by recursion
    task = resnet.build(resnet.Config(depth=depth, width=8, batch=4, side=32))
    batch = next(iter(task.batches))
    captured = capture(tf.function(task.step).get_concrete_function(*batch), device="CPU:0")
    graph = Prune()(captured.graph)
    device = graph.nodes[-1].device
    return _planned(graph, price(captured, graph, _request(device), "static"), device)


def plan_chain(nodes: int) -> tuple[int, float, tfmem.Plan]:
    """As `plan_resnet` for layers of four nodes, each of which keeps a value for its gradient."""
    from tfmem.costs.types import Costs
    from tfmem.graph.ir import ARG, Graph, Node, Value

    size, device = 2**16, "/device:CPU:0"
    made = [Node("x", ARG, nbytes=(size,), device=device)]
    seconds = {}

    def add(name: str, op: str, *inputs: str) -> None:
        values = tuple(Value(text) for text in inputs)
        made.append(Node(name, op, values, nbytes=(size,), device=device))
        seconds[name] = 1e-4 if op == "MatMul" else 1e-5

    layers = max(2, nodes // 4)
    for i in range(layers):
        add(f"product{i}", "MatMul", f"out{i - 1}" if i else "x")
        add(f"out{i}", "Tanh", f"product{i}")
    add("gradient", "Neg", f"out{layers - 1}")
    last = "gradient"
    for i in reversed(range(layers)):
        add(f"slope{i}", "TanhGrad", f"out{i}", last)
        add(f"back{i}", "MatMul", f"slope{i}")
        last = f"back{i}"
    graph = Graph(tuple(made), (Value(last),))
    return _planned(graph, Costs(seconds), device)


def _request(device: str) -> Request:
    from tfmem.planning.request import Request

    return Request(device=device, techniques=frozenset(("order", "recompute")))


def _planned(graph: Graph, costs: Costs, device: str) -> tuple[int, float, tfmem.Plan]:
    from tfmem.planning.search import choose

    request = _request(device)
    before = choose(graph, costs, request).plan.baseline_peak_bytes
    start = time.perf_counter()
    budget = int(flags.FLAGS.share * before)
    found = choose(graph, costs, dataclasses.replace(request, budget=budget))
    return len(graph), time.perf_counter() - start, found.plan


def time_planning(kind: str, plan: Any, sizes: list[str]) -> str:
    """A table of planning seconds by the size of the graph."""
    rows = []
    for size in map(int, sizes):
        nodes, seconds, found = plan(size)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rows.append(
            (
                kind,
                show_count(nodes),
                show_seconds(seconds),
                f"{found.peak_bytes / found.baseline_peak_bytes:.2f}",
                f"{found.step_seconds / found.baseline_step_seconds:.2f}",
                str(len(found.recomputations)),
                show_bytes(resident),
            )
        )
        print(f"  {kind}, {nodes} nodes: {seconds:.2f} s", flush=True)
    header = ("graph", "nodes", "planning", "peak", "time", "recomputed", "resident at most")
    return table(header, rows)


def main(_: list[str]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if flags.FLAGS.chain:
        print(time_planning("chain", plan_chain, flags.FLAGS.chain))
    if flags.FLAGS.depths:
        print(time_planning("ResNet", plan_resnet, flags.FLAGS.depths))
    if flags.FLAGS.chain or flags.FLAGS.depths:
        return
    rows = []
    for repeats in map(int, flags.FLAGS.repeats):
        nodes, tracing, tfmem_seconds = time_repeats(repeats)
        rows.append(
            (str(repeats), show_count(nodes), show_seconds(tracing), show_seconds(tfmem_seconds))
        )
        print(f"  {repeats} batches, {nodes} nodes: {tfmem_seconds:.2f} s", flush=True)
    print(table(("batches", "nodes", "tracing", "capture + plan + rebuild"), rows))


if __name__ == "__main__":
    app.run(main)
