"""What nodes and copies really take: traced steps, probes of a device and of a link.

The executor reports every kernel it runs as an event "node:op"; what a GPU runs for a node stands
in the plane of that GPU, with the same text beside each of its kernels.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

# Private part of TensorFlow; seen to work with 2.21.
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfmem.costs.history import Machine
from tfmem.costs.types import Link, Measured, Rates
from tfmem.graph import device_names

_log = logging.getLogger("tfmem")

_EVERY_OP = 3
"""Level of the host tracer at which cheap ops are reported too."""

_PRODUCTS, _SMALL_NODES, _PROBES = 4, 256, 5
"""How often probes work on a matrix, how many small nodes they run, and repetitions."""

PROBE_SIDES = {"CPU": (1024, 512, 256), "GPU": (4096, 2048, 1024, 512)}
"""Sides of the square matrices that a kind of device is probed with: smaller ones where it is
nearly full, which tell less of its speed."""

_ASKED, _GIVEN_BACK = "MemoryAllocation", "MemoryDeallocation"
"""Events of TensorFlow's BFC allocators."""


_folders: list[tempfile.TemporaryDirectory[str]] = []


def start() -> bool:
    """Starts the profiler; False, and a warning, if it runs already for somebody else."""
    folder = tempfile.TemporaryDirectory(prefix="tfmem-")
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_EVERY_OP, python_tracer_level=0, device_tracer_level=1
    )
    try:
        tf.profiler.experimental.start(folder.name, options)
    except tf.errors.AlreadyExistsError:
        folder.cleanup()
        _log.warning(
            "TensorFlow's profiler is in use, so steps cannot be measured now: costs are from sizes"
        )
        return False
    _folders.append(folder)
    return True


def stop(device: str) -> Measured:
    """Stops the profiler.

    Args:
      device: full name of the device whose memory is asked for.

    Returns:
      Seconds of each node that ran in this process since, and what it held on the device.
    """
    tf.test.experimental.sync_devices()
    tf.profiler.experimental.stop()
    with _folders.pop() as folder:
        planes = list(_planes(Path(folder)))
    return Measured(_seconds(planes), _workspace(planes, device))


def machine() -> Machine:
    """This machine, as far as measured times depend on it."""
    gpus = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    parts = [platform.machine(), f"{os.cpu_count()} cores", *gpus, f"TensorFlow {tf.__version__}"]
    return Machine(", ".join(parts))


def _planes(folder: Path) -> Iterator[Any]:
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        yield from space.planes


def _seconds(planes: Iterable[Any]) -> dict[str, float]:
    """Seconds by node; where a GPU ran kernels for a node, those alone."""
    host: dict[str, float] = {}
    gpu: dict[str, float] = {}
    for plane, _, event in _events(planes):
        is_gpu = "/device:GPU" in plane.name
        found = gpu if is_gpu else host
        named = plane.event_metadata[event.metadata_id].name
        text = _kernel_of(plane, event) if is_gpu else named
        name, _, op = text.partition(":")
        if op and op[0] != ":" and " " not in text:
            found[name] = found.get(name, 0.0) + event.duration_ps * 1e-12
    return {**host, **gpu}


def _events(planes: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Every event, with its plane and its line."""
    return (
        (plane, line, event) for plane in planes for line in plane.lines for event in line.events
    )


def _kernel_of(plane: Any, event: Any) -> str:
    """The node that a GPU's kernel ran for, as "node:op"; "" if none is named."""
    return str(_facts(plane, event).get("tf_op", ""))


def _facts(plane: Any, event: Any) -> dict[str, Any]:
    """What an event says beside its name and times."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else ""
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found


def _workspace(planes: Iterable[Any], device: str) -> dict[str, int] | None:
    """Most bytes that each node held on a device only while it ran; None if no allocator tells.

    That is what its kernel asked for as temporary and gave back before it ended.
    """
    ends: dict[str, int] = {}
    events: list[tuple[int, str, dict[str, Any]]] = []
    for plane, line, event in _events(planes):
        begin = line.timestamp_ns * 1000 + event.offset_ps
        named = plane.event_metadata[event.metadata_id].name
        if named in (_ASKED, _GIVEN_BACK):
            facts = _facts(plane, event)
            if _is_allocator_of(facts["allocator_name"], device):
                events.append((begin, named, facts))
        elif ":" in named:
            ends[named.partition(":")[0]] = begin + event.duration_ps
    if not events:
        return None
    held: dict[int, tuple[str, int, int]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for moment, named, facts in sorted(events, key=lambda one: one[0]):
        if named == _GIVEN_BACK and facts["addr"] in held:
            node, nbytes, begin = held.pop(facts["addr"])
            if moment <= ends.get(node, moment):
                changes.setdefault(node, []).extend(((begin, nbytes), (moment, -nbytes)))
        elif named == _ASKED and facts.get("region_type") == "temp":
            held[facts["addr"]] = facts["tf_op"], int(facts["requested_bytes"]), moment
    return {
        node: max(itertools.accumulate(nbytes for _, nbytes in sorted(found)))
        for node, found in changes.items()
    }


def _is_allocator_of(name: str, device: str) -> bool:
    """Whether a BFC allocator, by its name, is that of a device."""
    if device_names.is_gpu(device):
        return name == f"GPU_{device.rsplit(':', 1)[1]}_bfc"
    return "cpu" in name.lower()


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
