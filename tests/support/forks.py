"""Child processes that begin where TensorFlow has been imported, which takes most of their seconds.

    python -m tests.support.forks SOCKET

A process that has imported TensorFlow, and done nothing with it, takes requests from a socket. Of
each it makes a fork that runs the job as `tfmem.runtime.limited` would in a new process: what the
environment says of memory is read when an allocator is made, long after the import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OF_A_JOB = (
    "CUDA_VISIBLE_DEVICES",
    "PYTEST_CURRENT_TEST",
    "TFMEM_CACHE_DIR",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB",
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
    """A fork, as much of `subprocess.Popen` as who waits for a limited run needs."""

    def __init__(self, connection: socket.socket) -> None:
        self._answers = connection.makefile("r")
        self._connection = connection
        self.pid = int(self._answers.readline())
        self._status: int | None = None

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
    """

    def __init__(self, usual: Mapping[str, str]) -> None:
        self._usual = _others(usual)
        self._folder = tempfile.TemporaryDirectory(prefix="tfmem-forks-")
        self._sockets: dict[frozenset[tuple[str, str]], Path] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, job: str, variables: Mapping[str, str], out: Any, err: Any) -> Forked | None:
        """A fork that runs a job of `limited`; None if that takes an environment of its own."""
        is_of_cuda = json.loads(job)["gpu_limit_mib"] and _PLUGGED not in variables
        if _others(variables) != self._usual or is_of_cuda:
            return None
        key = frozenset(item for item in variables.items() if _is_of_an_import(item[0]))
        if key not in self._sockets:
            self._sockets[key] = self._nursery(variables)
        asked = {"job": job, "variables": dict(variables), "folder": os.getcwd()}
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._sockets[key]))
        connection.sendall(json.dumps(asked | {"out": out.name, "err": err.name}).encode() + b"\n")
        return Forked(connection)

    def _nursery(self, variables: Mapping[str, str]) -> Path:
        path = Path(self._folder.name) / str(len(self._sockets))
        command = [sys.executable, "-m", __name__, str(path)]
        kept = {name: text for name, text in variables.items() if name not in OF_A_JOB}
        self._processes.append(subprocess.Popen(command, env=kept, stdin=subprocess.PIPE))
        while not path.exists():
            assert self._processes[-1].poll() is None, "the import failed"
            time.sleep(0.05)
        return path

    def close(self) -> None:
        """Ends them."""
        for process in self._processes:
            process.communicate()  # which ends its standard input
        self._folder.cleanup()


def _others(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that are neither a job's own nor told apart by nurseries."""
    return {
        name: text
        for name, text in variables.items()
        if name not in OF_A_JOB and not _is_of_an_import(name)
    }


def _is_of_an_import(name: str) -> bool:
    return name in OF_AN_IMPORT or name.startswith(OF_A_DEVICE)


def serve(path: str) -> None:
    """Makes forks until the standard input ends, which it does with who started this."""
    for name in ("tfmem.keras", "tfmem.runtime.limited", "tensorflow.keras"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # tfmem collects for each plan: what was imported takes most of the time
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.part")
    listener.listen()
    os.rename(f"{path}.part", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if not os.fork():
            _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Makes a fork, and tells its number and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked = json.loads(connection.makefile("r").readline())
    if not (pid := os.fork()):
        _run(asked)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _run(asked: Mapping[str, Any]) -> None:
    """The job, in this process, as if it were a new one."""
    os.environ.clear()
    os.environ.update(asked["variables"])
    os.chdir(asked["folder"])
    for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.argv = ["-c", asked["job"]]
    from tfmem.runtime import limited

    limited.main()


if __name__ == "__main__":
    serve(sys.argv[1])
