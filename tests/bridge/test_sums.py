"""Long sums in parts: the same numbers, and fewer values there at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tfmem.bridge import sums
from tfmem.bridge.capture import capture
from tfmem.costs.static import static_costs
from tfmem.costs.types import Costs, Rates
from tfmem.plan import Plan
from tfmem.planning.order.memory_order import memory_order
from tfmem.simulation.original import joined
from tfmem.simulation.simulate import simulate

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def graph_of(function: Callable[..., tf.Tensor], *specs: tf.TensorSpec) -> tf.compat.v1.GraphDef:
    return tf.function(function).get_concrete_function(*specs).graph.as_graph_def()


def run(graph_def: tf.compat.v1.GraphDef, values: list[tf.Tensor]) -> tf.Tensor:
    """The value of the node "sum", in a graph that Grappler leaves alone."""
    names = [f"x{i}:0" for i in range(len(values))]
    *_, found = tf.import_graph_def(
        graph_def, dict(zip(names, values, strict=True)), ["sum:0"], name=""
    )
    return found


@pytest.mark.parametrize("kind", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=str)
@pytest.mark.parametrize("count", [*range(9, 19), 24, 25, 26, 64, 65])
def test_a_sum_in_parts_is_the_same_bitwise(count: int, kind: tf.DType) -> None:
    random = np.random.default_rng(count)
    scales = 10.0 ** random.uniform(-3, 3, (count, 1))
    values = [tf.cast(row, kind) for row in random.normal(size=(count, 999)) * scales]
    specs = [tf.TensorSpec(value.shape, kind, name=f"x{i}") for i, value in enumerate(values)]
    graph_def = graph_of(lambda *x: tf.add_n(list(x), name="sum"), *specs)
    whole, ops = [], [node.op for node in graph_def.node]
    for _ in range(2):
        call = tf.function(lambda *x: run(graph_def, list(x)))
        whole.append(tf.cast(call(*values), tf.float64).numpy())
        sums.split(graph_def, {kind.as_datatype_enum})
    np.testing.assert_array_equal(*whole)
    found = [node.op for node in graph_def.node]
    assert ops.count("AddN") == 1
    assert found.count("AddN") - 1 == found.count("AddV2") == max(0, (count - 2) // 8)


def test_what_is_no_long_sum_of_numbers_stays() -> None:
    specs = [tf.TensorSpec((3,), tf.int32, name=f"x{i}") for i in range(20)]
    graph_def = graph_of(lambda *x: tf.add_n(list(x), name="sum"), *specs)
    before = graph_def.SerializeToString(deterministic=True)
    sums.split(graph_def, {tf.float32.as_datatype_enum})
    assert graph_def.SerializeToString(deterministic=True) == before


def test_a_weight_that_is_used_at_many_times_needs_few_of_its_gradients_at_once() -> None:
    weight = tf.Variable(tf.eye(256))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.convert_to_tensor(weight)
            for _ in range(40):
                x = tf.tanh(tf.matmul(x, value))
            loss = tf.reduce_sum(x)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    concrete = step.get_concrete_function(tf.TensorSpec((4, 256)))
    graph = capture(concrete, device="CPU:0").graph
    plan = Plan(order=memory_order(graph, Costs(), DEVICE), device=DEVICE)
    gradient = 4 * 256 * 256
    assert simulate(graph, Costs(), plan).peak_bytes < 13 * gradient

    rates = Rates(1e9, 1e9, 0.0)
    priced, whole_priced = (
        static_costs(one, flops={}, device=DEVICE, rates=rates)
        for one in (graph, joined(graph, Costs())[0])
    )
    whole, costs = joined(graph, priced)
    (long,) = (node for node in whole.nodes if node.op == "AddN")
    assert len(long.inputs) == 40
    parts = {*priced.seconds} - {*whole_priced.seconds}
    assert sum(priced.seconds[name] for name in (long.name, *parts)) == 57 * gradient / 1e9
    assert costs.seconds[long.name] == pytest.approx(49 * gradient / 1e9)
    assert whole_priced.seconds[long.name] == pytest.approx(49 * gradient / 1e9)
    assert simulate(whole, Costs(), Plan(device=DEVICE)).peak_bytes > 40 * gradient
    assert joined(whole, costs) == (whole, costs)
