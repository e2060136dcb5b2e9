"""Limits of devices, and what a function really takes: bytes and seconds.

The figures are those of the device's own allocator. A GPU's keeps statistics always; the CPU's only
when it is TensorFlow's BFC allocator, which is chosen by environment variables that are read once,
when TensorFlow first allocates:

    TF_CPU_ALLOCATOR_USE_BFC=true  TF_CPU_BFC_MEM_LIMIT_IN_MB=600

An "MB" of that variable is 2^20 bytes. The allocator rounds each request up to 256 bytes, and hands
out a free chunk whole unless the chunk is at least twice the request or 128 MiB larger. It takes
its memory from the system in regions (2 MiB, then doubling, or as large as a request) and never
joins two regions, so a single request can be at most the limit less what earlier regions took: of
100 MiB, 98 in one piece. `claim_memory` makes it take the rest of its limit as one region.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfmem.costs.types import GRAIN
from tfmem.errors import Error
from tfmem.graph import device_names
from tfmem.runtime import devices

MIB = 2**20
"""Bytes of an "MB" in TensorFlow's options."""

_USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_BFC_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_BFC_DEFAULT_MIB = 2**16  # process_state.cc


@dataclass(frozen=True)
class Measurement:
    """What the steps of a function took on a device.

    Attributes:
      device: full name of the device whose memory is meant.
      peak_bytes: most bytes in use on it at any moment of the measured steps, everything counted.
      current_bytes: bytes in use on it afterwards: variables, inputs, what else is alive.
      step_seconds: median time of a step.
      steps: how many were measured.
      scalars: for each step the scalar outputs (the loss), in the order of the structure.
    """

    device: str
    peak_bytes: int
    current_bytes: int
    step_seconds: float
    steps: int
    scalars: tuple[tuple[float, ...], ...]


def measure(
    function: Callable[..., Any],
    *args: Any,
    steps: int = 5,
    warmup: int = 1,
    device: str | None = None,
    **kwargs: Any,
) -> Measurement:
    """Calls `function(*args, **kwargs)` and reports the memory and time of its steps.

    The first `warmup` calls, which trace and create variables, count for nothing.

    Args:
      function: a `tf.function`, a `tfmem.Optimized`, or any callable.
      *args: its arguments; an iterator is advanced by each step.
      steps: measured calls, at least 1.
      warmup: calls before them.
      device: a device of this process; default: `devices.scarce()`.
      **kwargs: its keyword arguments.

    Raises:
      tfmem.Error: the device does not exist, is in another process, or keeps no statistics.
    """

    if steps < 1:
        raise Error(f"steps={steps}: at least one step must be measured")
    name = devices.full_name(device) if device else devices.scarce()
    memory_info(name)
    for _ in range(warmup):
        function(*args, **kwargs)
    _synchronize()
    reset_peak(name)

    seconds, scalars = [], []
    for _ in range(steps):
        started = time.perf_counter()
        outputs = function(*args, **kwargs)
        scalars.append(_scalars(outputs))
        del outputs  # or it would count against the next step
        _synchronize()
        seconds.append(time.perf_counter() - started)

    current, peak = memory_info(name)
    return Measurement(name, peak, current, statistics.median(seconds), steps, tuple(scalars))


def memory_info(device: str) -> tuple[int, int]:
    """Bytes in use on a local device now, and the most since the last reset.

    Raises:
      tfmem.Error: it is no device of this process, or its allocator keeps no statistics.
    """
    name = devices.full_name(device)
    current, peak = _counted(name)
    return current, max(peak, _earlier.peaks.get(name, 0))


def _counted(name: str) -> tuple[int, int]:
    """What the allocator of a device, by its full name, has counted; raises as `memory_info`."""
    import tensorflow as tf

    if not device_names.is_local(name):
        raise Error(
            f"the memory of {name} cannot be read from here, it belongs to another process; for "
            "tfmem's own host process use tfmem.runtime.host.running().memory()"
        )
    if device_names.kind(name) == "CPU" and not _cpu_uses_bfc():
        raise Error(
            f"the allocator of {name} keeps no statistics; set {_USE_BFC}=true (and {_BFC_LIMIT}=n "
            "for a limit of n MiB) in the environment before TensorFlow is imported, or use "
            "tfmem.runtime.limited.run_limited"
        )
    try:
        info = tf.config.experimental.get_memory_info(device_names.short_name(name))
    except ValueError as error:
        if device_names.kind(name) == "CPU":
            raise _set_too_late(name) from error
        raise Error(f"the allocator of {name} keeps no statistics ({error})") from error
    if device_names.kind(name) == "CPU" and info["peak"] == 0:
        with tf.device(name):
            probe = tf.zeros([64])
        info = tf.config.experimental.get_memory_info(device_names.short_name(name))
        del probe
        if info["peak"] == 0:
            raise _set_too_late(name)
    return int(info["current"]), int(info["peak"])


def reset_peak(device: str) -> None:
    """Lets the most bytes in use on a local device begin anew, from those in use now.

    Raises:
      tfmem.Error: as of `memory_info`.
    """
    import tensorflow as tf

    name = devices.full_name(device)
    _counted(name)
    _earlier.peaks.pop(name, None)
    tf.config.experimental.reset_memory_stats(device_names.short_name(name))


class _Earlier:
    """Most bytes in use on devices, by full name, before their counters began anew for a step.

    The allocator has one counter for the process, and so there is one of these.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}


_earlier = _Earlier()


def begin_step(device: str, budget: int) -> None:
    """Lets `step_peak` tell whether the step that begins now takes more than a budget.

    TensorFlow's own counter is reset only if it is above the budget already. `memory_info` still
    tells the most since `reset_peak`.

    Raises:
      tfmem.Error: as of `memory_info`.
    """
    name = devices.full_name(device)
    _, peak = memory_info(name)
    if step_peak(name) > budget:
        reset_peak(name)
        _earlier.peaks[name] = peak


def step_peak(device: str) -> int:
    """Most bytes in use on a local device since TensorFlow's own counter was reset.

    Raises:
      tfmem.Error: as of `memory_info`.
    """
    return _counted(devices.full_name(device))[1]


def _set_too_late(name: str) -> Error:
    """What to raise where a CPU's allocator was made before the variable that makes it count."""
    return Error(
        f"the allocator of {name} keeps no statistics although {_USE_BFC} is set now: it was "
        "set after TensorFlow had allocated; set it before TensorFlow is imported"
    )


def device_limit(device: str) -> int | None:
    """The most bytes a local device's allocator hands out; None where it has no limit.

    A CPU's is `TF_CPU_BFC_MEM_LIMIT_IN_MB` times 2^20 (by default 2^36) where its allocator is BFC.
    A GPU's is that of its logical device, or the share of its memory that TensorFlow takes.

    Raises:
      tfmem.Error: there is no such device, or the variable's value is no number.
    """
    name = devices.full_name(device)
    if not device_names.is_local(name):
        return None
    if device_names.kind(name) == "CPU":
        return _cpu_limit() if _cpu_uses_bfc() else None
    from tfmem.bridge.limits import limits

    return int(limits()[name]) or None


def has_room(device: str, nbytes: int) -> bool:
    """Whether a limit of a device leaves so many bytes, which may be scattered.

    Raises:
      tfmem.Error: as of `memory_info`, if there is a limit.
    """
    limit = device_limit(device)
    return limit is not None and memory_info(device)[0] + nbytes <= limit


def claim_memory(device: str | None = None) -> None:
    """Makes the allocator take what is left of its limit from the system as one region.

    Without it the CPU's BFC allocator grows by regions that it never joins, so a large request can
    fail although enough is free in sum. Statistics are reset. Call it before anything is allocated.

    Raises:
      tfmem.Error: the device has no limit or keeps no statistics.
    """
    import tensorflow as tf

    name = devices.full_name(device) if device else devices.scarce()
    limit = device_limit(name)
    if limit is None:
        raise Error(f"{name} has no limit of its own; set {_USE_BFC}=true and {_BFC_LIMIT}=n")
    memory_info(name)
    if device_names.kind(name) == "CPU" and limit > UNCLAIMED:
        with tf.device(name):
            buffer(limit - UNCLAIMED)
        _claims.devices.add(name)
    reset_peak(name)


def buffer(nbytes: int) -> Any:
    """A buffer that nothing is written to; of 2 GiB and more, in whole grains."""
    return buffers(nbytes, 1)[0]


def buffers(nbytes: int, count: int) -> list[Any]:
    """Buffers as `buffer` makes.

    A kernel takes no dimension that needs more than 31 bits. The shape is a tensor, for TensorFlow
    takes three times as long to make one of a list.
    """
    import tensorflow as tf

    size = [nbytes] if nbytes < 1 << 31 else [nbytes // GRAIN, GRAIN]
    shape = tf.constant(size, tf.int32)
    return [tf.raw_ops.Empty(shape=shape, dtype=tf.uint8) for _ in range(count)]


UNCLAIMED = 4 * MIB
"""What the CPU's allocator keeps in regions of its own when the rest is claimed at once."""


class _Claims:
    """Names of the devices whose allocators took all their memory as one region.

    A device's allocator belongs to the process and never gives a region back.
    """

    def __init__(self) -> None:
        self.devices: set[str] = set()


_claims = _Claims()


def region_bytes(device: str) -> int | None:
    """Size of the one region that a local device's allocator has; None if it grows by regions.

    A GPU's allocator takes all its memory at once, unless its memory is let grow; a CPU's does if
    `claim_memory` was called.

    Raises:
      tfmem.Error: there is no such device.
    """
    import tensorflow as tf

    name = devices.full_name(device)
    if device_names.kind(name) == "CPU":
        return (_cpu_limit() - UNCLAIMED) if name in _claims.devices else None
    if not device_names.is_local(name) or not device_names.is_gpu(name):
        return None
    grows = any(
        map(tf.config.experimental.get_memory_growth, tf.config.list_physical_devices("GPU"))
    )
    told = os.environ.get(_GROWTH, "").lower()  # goes before what the program says
    return None if told == "true" or (grows and told != "false") else device_limit(name)


def limit_gpu(limit_mib: int) -> None:
    """Limits GPU:0 to so many MiB; before TensorFlow has used it.

    Raises:
      tfmem.Error: there is no GPU, or TensorFlow has used it already.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise Error("there is no GPU to limit; limit CPU:0 instead (gpu=False)")
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)
    try:
        tf.config.set_logical_device_configuration(gpus[0], [limit])
    except RuntimeError as error:
        raise Error(
            f"GPU:0 can no longer be limited ({error}); do it before anything else"
        ) from error


def _cpu_uses_bfc() -> bool:
    return os.environ.get(_USE_BFC, "").lower() in ("true", "1")


def _cpu_limit() -> int:
    text = os.environ.get(_BFC_LIMIT, str(_BFC_DEFAULT_MIB))
    try:
        return int(text) * MIB
    except ValueError as error:
        raise Error(f"{_BFC_LIMIT}={text!r} is no whole number; give the limit in MiB") from error


def _synchronize() -> None:
    """Waits until the devices have done what was queued."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def _scalars(outputs: Any) -> tuple[float, ...]:
    """The numbers among a function's outputs; reading them waits for the step."""
    import tensorflow as tf

    flat = (value for value in tf.nest.flatten(outputs) if tf.is_tensor(value))
    numeric = (value for value in flat if value.shape.rank == 0 and value.dtype.is_floating)
    return tuple(float(value) for value in numeric)
