"""What nodes and copies really take: traced steps, probes of a device and of a link."""

from __future__ import annotations

import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import tensorflow as tf

from tfmem.bridge import traces
from tfmem.costs.history import Machine
from tfmem.costs.types import Link, Measured, Rates
from tfmem.graph import device_names

_log = logging.getLogger("tfmem")

_EVERY_OP = 3
"""Level of the host tracer at which cheap ops are reported too."""

_PRODUCTS, _SMALL_NODES, _PROBES = 4, 256, 5
"""How often probes work on a matrix, how many small nodes they run, and repetitions, of which the
median counts. More are steadier; all of them take some seconds, once on a machine."""

_LONGEST = 0.5
"""Seconds that a call of a probe may take; each is called a few times."""

_SIDES = {"CPU": (1024, 512, 256), "GPU": (4096, 2048, 1024, 512)}
"""Sides of the square matrices that a kind of device is probed with: smaller ones where it is slow
or nearly full, which tell less of its speed."""


class Profiler:
    """TensorFlow's profiler, and the folder that it writes to while this process has it run.

    TensorFlow has one for each process, so there is one of these.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> bool:
        """Starts it; False, and a warning, if it runs already for somebody else."""
        folder = tempfile.TemporaryDirectory(prefix="tfmem-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_EVERY_OP, python_tracer_level=0, device_tracer_level=1
        )
        try:
            tf.profiler.experimental.start(folder.name, options)
        except tf.errors.AlreadyExistsError:
            folder.cleanup()
            _log.warning(
                "TensorFlow's profiler is in use, so steps cannot be measured now: costs are from "
                "sizes"
            )
            return False
        self._folder = folder
        return True

    def stop(self, device: str, nodes: Collection[str]) -> Measured:
        """Stops it.

        Args:
          device: full name of the device whose memory is asked for.
          nodes: names of the nodes that are asked for.

        Returns:
          Seconds of each node that ran in this process since, and what it held on the device.
        """
        folder, self._folder = self._folder, None  # before another thread may start it
        assert folder is not None
        tf.test.experimental.sync_devices()
        tf.profiler.experimental.stop()
        with folder as name:
            return traces.read(Path(name), device, nodes)


PROFILER = Profiler()
"""That of this process."""


def machine() -> Machine:
    """This machine, as far as measured times depend on it."""
    gpus = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    parts = [platform.machine(), f"{os.cpu_count()} cores", *gpus, f"TensorFlow {tf.__version__}"]
    return Machine(", ".join(parts))


def usual(steps: Sequence[Measured]) -> Measured:
    """The median seconds of each node over the steps in which it ran, and the most it held."""
    every: dict[str, list[float]] = {}
    workspace: dict[str, int] = {}
    for step in steps:
        for name, seconds in step.seconds.items():
            every.setdefault(name, []).append(seconds)
        for name, nbytes in (step.workspace or {}).items():
            workspace[name] = max(nbytes, workspace.get(name, 0))
    is_told = any(step.workspace is not None for step in steps)
    seconds_of = {name: statistics.median(seconds) for name, seconds in every.items()}
    return Measured(seconds_of, workspace if is_told else None)


def probe_sides(device: str) -> tuple[int, ...]:
    """Sides of the matrices that a device, given by its full name, is probed with, if it has room.

    The largest first, but for those whose products would take it longer than `_LONGEST` seconds:
    a slow device would be probed for minutes.

    Raises:
      tf.errors.ResourceExhaustedError: it has no room for the smallest.
    """
    *larger, least = _SIDES[device_names.kind(device)]

    def product(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return tf.matmul(value, value)[-1, -1]

    with tf.device(device):
        square = tf.zeros([least, least])
    seconds = _PRODUCTS * _fastest(product, square) / least**3
    return (*(side for side in larger if seconds * side**3 <= _LONGEST), least)


def probe_rates(device: str, side: int) -> Rates:
    """Measures how fast a device, given by its full name, computes and moves bytes.

    Raises:
      tf.errors.ResourceExhaustedError: it has no room for some matrices of this side.
    """

    def nothing(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return value[-1, -1]

    def small(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            one = value[-1, -1]
            for _ in range(_SMALL_NODES):
                one = tf.raw_ops.Snapshot(input=one)
            return one

    def products(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            for _ in range(_PRODUCTS):
                value = tf.matmul(value, value)
            return value[-1, -1]

    def sums(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            found = value
            for _ in range(_PRODUCTS):
                found = tf.maximum(found, value)
            return found[-1, -1]

    with tf.device(device):
        square = tf.zeros([side, side])
        larger = tf.zeros([2 * side, side])  # than most caches
    empty = _fastest(nothing, square)
    multiplying = max((_fastest(products, square) - empty) / _PRODUCTS, 1e-9)
    adding = max((_fastest(sums, larger) - empty) / _PRODUCTS, 1e-9)
    return Rates(
        flops=2 * side**3 / multiplying,
        nbytes=3 * 2 * 4 * side**2 / adding,
        start=max((_fastest(small, square) - empty) / _SMALL_NODES, 1e-7),
    )


def probe_link(device: str, host: str, side: int) -> Link:
    """Measures copies between two devices, given by full names: each way alone, then both at once.

    Raises:
      tf.errors.ResourceExhaustedError: one of them has no room for some matrices of this side.
    """

    def there(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            last = tf.raw_ops.Snapshot(input=value)[-1]
        with tf.device(device):
            return tf.raw_ops.Snapshot(input=last)

    def there_and_back(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            away = tf.raw_ops.Snapshot(input=value)
        with tf.device(device):
            return tf.raw_ops.Snapshot(input=away)[-1]

    def computing(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            square = tf.reshape(value, [side, side])
            for _ in range(_PRODUCTS):
                square = tf.matmul(square, square)
            return square[-1, -1]

    def both(value: tf.Tensor) -> tf.Tensor:
        return there_and_back(value) + computing(value)

    def both_ways(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            away = tf.raw_ops.Snapshot(input=value)
        with tf.device(device), tf.control_dependencies([away]):
            other = tf.raw_ops.Snapshot(input=tf.maximum(value, 1.0))
            last = tf.raw_ops.Snapshot(input=away)[-1]
        with tf.device(host):
            return last + tf.raw_ops.Snapshot(input=other)[-1]

    with tf.device(device):
        small, large = tf.zeros([1]), tf.zeros([side * side])
    nbytes = 4 * side * side
    latency = _fastest(there, small) / 2
    out, round_trip = _fastest(there, large), _fastest(there_and_back, large)
    crossing = _fastest(both_ways, large) - out
    alone, together = _fastest(computing, large), _fastest(both, large)
    copying = max(round_trip - 2 * latency, 1e-9)
    return Link(
        to_host=nbytes / max(out - 2 * latency, 1e-9),
        from_host=nbytes / max(round_trip - out, 1e-9),
        latency=latency,
        duplex=min(2.0, max(1.0, round_trip / max(crossing, 1e-9))),
        contention=min(1.0, max(0.0, (together - max(alone, round_trip)) / copying)),
    )


def _fastest(function: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> float:
    """Seconds of a call; the least, for whatever else runs only adds to it."""
    compiled, seconds = tf.function(function), []
    for _ in range(_PROBES + 1):
        start = time.perf_counter()
        compiled(value).numpy()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
