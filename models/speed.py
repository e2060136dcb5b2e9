"""How long tfmem takes to capture, plan and rebuild, by the size of the graph.

    python -m models.speed --repeats=1,2,5

The graph is the train step of tf_keras' ResNet-50 with Adam, unrolled over a few batches to make it
larger. Tracing is TensorFlow's own and is timed apart.
"""

from __future__ import annotations

import os
import time
from typing import Any

from absl import app, flags

from models.table import show_count, show_seconds, table

flags.DEFINE_list("repeats", ["1"], "Batches over which the step is unrolled; a row for each.")
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


def main(_: list[str]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
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
