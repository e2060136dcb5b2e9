"""Whether copies run beside computation: a chain of matrix products, half of whose results leave.

Three graphs of the same function take turns: one ordered and without copies, and one for each form
of copy that the device has (`tfmem.passes.transfer`). What the link takes alone is measured too, so
that the time of the chain with copies has a bound to be held against. The faster form is kept for
the plans that this machine makes later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import tfmem
from models.bench.experiment import Row
from models.bench.table import markdown, show_bytes, show_seconds
from tfmem.bridge.capture import capture
from tfmem.bridge.rebuild import rebuild
from tfmem.costs import history, probes, profiler
from tfmem.costs.types import Copies, Link
from tfmem.graph import device_names
from tfmem.graph.ir import Graph, Value
from tfmem.passes.linearise import Linearise
from tfmem.passes.pipeline import Pass, run_passes
from tfmem.passes.prune import Prune
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.passes.transfer import Route
from tfmem.plan import Fetch, Transfer
from tfmem.runtime import devices, memory

PLAIN, ON_HOST, ON_DEVICE = "no copies", "Identity on the host", "kernels of the device"

_LEAD, _PACE = 4, 6
"""Nodes by which a way back starts before its use, and after which a way out must have ended: two
and three links of the chain."""


@dataclass(frozen=True)
class Chain:
    """Sizes: square matrices of `side` by `side` float32, `layers` products forward."""

    side: int = 4096
    layers: int = 48
    steps: int = 12

    def inputs(self) -> tuple[tf.Tensor, tf.Tensor]:
        """What `run` takes."""
        weight = tf.linalg.diag(tf.fill((self.side,), 0.5))
        return tf.fill((self.side, self.side), 1e-3), weight

    def run(self, x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """The chain and its way back."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(self.layers):
                y = tf.tanh(tf.matmul(y, weight))
            end = tf.reduce_sum(y)
        return tf.reduce_sum(tape.gradient(end, x))


@dataclass(frozen=True)
class Overlap:
    """What was measured.

    Attributes:
      seconds: median step by what was done: without copies, and in each form.
      peak_bytes: likewise, of the device's allocator.
      out_bytes: what crosses to the host in a step, and as much back.
      link: the link, each way alone and both at once.
      is_equal: whether all gave the same numbers, bitwise.
    """

    seconds: dict[str, float]
    peak_bytes: dict[str, int]
    out_bytes: int
    link: Link
    is_equal: bool

    @property
    def link_seconds(self) -> float:
        """What the link takes for a step alone."""
        both = self.out_bytes / self.link.to_host + self.out_bytes / self.link.from_host
        return both / self.link.duplex

    @property
    def ratios(self) -> dict[str, float]:
        """By form, the step over the larger of what computation and link take alone."""
        bound = max(self.seconds[PLAIN], self.link_seconds)
        return {form: found / bound for form, found in self.seconds.items() if form != PLAIN}


def measure_overlap(fields: Mapping[str, int]) -> dict[str, Any]:
    """`overlap` for another process to call: fields of a `Chain` in, of an `Overlap` out."""
    return dataclasses.asdict(overlap(Chain(**fields)))


def from_fields(fields: Mapping[str, Any]) -> Overlap:
    """The `Overlap` that `measure_overlap` told of."""
    return Overlap(**{**fields, "link": Link(**fields["link"])})


def overlap(chain: Chain) -> Overlap:
    """Measures on the scarce device of this process; a CPU's host is a second process."""
    device = devices.scarce()
    with host_of(device) as host:
        x, weight = chain.inputs()
        variants = _variants(chain, (x, weight), device, host)
        link = probes.probe_link(device, host, min(chain.side, 4096))
        peaks, results = {}, {}
        for form, function in variants.items():  # which also warms up
            results[form] = function(x, weight).numpy()
            memory.reset_peak(device)
            results[form] = function(x, weight).numpy()
            peaks[form] = memory.memory_info(device)[1]
        seconds: dict[str, list[float]] = {form: [] for form in variants}
        for _ in range(chain.steps):
            for form, function in variants.items():
                start = time.perf_counter()
                function(x, weight).numpy()
                seconds[form].append(time.perf_counter() - start)
    medians = {form: statistics.median(found) for form, found in seconds.items()}
    if ON_DEVICE in medians:  # plans of this machine take the faster form from now on
        faster = Copies(medians[ON_DEVICE] <= medians[ON_HOST])
        history.keep_probe(faster, profiler.machine(), device, host)
    return Overlap(
        seconds=medians,
        peak_bytes=peaks,
        out_bytes=4 * chain.side**2 * _evicted(chain.layers),
        link=link,
        is_equal=len({result.tobytes() for result in results.values()}) == 1,
    )


def planned(fields: Mapping[str, int], share: float) -> dict[str, Any]:
    """The chain as tfmem plans it, by order and swaps alone, for another process to call.

    Args:
      fields: of a `Chain`.
      share: the budget over the peak without one.

    Returns:
      The fields of a `Row`.
    """
    chain, device = Chain(**fields), devices.scarce()
    inputs = chain.inputs()
    most = tfmem.optimize(chain.run).plan(*inputs).baseline_peak_bytes
    budget = int(share * most)
    step = tfmem.optimize(chain.run, budget=budget, techniques=("order", "swap"))
    seconds = []
    for _ in range(chain.steps + 1):
        memory.reset_peak(device)
        start = time.perf_counter()
        step(*inputs).numpy()
        seconds.append(time.perf_counter() - start)
    (plan,) = step.plans
    row = Row(
        model="chain",
        mode="tfmem",
        measured_peak_bytes=memory.memory_info(device)[1],
        predicted_peak_bytes=plan.peak_bytes,
        step_seconds=statistics.median(seconds[1:]),
        predicted_seconds=plan.step_seconds,
        used={"swapped": len(plan.transfers)},
    )
    return dataclasses.asdict(row)


@contextlib.contextmanager
def host_of(device: str) -> Iterator[str]:
    """The full name of a local device's host: a GPU's CPU, a CPU's second process.

    Variables that are to be moved there are made inside.
    """
    if device_names.is_gpu(device):
        yield device_names.cpu_of(device)
        return
    with tfmem.host_process() as host:
        yield host


def _evicted(layers: int) -> int:
    """How many results leave: every second one, but those that are needed again at once."""
    return len(range(0, layers - _PACE, 2))


def _variants(
    chain: Chain, inputs: Sequence[tf.Tensor], device: str, host: str
) -> dict[str, Callable[..., tf.Tensor]]:
    """The chain as functions by form."""
    function = tf.function(chain.run)
    captured = capture(function.get_concrete_function(*inputs), device=device, args=inputs)
    graph = run_passes(captured.graph, (Prune(),))
    evictions = _evictions(graph, chain.layers)
    routes = {ON_HOST: Route(host)}
    if device_names.copies(device, host):
        routes[ON_DEVICE] = Route(host, device)
    order = Reorder(tuple(node.name for node in graph.nodes))
    passes: dict[str, tuple[Pass, ...]] = {PLAIN: ()}
    passes |= {form: (Swap(evictions, route),) for form, route in routes.items()}
    return {
        form: rebuild(captured, run_passes(graph, (order, *some, Linearise(device))))
        for form, some in passes.items()
    }


def _evictions(graph: Graph, layers: int) -> tuple[Transfer, ...]:
    """Every second result of the way forward, away until the way back needs it."""
    results = [node for node in graph.nodes if node.op == "Tanh"]
    names = [node.name for node in graph.nodes]
    transfers = []
    for node in results[: layers - _PACE : 2]:
        value = Value(node.name)
        users = graph.consumers[value]
        place = graph.position[node.name]
        late = tuple(user for user in users if graph.position[user] > place + 2 * _PACE)
        trigger = names[min(graph.position[user] for user in late) - _LEAD]
        transfers.append(Transfer(value, (Fetch(late, trigger),), names[place + _PACE]))
    return tuple(transfers)


def overlap_table(found: Overlap) -> str:
    """The chain in each form, against its bound."""
    lines = [
        [form, show_seconds(seconds), show_bytes(found.peak_bytes[form]),
         f"{found.ratios[form]:.3f}" if form in found.ratios else "-"]
        for form, seconds in found.seconds.items()
    ]  # fmt: skip
    link = found.link
    said = (
        f"{show_bytes(found.out_bytes)} cross each way in a step; the link alone takes "
        f"{show_seconds(found.link_seconds)} ({link.to_host / 1e9:.1f} GB/s to the host, "
        f"{link.from_host / 1e9:.1f} GB/s back, both at once {link.duplex:.2f} times one). "
        f"Numbers {'are bitwise equal' if found.is_equal else 'DIFFER'}."
    )
    header = ["", "step", "peak", "over the larger of computation and link"]
    return f"{markdown(header, lines)}\n\n{said}"
