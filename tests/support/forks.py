"""Child processes that begin where TensorFlow has been imported, which takes most of their seconds.

    python -m tests.support.forks SOCKET PROCESS

A process that has imported TensorFlow, and done nothing with it, takes requests from a socket until
another process ends, whose number is given: that of all tests, or of those that run by themselves.
Of each it makes a fork that runs the job as `tfmem.runtime.limited` would in a new process: what
the environment says of memory is read when an allocator is made, long after the import. Host
processes that these forks start are forks of the same process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tfmem.costs import history
from tfmem.runtime import host_child

OF_A_JOB = (
    "CUDA_VISIBLE_DEVICES",
    "PYTEST_CURRENT_TEST",
    "TFMEM_CACHE_DIR",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB",
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_NUM_INTEROP_THREADS",
)
"""Variables that nothing reads while TensorFlow is imported."""

_PLUGGED = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"

OF_AN_IMPORT = (
    "PYTHONPATH",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_ENABLE_ONEDNN_OPTS",
    _PLUGGED,
    "TF_USE_LEGACY_KERAS",
)
"""Variables of which several values are worth a process that has imported TensorFlow with them."""

OF_A_DEVICE = "SIMGPU_"
"""How variables begin that are read when the simulated GPU is loaded, which an import does."""


class Forked:
    """A fork, as much of `subprocess.Popen` as who waits for one needs.

    Args:
      nursery: the socket of the process that makes it.
      runs: the module of `tfmem.runtime` whose `main` it runs.
      arguments: of that.
      variables: its environment.
      streams: the files of its standard streams.
    """

    def __init__(
        self,
        nursery: str,
        runs: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        streams: Sequence[int],
    ) -> None:
        self._connection = connection = socket.socket(socket.AF_UNIX)
        asked = {"runs": runs, "arguments": arguments, "variables": dict(variables)}
        connection.connect(nursery)
        socket.send_fds(connection, [b"."], streams)
        connection.sendall(json.dumps(asked | {"folder": os.getcwd()}).encode() + b"\n")
        self._answers = connection.makefile("r")
        self.pid = int(self._answers.readline())
        self._status: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None

    def poll(self) -> int | None:
        """Its exit status, None if it still runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal.

        Raises:
          subprocess.TimeoutExpired: it still runs.
        """
        if self._status is None:
            ready, _, _ = select.select([self._connection], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            self._status = os.waitstatus_to_exitcode(int(self._answers.readline()))
            self._answers.close()
            self._connection.close()
        return self._status

    def kill(self) -> None:
        """Ends it, if it still runs."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Nurseries:
    """The processes that forks are made of, one for each environment of an import.

    Args:
      usual: variables that jobs have but for those that are their own.
      folder: where their sockets are; who shares it shares them.
      ends_with: the number of a process; when it has ended, so do they.
    """

    def __init__(self, usual: Mapping[str, str], folder: Path, ends_with: int) -> None:
        self._usual, self._folder, self._ends_with = _others(usual), folder, ends_with

    def start(self, job: str, variables: Mapping[str, str], out: Any, err: Any) -> Forked | None:
        """A fork that runs a job of `limited`; None if that takes an environment of its own."""
        is_of_cuda = json.loads(job)["gpu_limit_mib"] and _PLUGGED not in variables
        if _others(variables) != self._usual or is_of_cuda:
            return None
        with open(os.devnull, "rb") as nothing:
            streams = [file.fileno() for file in (nothing, out, err)]
            return Forked(self._nursery(variables), "limited", [job], variables, streams)

    def _nursery(self, variables: Mapping[str, str]) -> str:
        """The socket of the process for an environment, which is begun if it is the first."""
        key = sorted(item for item in variables.items() if _is_of_an_import(item[0]))
        path = self._folder / hashlib.sha256(repr(key).encode()).hexdigest()[:8]
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._begin(path, variables)
        return str(path)

    def _begin(self, path: Path, variables: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", __name__, str(path), str(self._ends_with)]
        kept = {name: text for name, text in variables.items() if name not in OF_A_JOB}
        nothing = os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0
        pid = os.posix_spawn(sys.executable, command, kept, file_actions=[nothing])
        while not path.exists():
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the import failed"
            time.sleep(0.05)


def _others(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that are neither a job's own nor told apart by nurseries."""
    return {
        name: text
        for name, text in variables.items()
        if name not in OF_A_JOB and not _is_of_an_import(name)
    }


def _is_of_an_import(name: str) -> bool:
    return name in OF_AN_IMPORT or name.startswith(OF_A_DEVICE)


def serve(path: str, ends_with: int) -> None:
    """Makes forks until another process has ended."""
    for name in ("tfmem.keras", "tfmem.runtime.limited", "tensorflow.keras"):
        importlib.import_module(name)
    importlib.import_module("tfmem.bridge.instances").freeze()  # nothing was made yet
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.part")
    listener.listen()
    os.rename(f"{path}.part", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while history._is_alive(ends_with):
        ready, _, _ = select.select([listener], [], [], 1.0)
        if not ready:
            continue
        connection, _ = listener.accept()
        if not os.fork():
            _keep(connection, path)
        connection.close()


def _keep(connection: socket.socket, path: str) -> None:
    """Makes a fork, and tells its number and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    asked = json.loads(connection.makefile("r").readline())
    if not (pid := os.fork()):
        connection.close()
        _run(asked, streams, path)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _run(asked: Mapping[str, Any], streams: Sequence[int], path: str) -> None:
    """The job, in this process, as if it were a new one."""
    os.environ.clear()
    os.environ.update(asked["variables"])
    os.chdir(asked["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    module = importlib.import_module(f"tfmem.runtime.{asked['runs']}")
    sys.argv = ["-c", *asked["arguments"]]
    if asked["runs"] == "limited":
        host_child._start = _hosts_of(path, _others(os.environ), list(sys.path))
    else:
        sys.argv.append(str(os.getppid()))
    module.main()


def _hosts_of(path: str, usual: Mapping[str, str], paths: Sequence[str]) -> Any:
    """What starts host processes: as forks, unless they want another environment."""
    in_a_new_process, serves = host_child._start, host_child._SERVE

    def start(job: str, variables: Mapping[str, str], log: Any) -> Any:
        is_another = serves != host_child._SERVE or sys.path != paths
        if is_another or _others(variables) != usual:
            return in_a_new_process(job, variables, log)
        (asks, into), (out_of, answers) = os.pipe(), os.pipe()
        made = Forked(path, "host_server", [job], variables, (asks, answers, log.fileno()))
        os.close(asks)
        os.close(answers)
        made.stdin, made.stdout = os.fdopen(into, "w"), os.fdopen(out_of)
        return made

    return start


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
