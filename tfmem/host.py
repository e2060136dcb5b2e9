"""A second TensorFlow process on this machine as a memory tier.

    owner (device CPU:0 or GPU:0)  <-- gRPC over loopback -->  host process (its CPU:0)

The host process is a plain TensorFlow server. What a plan moves there is held in that process's
memory, so the owner's allocator gives the bytes free. Its allocator is TensorFlow's BFC allocator
with a limit of its own, which is what makes exact statistics of it possible.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from tfmem import loopback
from tfmem.errors import Error, HostMemoryError

JOB = "tfmem_host"
DEVICE = f"/job:{JOB}/replica:0/task:0/device:CPU:0"
"""Full name of the host process's device."""

_MIB = 2**20
_ALLOCATOR = ("TF_CPU_ALLOCATOR", "TF_CPU_BFC", "TF_GPU_")
_STREAMING = "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"
"""By default TensorFlow streams eager operations to other processes, and a function that is called
next overtakes them: in 104 of 300 tries one read a host variable's value from before an `assign`
that had returned, and a checkpoint was restored before such an `assign` (TensorFlow 2.21). Without
streaming an eager operation on the host takes 0.4 ms, not 0.16, and its error is its own. The
variable is read at the first operation, not when the connection is made."""

_SERVE = "import sys; del sys.path[0]; from tfmem.host_server import main; main()"
_LOST = re.compile(
    r"remote workers have been restarted|Unable to find a context_id|Failed to connect to remote "
    r"host|Socket closed|Connection reset by peer|failed to connect to all addresses|recvmsg"
)
_NOISE = re.compile(r"\s*$|I\d{4} |WARNING: All log messages before absl|.*cuda_platform")


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host process.

    Attributes:
      current_bytes: held by its TensorFlow allocator now.
      peak_bytes: most held by its TensorFlow allocator since it started.
      resident_bytes: resident set of the whole process, TensorFlow's code and transfers included.
      limit_bytes: limit of its allocator.
    """

    current_bytes: int
    peak_bytes: int
    resident_bytes: int
    limit_bytes: int


class HostProcess:
    """A running host process, connected as a device of this process."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], limit_bytes: int) -> None:
        self.device = DEVICE
        self.limit_bytes = limit_bytes
        self.users = 0
        self._process = process
        self._log = log
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def memory(self) -> HostMemory:
        """Its memory, as reported by itself.

        Raises:
          HostMemoryError: it has ended.
        """
        with self._lock:
            try:
                _pipe(self._process.stdin).write("memory\n")
                _pipe(self._process.stdin).flush()
                fields = self._read(timeout=30)
            except (OSError, ValueError) as error:
                raise HostMemoryError(self.obituary()) from error
        return HostMemory(
            fields["current"], fields["peak"], fields["resident"], limit_bytes=self.limit_bytes
        )

    def wait_until_ready(self, timeout: float) -> int:
        """Waits until it serves; returns its port.

        Raises:
          tfmem.Error: it ended, or did not serve within `timeout` seconds.
        """
        try:
            return self._read(timeout)["port"]
        except TimeoutError as error:
            failure = f"it did not serve within {timeout:g} s"
            cause: Exception = error
        except (OSError, ValueError) as error:
            failure = f"it ended with {_ending(self._process.wait())}"
            cause = error
        raise Error(
            f"the host process could not start: {failure}. Its last output:\n{self.tail()}\n"
            f"Check that `{sys.executable} -c 'import tensorflow'` works and that memory is free; "
            "a slow machine may need start_timeout=..."
        ) from cause

    def wait(self, timeout: float) -> None:
        """Waits for its end; subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.wait(timeout)

    def obituary(self) -> str:
        """One sentence on how it ended, and the end of its output."""
        code = self._process.poll()
        ending = "does not answer" if code is None else f"ended with {_ending(code)}"
        output = self.tail()
        return f"the host process (pid {self.pid}) {ending}" + (f":\n{output}" if output else "")

    def tail(self) -> str:
        """The last lines it wrote to its standard error."""
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if not _NOISE.match(line)]
        return "\n".join(lines[-12:])

    def stop(self) -> None:
        """Ends it, by its process id, and waits for that."""
        if self.is_alive:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                _pipe(stream).close()

    def _read(self, timeout: float) -> dict[str, int]:
        """One answer; TimeoutError, OSError or ValueError when there is none."""
        stream = _pipe(self._process.stdout)
        if not select.select([stream], [], [], timeout)[0]:
            raise TimeoutError
        fields: dict[str, int] = json.loads(stream.readline())
        return fields


_running: HostProcess | None = None
_lock = threading.RLock()


def running() -> HostProcess | None:
    """The host process of this process, if one is running."""
    return _running if _running is not None and _running.is_alive else None


@contextlib.contextmanager
def host_process(*, memory_limit: int | None = None, start_timeout: float = 120.0) -> Iterator[str]:
    """Starts a second local TensorFlow process as a memory tier and yields its device's full name.

    If this process has one already, that one is used. It is reachable on the loopback interface
    only, does not inherit this process's allocator limits, and ends when the outermost block that
    uses it ends, or with this process. **Variables that still live there then are lost.**

    Memory of the host process: `running().memory()`.

    Args:
      memory_limit: most bytes it may hold; default: the machine's memory.
      start_timeout: seconds to wait for it to serve.

    Raises:
      tfmem.Error: it cannot start or be connected; the message says what failed and the remedy.
    """
    with _lock:
        process = running() or _start(memory_limit, start_timeout)
        process.users += 1
    try:
        yield process.device
    finally:
        with _lock:
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
    if _running is not None and _has_ended(_running):
        return HostMemoryError(
            f"{_running.obituary()}\nVariables on the local device are intact, those on the host "
            "are lost. Leave the host_process block, enter a new one, and restore a checkpoint. If "
            "it was killed for want of memory, or (SIGSEGV, for which TensorFlow knows no better "
            f"way) received a tensor beyond its limit of {_running.limit_bytes:,} bytes, raise "
            "memory_limit or move less to it"
        )
    remote = re.search(r"/job:(?!localhost/)\w+/replica:\d+/task:\d+(/device:\w+:\d+)?", message)
    if remote is None:
        return None
    return HostMemoryError(
        f"the host device {remote[0]} is lost: {_first_line(message)}. Variables on the local "
        "device are intact; check that machine and restore a checkpoint"
    )


def _full(device: str, message: str) -> HostMemoryError:
    limit = f" (limit {_running.limit_bytes:,} bytes)" if _running and device == DEVICE else ""
    return HostMemoryError(
        f"the host device {device} is out of memory{limit}: {_first_line(message)}. Give it more "
        "(host_process(memory_limit=...)), or move less to it"
    )


def _first_line(message: str) -> str:
    """The first line of TensorFlow's message that says something."""
    lines = (line.strip() for line in message.splitlines())
    return next((line for line in lines if line and not line.startswith("Graph execution")), "")


def _has_ended(process: HostProcess, patience: float = 1.0) -> bool:
    """Whether it has ended; its connections close a moment before the system reports that."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    return not process.is_alive


def _start(memory_limit: int | None, start_timeout: float) -> HostProcess:
    global _running
    if _running is not None:
        _stop(_running)  # it died; its users still hold their blocks
    _check_may_connect()
    limit_bytes = memory_limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limit_bytes < _MIB:
        raise Error(f"memory_limit={memory_limit} is less than 1 MiB; give it in bytes")
    os.environ[_STREAMING] = "false"
    log = tempfile.TemporaryFile("w+", prefix="tfmem-host-", errors="replace")  # noqa: SIM115
    process = HostProcess(_spawn(limit_bytes, log), log, limit_bytes // _MIB * _MIB)
    try:
        _connect({JOB: [f"127.0.0.1:{process.wait_until_ready(start_timeout)}"]})
    except BaseException:
        process.stop()
        raise
    _running = process
    atexit.register(process.stop)
    return process


def _spawn(limit_bytes: int, log: IO[str]) -> subprocess.Popen[str]:
    """The child, with its own allocator and the paths of this process.

    Its working folder is this process's, because a checkpoint's part for a variable that lives
    there is written by the child, under the path that the owner gave.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_ALLOCATOR)}
    own = {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit_bytes // _MIB),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, JOB, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=kept | own,
        text=True,
    )


def _check_may_connect() -> None:
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


def _connect(jobs: dict[str, list[str]]) -> None:
    """Makes `jobs` this process's cluster, its own server on the loopback interface only."""
    import tensorflow as tf

    port = loopback.free_port()
    cluster = tf.train.ClusterSpec({"localhost": [f"127.0.0.1:{port}"], **jobs})
    try:
        tf.config.experimental_connect_to_cluster(cluster, job_name="localhost")
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise Error(
            f"cannot connect to the host process ({type(error).__name__}: "
            f"{_first_line(str(error))}); enter host_process() at the start of the program, before "
            "other TensorFlow clusters or distribution strategies"
        ) from error
    loopback.restrict(port)


def _stop(process: HostProcess) -> None:
    """Takes its device away and ends it."""
    global _running
    if process is not _running:
        return
    _running = None
    atexit.unregister(process.stop)
    try:
        _connect({})
    finally:
        process.stop()


def _job(device: str) -> str:
    found = re.match(r"/job:(\w+)", device)
    return found[1] if found else "localhost"


def _ending(code: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ValueError("a pipe of the host process is missing")
    return stream


def free_bytes(device: str) -> int | None:
    """Bytes that could still be taken on a host device; None where that is not known.

    Counts this machine's available memory, and for the host process the limit of its allocator.
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
    """MemAvailable of Linux's /proc/meminfo; None on other systems."""
    try:
        with open("/proc/meminfo") as lines:
            found = re.search(r"MemAvailable:\s*(\d+) kB", lines.read())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
