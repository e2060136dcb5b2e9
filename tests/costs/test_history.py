"""Costs that were measured: from the user's own steps, kept, and never another machine's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tfmem.bridge import traces
from tfmem.costs import history, probes, profiler, store
from tfmem.costs.types import Link, Measured
from tfmem.functions import pricing
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning.request import Request

pytestmark = pytest.mark.usefixtures("empty_cache")

LAYERS = 6
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
X = tf.random.stateless_normal([256, 128], [1, 2])


@pytest.fixture
def weights() -> list[tf.Variable]:
    return [
        tf.Variable(0.1 * tf.random.stateless_normal([128, 128], [i, 3])) for i in range(LAYERS)
    ]


def make(weights: list[tf.Variable], **options: object) -> tfmem.Optimized:
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.gelu(tf.matmul(y, weight))
            loss = tf.reduce_mean(y)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    return tfmem.optimize(step, **options)


def budget(weights: list[tf.Variable]) -> int:
    return int(0.7 * make(weights).plan(X).baseline_peak_bytes)


def files(kind: str) -> list[Path]:
    path = store.path_of(kind, "any")
    assert path is not None
    return list(path.parent.glob("*.json"))


def test_steps_are_measured_once_and_the_numbers_stay(weights) -> None:
    start = [weight.numpy() for weight in weights]
    most = budget(weights)
    by_size = make(weights, budget=most, profile="static")
    expected = [float(by_size(X)) for _ in range(6)]
    for weight, value in zip(weights, start, strict=True):
        weight.assign(value)
    step = make(weights, budget=most, profile="measured")
    by_probes = step.plan(X)
    assert by_probes.step_seconds != by_size.plan(X).step_seconds
    np.testing.assert_array_equal([float(step(X)) for _ in range(6)], expected)
    (path,) = files("profiles")
    seconds = json.loads(path.read_text())["seconds"]
    plan = step.plan(X)
    assert sum(seconds.values()) > 0
    assert plan.step_seconds != by_probes.step_seconds
    assert plan.budget == most
    for profile in ("auto", "measured"):
        history.IN_PROCESS.facts.clear()
        assert make(weights, budget=most, profile=profile).plan(X) == plan
    assert make(weights, budget=most, profile="static").plan(X) == by_size.plan(X)


def test_steps_that_cannot_be_measured_keep_their_plan(
    weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step, functions = make(weights, budget=budget(weights), profile="measured"), []
    tf.profiler.experimental.start(str(tmp_path))  # the user's, of which there is one
    try:
        for _ in range(8):
            step(X)
            functions.append(step.get_concrete_function(X))
    finally:
        tf.profiler.experimental.stop(save=False)
    assert all(function is functions[0] for function in functions)
    assert caplog.text.count("profiler is in use") == 1


@pytest.mark.parametrize(("watch", "share"), [(True, 0.9), (False, 0.9), (True, 2.0)])
def test_random_ops_with_a_seed_go_on_with_their_numbers_in_the_measured_plan(
    weights, watch: bool, share: float
) -> None:
    """A new function has new kernels, which count from the beginning; the original has its own."""

    def step(x):
        weights[0].assign_add(0.1 * tf.random.normal(weights[0].shape, seed=3))
        for weight in weights:
            x = tf.nn.dropout(tf.tanh(tf.matmul(x, weight)), 0.5, seed=5)
        return tf.reduce_sum(tf.square(x))

    start = [weight.numpy() for weight in weights]
    plain = tf.function(step)
    expected = [float(plain(X)) for _ in range(7)]
    assert len(set(expected)) == 7
    end = [weight.numpy() for weight in weights]
    for weight, value in zip(weights, start, strict=True):
        weight.assign(value)
    most = int(share * tfmem.optimize(step, profile="static").plan(X).baseline_peak_bytes)
    measured = tfmem.optimize(step, budget=most, profile="measured", watch=watch)
    np.testing.assert_array_equal([float(measured(X)) for _ in range(7)], expected)
    assert files("profiles")
    for weight, value in zip(weights, end, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda facts: facts | {"machine": "a Cray-1"}, "another machine (a Cray-1"),
    (lambda facts: {"seconds": facts["seconds"]}, "is damaged"),
    (lambda facts: facts | {"seconds": {"a": "long"}}, "is damaged"),
    (lambda facts: facts | {"seconds": 3}, "is damaged"),
    (lambda facts: facts | {"workspace": {"a": None}}, "is damaged"),
    (lambda facts: facts | {"host_seconds": {"a": -1.0}}, "is damaged"),
]


def test_a_foreign_or_damaged_profile_is_reported_and_not_used(
    weights, caplog: pytest.LogCaptureFixture
) -> None:
    most = budget(weights)
    step = make(weights, budget=most, profile="measured")
    by_size = step.plan(X)
    for _ in range(5):
        step(X)
    (path,) = files("profiles")
    text = path.read_text()
    for change, message in CHANGES:
        path.write_text(json.dumps(change(json.loads(text))))
        history.IN_PROCESS.facts.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tfmem"):
            plan = make(weights, budget=most).plan(X)
        assert message in caplog.text
        assert plan.step_seconds == by_size.step_seconds


MACHINE = history.Machine("this one")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("1000", "1001"),
        lambda text: text.replace("1000", "NaN"),
        lambda text: text[:-1],
        lambda text: text.replace('"sum"', '"sun"'),
        lambda text: "[" * 100_000,
    ],
)
def test_what_is_not_what_was_kept_is_reported_and_not_used(
    damage, caplog: pytest.LogCaptureFixture
) -> None:
    """A digit that has changed, which nothing but a sum can tell."""
    graph = parse("x = _Arg() [8] @/device:CPU:0\nreturn x:0")
    lesson = history.Lesson(graph, MACHINE)
    history.keep_probe(Link(1e9, 1e9, 1000.0, 0.0), MACHINE, "here")
    history.keep_measured(graph, "cpu", MACHINE, Measured({"x": 1000.0}))
    lesson.keep(1000)
    lesson.begin(1000)
    paths = [*store.files()]
    assert len(paths) == 4
    for path in paths:
        path.write_text(damage(path.read_text()))
    history.IN_PROCESS.facts.clear()
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert history.probed(Link, MACHINE, "here") is None
        assert history.measured_of(graph, "cpu", MACHINE) is None
        assert lesson.nbytes() == lesson.of_the_dead() == 0
    for path in paths:
        assert f"{path} is damaged" in caplog.text


def test_a_measurement_of_something_else_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    for place, facts in enumerate(("here", "there")):
        history.keep_probe(Link(1e9 + place, 1e9, 1e-4, 0.0), MACHINE, facts)
    first, second = store.files()
    first.write_bytes(second.read_bytes())
    history.IN_PROCESS.facts.clear()
    with caplog.at_level(logging.WARNING, "tfmem"):
        found = [history.probed(Link, MACHINE, facts) for facts in ("here", "there")]
    assert found.count(None) == 1
    assert f"{first} is damaged" in caplog.text


def test_a_profiler_in_use_is_left_alone(
    weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = make(weights, budget=budget(weights), profile="measured")
    tf.profiler.experimental.start(str(tmp_path / "users"))
    with caplog.at_level(logging.WARNING, "tfmem"):
        losses = [float(step(X)) for _ in range(3)]
    tf.profiler.experimental.stop()
    assert caplog.text.count("profiler is in use") == 1
    assert losses[0] != losses[1]
    assert list((tmp_path / "users").rglob("*.xplane.pb"))
    assert not files("profiles")


def test_the_time_of_a_node_is_what_its_kernel_took() -> None:
    @tf.function
    def work(x):
        large = tf.matmul(x, x, name="large")
        return tf.reduce_sum(large) + tf.tanh(x[0, 0], name="small")

    x = tf.random.stateless_normal([512, 512], [1, 2])
    work(x)
    assert profiler.PROFILER.start()
    work(x)
    names = {op.name for op in work.get_concrete_function(x).graph.get_operations()}
    seconds = profiler.PROFILER.stop(CPU, names).seconds
    assert not any(name.startswith("ExecutorState") for name in seconds)
    assert 1e-4 < seconds["large"] < 1
    assert seconds["small"] < seconds["large"]


def test_nodes_of_a_data_set_with_the_names_of_a_functions_do_not_count() -> None:
    def made(i):
        return tf.reduce_sum(tf.random.stateless_normal([300, 300], [i, 1]), name="total")

    @tf.function
    def work(x, y):
        return tf.reduce_sum(2.0 * x, name="total") + y

    x, rows = tf.ones([4, 4]), iter(tf.data.Dataset.range(10**6).map(made).prefetch(64))
    for _ in range(2):
        assert profiler.PROFILER.start()
        for _ in range(200):
            work(x, next(rows))
        nodes = {
            node.name
            for node in work.get_concrete_function(x, next(rows)).graph.as_graph_def().node
        }
        seconds = profiler.PROFILER.stop(CPU, nodes).seconds
    assert not any("normal" in name for name in seconds)
    assert seconds["total"] < 20 * seconds["add"]


def test_of_a_gpu_its_kernels_count_and_not_what_launches_them(tmp_path: Path) -> None:
    """Seconds of nodes: of the GPU its kernels', of the host those of every launch."""
    space, gpu = traces.xplane_pb2.XSpace(), "/job:localhost/replica:0/task:0/device:GPU:0"
    for plane_name, names in (("/host:CPU", ("a:MatMul", "b:Reshape")), ("/device:GPU:0", ("k",))):
        plane = space.planes.add(name=plane_name)
        plane.stat_metadata[1].name = "tf_op"
        line = plane.lines.add()
        for number, name in enumerate(names, 1):
            plane.event_metadata[number].name = name
            event = line.events.add(metadata_id=number, offset_ps=number * 10**12)
            event.duration_ps = 10**12 // 4
            event.stats.add(metadata_id=1, str_value="a:MatMul")
    (tmp_path / "made.xplane.pb").write_bytes(space.SerializeToString())
    found = traces.read(tmp_path, gpu, {"a", "b"})
    assert found.seconds == {"a": 0.25, "b": 0.0}
    assert found.host_seconds == {"a": 0.25, "b": 0.25}
    del space.planes[1]  # kernels cannot be traced everywhere
    (tmp_path / "made.xplane.pb").write_bytes(space.SerializeToString())
    assert traces.read(tmp_path, gpu, {"a", "b"}).seconds == {"a": 0.25, "b": 0.25}


def test_steps_are_summed_up_by_their_median_seconds_and_most_bytes() -> None:
    steps = [Measured({"a": 1.0}), Measured({"a": 5.0, "b": 2.0}), Measured({"a": 2.0})]
    assert profiler.usual(steps) == Measured({"a": 2.0, "b": 2.0})
    steps += [Measured({}, {"a": 256, "b": 512}), Measured({}, {"a": 1024})]
    assert profiler.usual(steps).workspace == {"a": 1024, "b": 512}


def test_a_process_is_told_from_one_that_had_its_number_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer of a container has the same number after each start."""
    lesson = history.Lesson(Graph(()), profiler.machine(), "a plan")
    lesson.begin(123)
    assert lesson.of_the_dead() == 0
    monkeypatch.setattr(history, "_LIFE", "of the process that follows")
    assert lesson.of_the_dead() == 123


def test_a_step_that_ends_with_an_error_is_not_among_those_that_are_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of an epoch, say: were it the last to be traced, all that follow would be, too."""
    monkeypatch.setattr(profiler.Profiler, "start", lambda _: True)
    monkeypatch.setattr(profiler.Profiler, "stop", lambda _, device, nodes: device)
    tracing = pricing.Tracing(Graph(()), Request(device="GPU"), Plan())
    kept = []
    monkeypatch.setattr(tracing, "_keep", lambda: kept.append(list(tracing._steps)))
    is_end = iter([False] * (pricing._WARM_UP + pricing._TRACED - 1) + [True, False])

    def step() -> None:
        if next(is_end):
            raise tf.errors.OutOfRangeError(None, None, "the epoch is over")

    for _ in range(pricing._WARM_UP + pricing._TRACED - 1):
        tracing.run(step)
    with pytest.raises(tf.errors.OutOfRangeError):
        tracing.run(step)
    assert not tracing.is_done
    tracing.run(step)
    assert tracing.is_done
    assert kept == [["GPU"] * pricing._TRACED]


@pytest.mark.parametrize(("flops", "most"), [(1e12, 1024), (1e10, 512), (1e6, 256)])
def test_a_slow_device_is_probed_with_smaller_matrices(
    flops: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fastest(_: Any, value: Any) -> float:
        return 2 * int(value.shape[0]) ** 3 / flops

    monkeypatch.setattr(probes, "_fastest", fastest)
    sides = probes.probe_sides(CPU)
    assert sides == tuple(side for side in (1024, 512, 256) if side <= most)
