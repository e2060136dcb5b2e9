"""What tests/functions/test_watched.py asks of processes of their own, most under a hard limit."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import signal
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tfmem
from models.bench.lying import lied
from tests.children.host import MIB
from tfmem.runtime import host, memory

LAYERS, STEPS = 12, 6


@dataclass
class Network:
    """A step with everything that has to be put back: momentum, a generator, dropout, a count.

    As it is its activations are `LAYERS` times some 2 MiB, its variables 6 MiB.
    """

    width: int = 256
    rows: int = 2048
    has_counters: bool = True
    prints: bool = False
    dies: bool = False
    in_branch: bool = False
    seed: int | None = 7  # to set one lets random ops with one of their own begin again, too
    variables: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import tensorflow as tf

        if self.seed is not None:
            tf.random.set_seed(self.seed)
        shape = [self.width, self.width]
        self.weights = [
            tf.Variable(tf.random.stateless_normal(shape, seed=[i, 0]) / self.width**0.5)
            for i in range(LAYERS)
        ]
        self.momenta = [tf.Variable(tf.zeros(shape)) for _ in self.weights]
        self.count = tf.Variable(0)
        self.source = tf.random.Generator.from_seed(3)
        self.variables = [*self.weights, *self.momenta, self.count, self.source.state]

    def step(self, x: Any) -> Any:
        import tensorflow as tf

        if self.prints:
            tf.print("a step")
        if self.dies:
            tf.py_function(die, [], [])
        self.count.assign_add(1)
        x += 0.1 * self.source.normal(tf.shape(x))
        with tf.GradientTape() as tape:
            for weight in self.weights:
                x = tf.nn.gelu(x @ weight)
                x = self.dropped(x) if self.has_counters else x
            loss = tf.reduce_mean(tf.square(x)) * 1e9
        for weight, momentum, gradient in zip(
            self.weights, self.momenta, tape.gradient(loss, self.weights), strict=True
        ):
            momentum.assign(0.9 * momentum + gradient)
            weight.assign_sub(1e-5 * momentum)
        return loss

    def dropped(self, x: Any) -> Any:
        import tensorflow as tf

        if not self.in_branch:
            return tf.nn.dropout(x, 0.1, seed=5)
        first, other = (lambda rate=rate: tf.nn.dropout(x, rate, seed=5) for rate in (0.1, 0.2))
        return tf.cond(self.count > 0, first, other)

    def trained(self, call: Callable[[], Any], steps: int) -> dict[str, Any]:
        """What became of some steps: losses, bits, peaks of all and of the last, an error."""
        losses: list[float] = []
        facts: dict[str, Any] = {"losses": losses, "error": None, "peak": 0}
        try:
            for _ in range(steps):
                facts["before"] = self.digest()
                memory.reset_peak("CPU:0")
                losses.append(float(call()))
                facts["last"] = memory.memory_info("CPU:0")[1]
                facts["peak"] = max(facts["peak"], facts["last"])
        except Exception as error:
            facts["error"] = f"{type(error).__name__}: {error}"
            facts["attributes"] = dict(vars(error))
        return facts | {"digest": self.digest()}

    def batches(self) -> Any:
        """A data set of other numbers in each batch."""
        import tensorflow as tf

        shape = [self.rows, self.width]
        return tf.data.Dataset.range(100).map(
            lambda i: tf.random.stateless_normal(shape, seed=tf.stack([i, 1]))
        )

    def digest(self) -> str:
        """Of every bit of the variables."""
        return hashlib.sha256(b"".join(v.numpy().tobytes() for v in self.variables)).hexdigest()


def die() -> None:
    """Ends the process as a crash does, if it is told to."""
    if os.environ.get("TFMEM_TEST_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)


def train(
    budget: int | None,
    share: float = 1.0,
    options: dict[str, Any] | None = None,
    feed: str = "arguments",
    network: dict[str, Any] | None = None,
    steps: int = STEPS,
    no_room: bool = False,
    lends: bool = False,
    taken: int = 0,
) -> dict[str, Any]:
    """Trains with a budget, or as it is, and says everything about it.

    Args:
      budget: in bytes; None for the original.
      share: what part of the sizes tfmem is told.
      options: of `tfmem.optimize`.
      feed: "arguments", or the batch comes from an iterator that is an "iterator" argument or
        "captured".
      network: fields of the `Network`.
      steps: how many; the facts of what was trained until an error are told.
      no_room: whether the host says that it has none.
      lends: whether a second process lends its memory.
      taken: bytes that somebody else takes after the first step.
    """
    with contextlib.ExitStack() as stack:
        if lends:
            stack.enter_context(tfmem.host_process())
        made = Network(**network or {})
        stack.enter_context(lied(share) if share != 1 else contextlib.nullcontext())
        if no_room:
            free, host.free_bytes = host.free_bytes, lambda _: 1000
            stack.callback(setattr, host, "free_bytes", free)
        function, call = fed(made, feed)
        call = crowded(call, taken) if taken else call
        step = (
            function if budget is None else tfmem.optimize(function, budget=budget, **options or {})
        )
        facts = made.trained(lambda: call(step), steps)
        if budget is not None:
            facts["reports"] = [report.text() for report in step.reports()]
            facts["events"] = [event for report in step.reports() for event in report.events]
            facts["noop"] = [plan.is_noop for plan in step.plans]
            facts["away"] = sum("localhost" not in v.device for v in made.variables)
    return facts


def batches_kept(budget: int, share: float) -> dict[str, Any]:
    """Which of some batches are still there in the end, nothing having been collected meanwhile.

    Only the order may be changed: no plan takes less than the one that takes more than foreseen.
    """
    import tensorflow as tf

    made = Network()
    with lied(share):
        step = tfmem.optimize(tf.function(made.step), budget=budget, techniques={"order"})
        iterator, kept = iter(made.batches()), []
        step.prepare(next(iterator))
        gc.collect()
        gc.disable()
        for _ in range(4):
            batch = next(iterator)
            kept.append(weakref.ref(batch))
            step(batch)
        del batch
    events = [event for report in step.reports() for event in report.events]
    return {"kept": [one() is not None for one in kept], "events": events}


def fed(network: Network, feed: str) -> tuple[Any, Callable[[Any], Any]]:
    """The step as a function, and how it is called."""
    import tensorflow as tf

    iterator = iter(network.batches())
    if feed == "arguments":
        return tf.function(network.step), lambda step: step(next(iterator))
    if feed == "iterator":
        return tf.function(lambda it: network.step(next(it))), lambda step: step(iterator)
    return tf.function(lambda: network.step(next(iterator))), lambda step: step()


def crowded(call: Callable[[Any], Any], nbytes: int) -> Callable[[Any], Any]:
    """Calls beside which somebody holds so many bytes, from the second one on."""
    import tensorflow as tf

    steps, held = itertools.count(), list[Any]()

    def called(step: Any) -> Any:
        if next(steps) == 1:
            held.append(tf.zeros([nbytes // 4]))
        return call(step)

    return called


def late(watch: bool) -> dict[str, Any]:
    """Out of memory once nothing is watched: somebody else has taken what was free."""
    import tensorflow as tf

    made = Network()
    step = tfmem.optimize(tf.function(made.step), budget=80 * MIB, watch=watch)
    batch = next(iter(made.batches()))
    losses = [float(step(batch)) for _ in range(STEPS)]
    before = made.digest()
    others = []
    while memory.memory_info("CPU:0")[0] < (memory.device_limit("CPU:0") or 0) - 40 * MIB:
        others.append(tf.zeros([2 * MIB], tf.uint8))
    facts: dict[str, Any] = {"losses": losses}
    try:
        step(batch)
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
        facts["updated"] = list(getattr(error, "updated", ()))
        facts["cause"] = type(error.__cause__).__name__
    facts["is_as_before"] = made.digest() == before
    facts["names"] = [made.count.name, made.source.state.name]
    del others
    facts["next"] = float(step(batch))
    return facts


def shuffled() -> dict[str, Any]:
    """A step that takes from an iterator nothing was taken from; its shuffle keeps 16 MiB then."""
    import tensorflow as tf

    def iterator() -> Any:
        rows = tf.data.Dataset.range(64).map(lambda i: tf.fill([MIB // 16], tf.cast(i, tf.float32)))
        return iter(rows.shuffle(64, seed=1).repeat().batch(4, drop_remainder=True).prefetch(1))

    weights = tf.Variable(tf.ones([MIB // 16]))

    @tf.function
    def step(iterator: Any) -> Any:
        loss = tf.reduce_mean(next(iterator) * weights)
        weights.assign_add(tf.ones_like(weights))
        return loss

    plain, weights_before = iterator(), tf.identity(weights)
    expected = [float(step(plain)) for _ in range(8)]
    weights.assign(weights_before)
    del plain
    taken, optimized = iterator(), tfmem.optimize(step, budget=memory.device_limit("CPU:0"))
    before = optimized.plan(taken).peak_bytes
    losses = [float(optimized(taken)) for _ in range(8)]
    return {
        "expected": expected,
        "losses": losses,
        "predicted": [before, optimized.plans[0].peak_bytes],
    }


def in_turn(budget: int | None, is_counted: bool = False) -> dict[str, Any]:
    """A step that fills what is free; then another's variables are made, and both take turns.

    If it is counted what random ops have given out its first steps are watched, too.
    """
    import tensorflow as tf

    def made(rows: int, seed: int | None = None) -> tuple[Any, Any]:
        network = Network(rows=rows, has_counters=is_counted, seed=seed)
        step = tf.function(network.step)
        batch = next(iter(network.batches()))
        return (tfmem.optimize(step, budget=budget, watch=is_counted) if budget else step), batch

    first, batch = made(2048, 7)
    losses = [float(first(batch))]
    peaks = [plan.peak_bytes for plan in first.plans] if budget else []
    second, other = made(1024)
    losses += [
        float(step(x)) for _ in range(STEPS) for step, x in ((second, other), (first, batch))
    ]
    if budget:
        peaks += [plan.peak_bytes for plan in first.plans]
    return {"losses": losses, "peaks": peaks, "peak": memory.memory_info("CPU:0")[1]}


def two_threads(budget: int) -> dict[str, Any]:
    """Two threads train the same variables, whose steps are out of memory at first.

    They make no more steps than are watched: later ones would take their memory at the same time.
    """
    import tensorflow as tf

    made = Network(has_counters=False)
    batch = next(iter(made.batches()))
    errors: list[str] = []
    with lied(0.8):
        step = tfmem.optimize(tf.function(made.step), budget=budget)

        def work() -> None:
            try:
                for _ in range(2):
                    step(batch)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (report,) = step.reports()
    return {"count": int(made.count), "errors": errors, "events": report.events}


def snapshots() -> dict[str, Any]:
    """Two variables that nearly fill the device are copied, changed, and put back."""
    import tensorflow as tf

    from tfmem.runtime.snapshot import Snapshot

    memory.claim_memory()
    side = [40, MIB // 4]
    one, other = tf.Variable(tf.ones(side)), tf.Variable(tf.fill(side, 2.0))
    before, _ = memory.memory_info("CPU:0")
    memory.reset_peak("CPU:0")
    copy = Snapshot([one, other])
    facts: dict[str, Any] = {"before": before, "copied": memory.memory_info("CPU:0")[1] - before}
    for variable in (one, other):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([1]))
    memory.reset_peak("CPU:0")
    facts["changed"] = len(copy.restore())
    facts["restored"], facts["most"] = memory.memory_info("CPU:0")
    facts["sums"] = [float(one[7, 7]), float(other[7, 7]), float(other[39, -1])]
    facts["expected"] = [1.0, 2.0, 2.0]
    return facts


def snapshots_of_rows() -> dict[str, Any]:
    """A table is copied, changed in some rows, and put back."""
    import tensorflow as tf

    from tfmem.runtime.snapshot import Snapshot

    memory.claim_memory()
    table = tf.Variable(tf.reshape(tf.range(20 * MIB // 4, dtype=tf.float32), [-1, 256]))
    table.scatter_add(tf.IndexedSlices(tf.zeros([1, 256]), [0]))  # it is accessed by rows now
    before, _ = memory.memory_info("CPU:0")
    memory.reset_peak("CPU:0")
    copy = Snapshot([table], {id(table)})
    facts: dict[str, Any] = {"before": before, "same": len(copy.restore())}
    table.scatter_add(tf.IndexedSlices(tf.ones([2, 256]), [7, table.shape[0] - 1]))
    facts["changed"] = len(copy.restore())
    facts["most"] = memory.memory_info("CPU:0")[1] - before
    facts["expected"] = [7.0 * 256, 20.0 * MIB / 4 - 1]
    facts["rows"] = [float(tf.gather(table, 7)[0]), float(tf.gather(table, table.shape[0] - 1)[-1])]
    return facts


def messages() -> dict[str, dict[str, Any]]:
    """What is understood of steps that ask for 60 MiB where 30 are in use, at different places."""
    import tensorflow as tf

    from tfmem.functions.failures import failure_of

    def twice(x: Any) -> Any:
        return tf.reduce_sum(tf.tile(tf.tile(x, [30, 1], name="Small")[:1] + 1.0, [60, 1]))

    def in_a_loop(x: Any) -> Any:
        for _ in tf.range(2):
            x += twice(x)
        return tf.reduce_sum(x)

    def in_a_branch(x: Any) -> Any:
        return tf.cond(x[0, 0] > 0, lambda: twice(x), lambda: twice(x + 1.0))

    facts = {}
    for name, step in {"Tile": twice, "while": in_a_loop, "cond": in_a_branch}.items():
        try:
            tf.function(step)(tf.ones([1, MIB // 4]))
        except tf.errors.ResourceExhaustedError as error:
            found = failure_of(error)
            facts[name] = {
                "device": found.device,
                "nbytes": found.nbytes,
                "nodes": found.nodes_of({"while", "cond", "Tile", "Tile_1"}),
                "peak": found.peak_bytes,
            }
    return facts
