"""Names of devices: those there are, and one form for each."""

from __future__ import annotations

import gc
from collections.abc import Iterator

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


def scarce() -> str:
    """Full name of the device whose memory is scarce by default: GPU:0 if any, else CPU:0."""
    gpu = f"{LOCAL}/device:GPU:0"
    return gpu if gpu in names() else f"{LOCAL}/device:CPU:0"


def is_fed(device: str) -> bool:
    """Whether `tf.data` makes what functions are called with in the memory of a device.

    It does on a CPU, at any moment, as long as somebody holds an iterator of a data set.
    """
    import tensorflow as tf

    if device != full_name("CPU:0"):
        return False
    kinds = set(_with_subclasses(tf.data.Iterator))
    return any(type(one) in kinds for one in gc.get_objects())


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for one in subclasses:
        yield from _with_subclasses(one)


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
