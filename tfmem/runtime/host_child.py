"""The host process as its owner sees it: spawned, asked for its memory, ended.

It is spoken to in lines over its standard streams (`host_server`); how it becomes a device of this
process is in `host`.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from tfmem.errors import Error, HostMemoryError

if TYPE_CHECKING:
    from tfmem.runtime.copies import Copies

JOB = "tfmem_host"


def device_of(job: str) -> str:
    """Full name of the device of a job that is one process."""
    return f"/job:{job}/replica:0/task:0/device:CPU:0"


DEVICE = device_of(JOB)
"""Full name of the host process's device."""

_MIB = 2**20
_ALLOCATOR = ("TF_CPU_ALLOCATOR", "TF_CPU_BFC", "TF_GPU_")
_SERVE = "import sys; del sys.path[0]; from tfmem.runtime.host_server import main; main()"
_WAKE = "import sys; del sys.path[0]; from tfmem.runtime.host_server import wake; wake()"
_PATIENCE = 30.0
"""Seconds that an answer of it is waited for."""

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
    """A host process, running from when this is made until `stop`.

    Attributes:
      job: name of its job, of which it is task 0.
      device: full name of its device, for the owner once connected.
      limit_bytes: limit of its allocator.
      users: how many `host_process` blocks use it.
      copies: those of the variables that live there; None if none are kept.
    """

    def __init__(
        self, memory_limit: int | None = None, job: str = JOB, copies: str | None = None
    ) -> None:
        """Starts it.

        Args:
          memory_limit: in bytes, by default the machine's memory.
          job: name of its job.
          copies: folder for copies of the variables that live there.

        Raises:
          tfmem.Error: the limit is below what its allocator's options can say, or there is no such
            folder.
        """
        limit = memory_limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if limit < _MIB:
            raise Error(f"memory_limit={memory_limit} is less than 1 MiB; give it in bytes")
        self.job = job
        self.device = device_of(job)
        self.limit_bytes = limit // _MIB * _MIB
        self.users = 0
        self.copies = None if copies is None else _copies(copies, self.device)
        self._lock = threading.Lock()
        self._spawn()

    def _spawn(self) -> None:
        log = tempfile.TemporaryFile(  # noqa: SIM115 - `_end` closes it
            "w+", prefix="tfmem-host-", errors="replace"
        )
        self._log: IO[str] = log
        self._process = _spawn(self.limit_bytes, log, self.job)
        self._waker = _spawn_waker(
            self._process.pid, "" if self.copies is None else self.copies.folder
        )
        self._unanswered, self._read_ahead = 0, b""

    def restart(self) -> None:
        """Ends what is left of it and starts it anew, with nothing in its memory."""
        self._end()
        self._spawn()

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
        fields = self._ask("memory")
        return HostMemory(
            fields["current"], fields["peak"], fields["resident"], limit_bytes=self.limit_bytes
        )

    def reset_peak(self) -> None:
        """Lets the peak of its memory begin anew.

        Raises:
          HostMemoryError: it has ended.
        """
        self._ask("reset")

    def _ask(self, question: str) -> dict[str, int]:
        """The answer to a question; those to earlier ones, which came too late, are dropped."""
        with self._lock:
            try:
                _pipe(self._process.stdin).write(f"{question}\n")
                _pipe(self._process.stdin).flush()
                self._unanswered += 1
                while self._unanswered:
                    answer = self._read(_PATIENCE)
                    self._unanswered -= 1
                return answer
            except (OSError, ValueError) as error:
                raise HostMemoryError(self.loss()) from error

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
            failure = f"it ended with {ending(self._process.wait())}"
            cause = error
        raise Error(
            f"the host process could not start: {failure}. Its last output:\n{self.tail()}\n"
            f"Check that `{sys.executable} -c 'import tensorflow'` works and that memory is free; "
            "a slow machine may need start_timeout=..."
        ) from cause

    def has_ended(self, patience: float = 1.0) -> bool:
        """Whether it has ended; its connections close a moment before the system reports that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return not self.is_alive

    def loss(self) -> str:
        """How it ended, what is lost with it, and what to do."""
        if not self.has_ended():
            return (
                f"{self._obituary()}\nCheck what this machine is busy with; if that does not help, "
                "end that process, enter a new host_process block, and restore a checkpoint"
            )
        if self.copies is not None:
            return self._obituary()
        return (
            f"{self._obituary()}\nVariables on the local device are intact, those on the host "
            "are lost. Leave the host_process block, enter a new one, and restore a checkpoint. If "
            "it was killed for want of memory, or (SIGSEGV, for which TensorFlow knows no better "
            f"way) received a tensor beyond its limit of {self.limit_bytes:,} bytes, raise "
            "memory_limit or move less to it"
        )

    def _obituary(self) -> str:
        """One sentence on how it ended, and the end of its output."""
        code = self._process.poll()
        how = "does not answer" if code is None else f"ended with {ending(code)}"
        output = self.tail()
        return f"the host process (pid {self.pid}) {how}" + (f":\n{output}" if output else "")

    def tail(self) -> str:
        """The last lines it wrote to its standard error."""
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if not _NOISE.match(line)]
        return "\n".join(lines[-12:])

    def stop(self) -> None:
        """Ends it, by its process id, and waits for that; its copies are deleted."""
        self._end()
        if self.copies is not None:
            self.copies.remove()

    def _end(self) -> None:
        for process in (self._waker, self._process):
            if process.poll() is None:
                process.kill()
            process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                _pipe(stream).close()

    def _read(self, timeout: float) -> dict[str, int]:
        """One answer; TimeoutError, OSError or ValueError when there is none."""
        stream = _pipe(self._process.stdout).fileno()
        while b"\n" not in self._read_ahead:
            if not select.select([stream], [], [], timeout)[0]:
                raise TimeoutError
            read = os.read(stream, 4096)
            if not read:
                raise OSError("it has ended")
            self._read_ahead += read
        line, _, self._read_ahead = self._read_ahead.partition(b"\n")
        fields: dict[str, int] = json.loads(line)
        return fields


def _copies(folder: str, device: str) -> Copies:
    from tfmem.runtime.copies import Copies  # which loads TensorFlow

    return Copies(folder, device)


def _spawn(limit_bytes: int, log: IO[str], job: str) -> subprocess.Popen[str]:
    """The child, with its own allocator and the paths of this process.

    Its working folder is this process's, because a checkpoint's part for a variable that lives
    there is written by the child, under the path that the owner gave.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_ALLOCATOR)}
    own = {
        "PYTHONPATH": _paths(),
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit_bytes // _MIB),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return _start(job, kept | own, log)


def _start(job: str, variables: Mapping[str, str], log: IO[str]) -> subprocess.Popen[str]:
    """A new process that serves: `host_server.main` is what it does."""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, job, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=variables,
        text=True,
    )


def _spawn_waker(pid: int, folder: str) -> subprocess.Popen[bytes]:
    """A third process, which lets the host process go on when a signal has stopped it.

    A thread of this process could not: TensorFlow holds Python's lock while it tells the host that
    a function is gone (2.21), and waits for ever for one that is stopped. It deletes the folder of
    the copies if this process is killed.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _WAKE, str(pid), str(os.getpid()), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": _paths()},
    )


def _paths() -> str:
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)


def ending(code: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ValueError("a pipe of the host process is missing")
    return stream
