"""Making new variables on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from tfmem.errors import Error, HostMemoryError
from tfmem.runtime import devices
from tfmem.runtime import host as host_module
from tfmem.units import format_bytes


@contextlib.contextmanager
def host_variables(*, min_bytes: int = 2**20, host: str | None = None) -> Iterator[None]:
    """A scope in which large variables are made on the host from the start.

    For models whose variables alone exceed the device: neither they nor their initial values touch
    it. Works for `tf.Variable`, Keras and tf-keras layers, and what a `tf.function` that is traced
    inside the scope creates (the slots of an optimizer).

    Args:
      min_bytes: smaller variables are made where they would be without the scope.
      host: the device to use; default: CPU:0 where there is a GPU, else the running
        `tfmem.host_process`.

    Raises:
      HostMemoryError: a variable is larger than what is free on the host; it is not made.
      tfmem.Error: the device does not exist, or there is no host.
    """
    device = devices.full_name(host) if host else default_host()
    if not device:
        raise Error(
            "host_variables() has no host to put variables on: this machine has no GPU, so CPU:0 "
            "is the scarce device; enter tfmem.host_process() before, or name a device with "
            "host=..."
        )

    def may_place(nbytes: int) -> bool:
        if nbytes >= min_bytes and not has_room(nbytes, device):
            raise HostMemoryError(
                f"a variable of {format_bytes(nbytes)} has no room on {device}, where "
                f"{format_bytes(host_module.free_bytes(device) or 0)} are free; make the model "
                "smaller, or free memory on the host"
            )
        return nbytes >= min_bytes

    with created_on(device, may_place):
        yield


def has_room(nbytes: int, host: str) -> bool:
    """Whether as many bytes are free on a host, as far as that is known."""
    free = host_module.free_bytes(host)
    return free is None or nbytes <= free


def default_host(device: str | None = None) -> str:
    """Where by default goes what leaves `device`, the scarce one if None; "" for nowhere."""
    if "/device:CPU:" not in (device or devices.scarce()):
        return devices.full_name("CPU:0")
    process = host_module.running()
    return process.device if process else ""


@contextlib.contextmanager
def created_on(host: str, may_place: Callable[[int], bool]) -> Iterator[list[Any]]:
    """A scope in which variables are made on `host` if `may_place(nbytes)`; "" changes nothing.

    Yields the list of those that were made there.
    """
    import tensorflow as tf

    made: list[Any] = []

    def create(next_creator: Callable[..., Any], **options: Any) -> Any:
        nbytes = _declared_bytes(options)
        if nbytes is None:  # only its initial value tells its size
            options["initial_value"] = _initial_value(options, host)
            nbytes = _declared_bytes(options)
        if nbytes is None or not may_place(nbytes):
            return next_creator(**options)
        with tf.device(host):
            made.append(next_creator(**options))
        return made[-1]

    if not host:
        yield made
        return
    with tf.variable_creator_scope(create):
        yield made


def _initial_value(options: dict[str, Any], host: str) -> Any:
    """The initial value, computed on the host."""
    import tensorflow as tf

    value = options["initial_value"]
    with tf.device(host):
        value = value() if callable(value) else value
        return (
            value
            if _declared_bytes(options | {"initial_value": value}) is not None
            else (tf.convert_to_tensor(value, dtype=options.get("dtype")))
        )


def _declared_bytes(options: dict[str, Any]) -> int | None:
    """Bytes of a variable to be made, from its arguments; None if they do not tell."""
    import tensorflow as tf

    value, shape, dtype = (options.get(name) for name in ("initial_value", "shape", "dtype"))
    if shape is None and not callable(value):
        shape = getattr(value, "shape", None)
    if dtype is None and not callable(value):
        dtype = getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    shape = tf.TensorShape(shape)
    if not shape.is_fully_defined():
        return None
    return int(math.prod(shape.as_list()) * tf.as_dtype(dtype).size)
