"""Names of devices: those there are, and one form for each."""

from __future__ import annotations

import os

from tfmem.errors import Error
from tfmem.graph.device_names import LOCAL


def names() -> tuple[str, ...]:
    """Full names of the devices TensorFlow has: this process's, and those it is connected to."""
    import tensorflow as tf

    return tuple(_canonical(device.name) for device in tf.config.list_logical_devices())


def full_name(device: str) -> str:
    """Full name of an existing device, for example from ``GPU:0`` or ``/job:ps/device:CPU:0``.

    Raises:
      tfmem.Error: it is no device name, or there is no such device; the message lists those there.
    """
    known = names()
    try:
        name = _canonical(device)
    except ValueError as error:
        raise Error(f"{device!r} is no device name; there are {', '.join(known)}") from error
    if name not in known:
        raise Error(f"there is no device {device!r}; there are {', '.join(known)}")
    return name


def lanes() -> int:
    """How many nodes TensorFlow's executors run at once at most."""
    import tensorflow as tf

    return _threads(tf.config.threading.get_inter_op_parallelism_threads(), "INTEROP")


def threads_of_a_kernel() -> int:
    """How many threads share the work of one kernel on a CPU."""
    import tensorflow as tf

    return _threads(tf.config.threading.get_intra_op_parallelism_threads(), "INTRAOP")


def scarce() -> str:
    """Full name of the device whose memory is scarce by default: GPU:0 if any, else CPU:0."""
    gpu = f"{LOCAL}/device:GPU:0"
    return gpu if gpu in names() else f"{LOCAL}/device:CPU:0"


def _threads(configured: int, kind: str) -> int:
    """As `process_util.cc` counts them: as configured, as the environment says, or as cores run."""
    asked = os.environ.get(f"TF_NUM_{kind}_THREADS", "")
    if configured or (asked.isdecimal() and int(asked)):
        return configured or int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _canonical(device: str) -> str:
    import tensorflow as tf

    if not isinstance(device, str):
        raise ValueError(device)
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type is None:
        raise ValueError(device)
    full = tf.DeviceSpec(
        job=spec.job or "localhost",
        replica=spec.replica or 0,
        task=spec.task or 0,
        device_type=spec.device_type.upper(),
        device_index=spec.device_index or 0,
    )
    return str(full.to_string())
