"""A second TensorFlow process on this machine as a memory tier.

    owner (device CPU:0 or GPU:0)  <-- gRPC over loopback -->  host process (its CPU:0)

The host process is a plain TensorFlow server. What a plan moves there is held in that process's
memory, so the owner's allocator gives the bytes free. Its allocator is TensorFlow's BFC allocator
with a limit of its own, which is what makes exact statistics of it possible.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tfmem.errors import Error, HostMemoryError
from tfmem.runtime import devices, loopback
from tfmem.runtime.host_child import DEVICE, JOB, HostProcess

_STREAMING = "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"
"""By default TensorFlow streams eager operations to other processes, and a function that is called
next overtakes them: in 104 of 300 tries one read a host variable's value from before an `assign`
that had returned, and a checkpoint was restored before such an `assign` (TensorFlow 2.21). Without
streaming an eager operation on the host takes 0.4 ms, not 0.16, and its error is its own. The
variable is read at the first operation, not when the connection is made."""

_LOST = re.compile(
    r"remote workers have been restarted|Unable to find a context_id|Failed to connect to remote "
    r"host|Socket closed|Connection reset by peer|failed to connect to all addresses|recvmsg"
)

_CONTAINERS = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        "inactive_file",
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Where Linux's control groups, of either version, tell a container's limit, what of it is in use,
and what of that are files that were read (the file, and the name there)."""


class _Connected:
    """The host process that this process is connected to, if any, and who may change that.

    TensorFlow allows one cluster for each process, so there is one of these.
    """

    def __init__(self) -> None:
        self.process: HostProcess | None = None
        self.lock = threading.RLock()


_connected = _Connected()


def running() -> HostProcess | None:
    """The host process of this process, if one is running."""
    process = _connected.process
    return process if process is not None and process.is_alive else None


def is_connected() -> bool:
    """Whether the block of a host process has not ended, whatever became of the process."""
    return _connected.process is not None


@contextlib.contextmanager
def host_process(
    *,
    memory_limit: int | None = None,
    start_timeout: float = 120.0,
    copies: str | os.PathLike[str] | None = None,
) -> Iterator[str]:
    """Starts a second local TensorFlow process as a memory tier and yields its device's full name.

    If this process has one already, that one is used. Variables, lookup tables and functions that
    were made before work as they did. It does not inherit this process's allocator limits, and ends
    when the outermost block that uses it ends, or with this process. **Variables that still live
    there then are lost**, as they are when it is killed (by the system for want of memory, say),
    unless there are `copies`.

    With `copies` the host process writes the variables that a step has updated there to files when
    the step of an optimised function has ended, and those that move there before they do. If it
    ends while it is in use, `HostMemoryError` is raised, but it has been started again and its
    variables are as they were copied last. Variables on the device may be one step ahead, if they
    were updated in the step that was lost. Steps that run inside another function are not copied,
    nor variables that no optimised function uses. Each GiB takes 0.8 s to write after each step,
    and files in /dev/shm take memory: twice that of the variables.

    Both processes serve on the loopback interface, where every user of the machine can reach them;
    this one's server listens on the others, too, for the milliseconds until it is restricted.

    Memory of the host process: `tfmem.runtime.host.running().memory()`.

    Args:
      memory_limit: most bytes it may hold; default: the machine's memory.
      start_timeout: seconds to wait for it to serve.
      copies: an existing folder for copies of the variables that live there, such as /dev/shm.

    Raises:
      tfmem.Error: it cannot start or be connected; the message says what failed and the remedy.
    """
    from tfmem.bridge.forks import check_no_fork  # which loads TensorFlow

    check_no_fork()
    with _connected.lock:
        process = running() or _start(memory_limit, start_timeout, copies)
        process.users += 1
    try:
        yield process.device
    finally:
        with _connected.lock:
            process.users -= 1
            if process.users == 0:
                _stop(process)


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Turns TensorFlow's errors about a host that is gone or full into `HostMemoryError`.

    Raises:
      HostMemoryError: as `explain_failure` says; any other error passes as it is.
    """
    try:
        yield
    except Exception as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        clear_errors()
        raise explained from error


def clear_errors() -> None:
    """Lets the host process go on after an error: until then it would free nothing."""
    import tensorflow as tf

    if running() is not None:  # on one that is gone this would wait for ever
        tf.experimental.async_clear_error()


def keeps_copies() -> bool:
    """Whether what is done now is followed by copies: there is a host process that keeps some."""
    import tensorflow as tf

    process = _connected.process
    return process is not None and process.copies is not None and not tf.inside_function()


def keep_copies(variables: Sequence[Any], resources: Sequence[Any]) -> None:
    """Lets the host process write variables to files, if it keeps copies; see `Copies.keep`.

    Raises:
      HostMemoryError: it is gone, or there is no room for them.
    """
    process = _connected.process
    if process is not None and process.copies is not None:
        with guard():
            process.copies.keep(variables, resources)


def ended() -> HostProcess | None:
    """The host process, if it has ended and keeps copies."""
    process = _connected.process
    is_ended = process is not None and process.copies is not None and process.has_ended()
    return process if is_ended else None


def restart(process: HostProcess, start_timeout: float = 120.0) -> None:
    """Starts the host process again: functions work there as before, its memory is empty.

    What refers to its device (`handle.device`) must not be touched any more, nor in between:
    TensorFlow has freed that (2.21: a segmentation fault).
    """
    with _connected.lock:
        process.restart()
        connect({JOB: [f"127.0.0.1:{process.wait_until_ready(start_timeout)}"]}, anew=True)


def explain_failure(error: BaseException) -> HostMemoryError | None:
    """What an error that TensorFlow raised says of the host; None if it is not about the host."""
    import tensorflow as tf

    if not isinstance(error, tf.errors.OpError):
        return None
    message = str(error)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        full = re.search(r"on (/job:(?!localhost/)\S+) by allocator", message)
        return _full(full[1], message) if full else None
    if "Unable to parse tensor proto" in message:  # it had no memory for a tensor that it was sent
        return _full(DEVICE, message)
    interrupted = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    if not isinstance(error, interrupted) and not _LOST.search(message):
        return None
    process = _connected.process
    if process is not None and process.has_ended():
        return HostMemoryError(process.loss())
    remote = re.search(r"/job:(?!localhost/)\w+/replica:\d+/task:\d+(/device:\w+:\d+)?", message)
    if remote is None:
        return None
    return HostMemoryError(
        f"the host device {remote[0]} is lost: {_first_line(message)}. Variables on the local "
        "device are intact; check that machine and restore a checkpoint"
    )


def _full(device: str, message: str) -> HostMemoryError:
    process = _connected.process
    limit = f" (limit {process.limit_bytes:,} bytes)" if process and device == DEVICE else ""
    return HostMemoryError(
        f"the host device {device} is out of memory{limit}: {_first_line(message)}. Give it more "
        "(host_process(memory_limit=...)), or move less to it"
    )


def _first_line(message: str) -> str:
    """The first line of TensorFlow's message that says something."""
    lines = (line.strip() for line in message.splitlines())
    return next((line for line in lines if line and not line.startswith("Graph execution")), "")


def _start(
    memory_limit: int | None, start_timeout: float, copies: str | os.PathLike[str] | None
) -> HostProcess:
    if _connected.process is not None:
        _stop(_connected.process)  # it died; its users still hold their blocks
    _check_mayconnect()
    os.environ[_STREAMING] = "false"
    process = HostProcess(memory_limit, copies=None if copies is None else os.fspath(copies))
    try:
        connect({JOB: [f"127.0.0.1:{process.wait_until_ready(start_timeout)}"]})
    except BaseException:
        process.stop()
        raise
    _connected.process = process
    atexit.register(process.stop)
    return process


def _check_mayconnect() -> None:
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise Error(
            "host_process() was entered while a function is traced or in graph mode; enter it "
            "outside, at the start of the program"
        )
    jobs = {_job(device.name) for device in tf.config.list_logical_devices()}
    if others := sorted(jobs - {"localhost", JOB}):
        raise Error(
            f"this process is connected to a TensorFlow cluster (jobs: {', '.join(others)}) and "
            "TensorFlow allows one cluster for each process; name one of its devices as the host "
            "instead of entering host_process()"
        )


def connect(jobs: dict[str, list[str]], *, anew: bool = False) -> None:
    """Makes `jobs` this process's cluster, its own server on the loopback interface only.

    Args:
      jobs: addresses of the tasks of each job.
      anew: whether a new server takes the place of this process's. What steps had sent to a process
        that ended, or had from it, stays in memory until then.

    Raises:
      tfmem.Error: they cannot be reached.
    """
    import tensorflow as tf

    from tfmem.bridge import connection, handles  # which loads TensorFlow

    own = [one for one in devices.names() if _job(one) == "localhost"]
    try:
        if not anew and connection.reconnect(jobs):
            return
        port = loopback.free_port()
        if not connection.connect(f"127.0.0.1:{port}", jobs):
            handles.renew(own)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise Error(
            f"cannot connect to the host process ({type(error).__name__}: "
            f"{_first_line(str(error))}); enter host_process() at the start of the program, before "
            "other TensorFlow clusters or distribution strategies"
        ) from error
    loopback.restrict(port)


def _stop(process: HostProcess) -> None:
    """Takes its device away and ends it; variables that live there are left without a value."""
    if process is not _connected.process:
        return
    from tfmem.bridge import handles  # which loads TensorFlow
    from tfmem.runtime import variables  # which needs this module

    variables.abandon(handles.living_on(process.device))
    _connected.process = None
    atexit.unregister(process.stop)
    try:
        connect({}, anew=process.has_ended(0))
    finally:
        process.stop()


def _job(device: str) -> str:
    found = re.match(r"/job:(\w+)", device)
    return found[1] if found else "localhost"


def free_bytes(device: str) -> int | None:
    """Bytes that could still be taken on a host device; None where that is not known.

    Counts this machine's available memory, that of the container where it is in one, and for the
    host process the limit of its allocator.
    """
    process = running()
    is_process = process is not None and device == process.device
    if not is_process and not device.startswith("/job:localhost/"):
        return None
    free = _available_bytes()
    if process is not None and is_process:
        memory = process.memory()
        left = memory.limit_bytes - memory.current_bytes
        free = left if free is None else min(free, left)
    return free


def _available_bytes() -> int | None:
    """MemAvailable of Linux, or what a container has left if that is less; None elsewhere."""
    known = [_fact("/proc/meminfo", "MemAvailable:"), *map(_left_in, _CONTAINERS)]
    return min((nbytes for nbytes in known if nbytes is not None), default=None)


def _left_in(files: Sequence[str]) -> int | None:
    """Bytes left below a container's limit; files that were read may be dropped at any time."""
    most, used, statistics, dropped = files
    limit, current, cached = _fact(most), _fact(used), _fact(statistics, dropped)
    if limit is None or current is None:
        return None
    return max(0, limit - current + (cached or 0))


def _fact(path: str, name: str = "") -> int | None:
    """The number of bytes behind a name in one of the kernel's files; None if there is none."""
    try:
        with open(path, encoding="ascii") as lines:
            found = re.search(rf"^{name}\s*(\d+)( kB)?$", lines.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * (1024 if found[2] else 1) if found else None
