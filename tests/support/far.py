"""What the tests of `rebuild` run in a process of its own, beside a host process."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import tensorflow as tf

from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.rebuild import rebuild
from tfmem.graph.ir import Graph, Node, Value
from tfmem.runtime.host import host_process
from tfmem.runtime.variables import move_variable

SIDE = 1024  # a square of float32: 4 MiB
LAYERS, CALLS = 10, 3


def evict_activations() -> dict[str, float]:
    """Peaks and results of a chain of layers, as it was and with each activation sent away."""
    with host_process() as host:
        weight = tf.Variable(tf.ones([SIDE]))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                y = x
                for _ in range(LAYERS):
                    y = tf.sin(y * weight)
                loss = tf.reduce_sum(y)
            return loss, tape.gradient(loss, weight)

        x = tf.constant(np.random.default_rng(0).normal(size=[SIDE, SIDE]), tf.float32)
        captured = capture(step.get_concrete_function(x), device="CPU:0", args=[x])
        plain = rebuild(captured, in_order(captured.graph))
        swapped = rebuild(captured, in_order(with_swaps(captured, host)))
        before, peak = peak_of(plain, x)
        after, low_peak = peak_of(swapped, x)
        pairs = zip(before, after, strict=True)
        difference = max(float(tf.reduce_max(abs(a - b))) for a, b in pairs)
        return {"peak": peak, "swapped": low_peak, "difference": difference}


def move_and_rebuild() -> dict[str, object]:
    """A variable moves to the host between capture and rebuild; its update runs there."""
    with host_process() as host:
        weight = tf.Variable(tf.ones([SIDE, SIDE]))

        @tf.function
        def step(x):
            weight.assign_add(x)
            return tf.reduce_sum(weight)

        x = tf.ones([SIDE, SIDE])
        captured = capture(step.get_concrete_function(x), device="CPU:0", args=[x])
        before = used()
        move_variable(weight, host)
        freed = before - used()
        (name,) = captured.variables
        readers = {
            n for v, names in captured.graph.consumers.items() if v.node == name for n in names
        }
        nodes = tuple(
            dataclasses.replace(n, device=host) if n.name in readers or n.name == name else n
            for n in captured.graph.nodes
        )
        rewritten = rebuild(captured, Graph(nodes, captured.graph.outputs))
        sums = [float(rewritten(x)) for _ in range(2)]
        again = capture(rewritten_like(step).get_concrete_function(x), device="CPU:0", args=[x])
        devices = {again.graph.by_name[n].device for n in again.variables}
        nested = tf.function(lambda x: rewritten(x) + 0.0)
        return {
            "moved": captured.has_moved(),
            "freed": freed,
            "sums": [s / SIDE**2 for s in sums],
            "value": float(weight[0, 0]),
            "captured_there": devices == {host},
            "nested": float(nested(x)) / SIDE**2,
        }


def rewritten_like(function):
    return function._clone(None)


def used() -> int:
    gc.collect()
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def peak_of(function, x) -> tuple[list[tf.Tensor], float]:
    """Outputs and the peak beyond what was in use before, in values of 4 MiB.

    The least of a few calls: TensorFlow's RPC may hold what was sent for a moment more, until a
    thread of its own comes to (decision 0110).
    """
    function(x)
    start, peaks = used(), []
    for _ in range(CALLS):
        outputs = None
        tf.config.experimental.reset_memory_stats("CPU:0")
        outputs = function(x)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    return tf.nest.flatten(outputs), (min(peaks) - start) / (4 * SIDE**2)


def in_order(graph: Graph) -> Graph:
    """Each node of the near device waits for the one before it."""
    nodes = []
    last = ""
    for node in graph.nodes:
        if not node.is_input and "localhost" in node.device:
            after = dict.fromkeys((*node.after, last) if last else node.after)
            node, last = dataclasses.replace(node, after=tuple(after)), node.name
        nodes.append(node)
    return Graph(tuple(nodes), graph.outputs)


def with_swaps(captured: Captured, host: str) -> Graph:
    """Large values read more than four nodes later go to the host and come back just in time."""
    graph = captured.graph
    near = [n.name for n in graph.nodes if not n.is_input]
    position = {name: i for i, name in enumerate(near)}
    out_of: dict[str, list[Node]] = {}
    back_at: dict[str, list[Node]] = {}
    paced: dict[str, list[str]] = {}
    rewired: dict[tuple[str, Value], Value] = {}
    for value, readers in graph.consumers.items():
        if value.node not in position or graph.nbytes(value) < 4 * SIDE**2:
            continue
        made = position[value.node]
        late = [r for r in readers if position[r] > made + 4]
        if not late:
            continue
        size = (graph.nbytes(value),)
        out = Node(f"{value.node}/out", "Identity", (value,), (), size, host, value.node)
        trigger = near[position[late[0]] - 2]
        back = Node(f"{value.node}/in", "Identity", out.values, (trigger,), size, host, value.node)
        out_of.setdefault(value.node, []).append(out)
        back_at.setdefault(trigger, []).append(back)
        paced.setdefault(near[made + 3], []).append(out.name)
        rewired |= {(reader, value): Value(back.name) for reader in late}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(rewired.get((node.name, v), v) for v in node.inputs)
        after = (*node.after, *paced.get(node.name, ()))
        nodes.append(dataclasses.replace(node, inputs=inputs, after=after))
        nodes += out_of.get(node.name, []) + back_at.get(node.name, [])
    return Graph(tuple(nodes), graph.outputs)
