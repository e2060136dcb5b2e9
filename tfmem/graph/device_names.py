"""What the full names of devices say: ``/job:localhost/replica:0/task:0/device:GPU:0``."""

from __future__ import annotations

LOCAL = "/job:localhost/replica:0/task:0"
"""What the names of this process's devices begin with."""


def is_local(name: str) -> bool:
    """Whether a device, by its full name, belongs to this process."""
    return name.startswith(f"{LOCAL}/")


def short_name(name: str) -> str:
    """The name as `tf.config` wants it: of this process, without job, replica and task."""
    return name.removeprefix(LOCAL)


def kind(name: str) -> str:
    """``CPU`` or ``GPU``, from a full name."""
    return name.rsplit("/device:", 1)[1].split(":")[0]


def is_gpu(name: str) -> bool:
    """Whether a device, by its full name, is a GPU; "" is none."""
    return "/device:GPU:" in name


def copies(device: str, host: str) -> bool:
    """Whether a device, by its full name, has kernels that copy to this host: a GPU has some for
    the CPU of its process."""
    return is_local(device) and is_gpu(device) and host == cpu_of(device)


def share_process(one: str, other: str) -> bool:
    """Whether two devices, by their full names, belong to one process."""
    return one.rpartition("/device:")[0] == other.rpartition("/device:")[0]


def cpu_of(name: str) -> str:
    """Full name of the CPU of the process that a device, by its full name, belongs to."""
    return f"{name.rsplit('/device:', 1)[0]}/device:CPU:0"
