"""Local TensorFlow servers that stand for machines: each a device of its own with a hard limit.

A machine's device is the CPU of a server process; its host, where it has one, that of another. A
model that is spread over them says which of its parts a machine computes and holds (`Spread`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import tensorflow as tf

from tfmem.runtime import host
from tfmem.runtime.host_child import HostProcess, device_of
from tfmem.runtime.memory import UNCLAIMED, buffer

_WORKER, _HOST = "worker{}", "host{}"
"""Jobs of a machine, by its number."""

_START_TIMEOUT = 120.0


def worker(number: int) -> str:
    """Full name of a machine's device."""
    return device_of(_WORKER.format(number))


def host_of(number: int) -> str:
    """Full name of a machine's host."""
    return device_of(_HOST.format(number))


@dataclass(frozen=True)
class Spread:
    """Where the parts of a model are.

    Attributes:
      machines: over how many they are spread in turn; 0 for a model of this process alone.
      on_hosts: whether variables are held by the machines' hosts.
    """

    machines: int = 0
    on_hosts: bool = False

    def computing(self, part: int) -> AbstractContextManager[None]:
        """The scope in which a part computes."""
        return self._on(worker, part)

    def holding(self, part: int) -> AbstractContextManager[None]:
        """The scope in which the variables of a part are made."""
        return self._on(host_of if self.on_hosts else worker, part)

    def _on(self, named: object, part: int) -> AbstractContextManager[None]:
        if not self.machines:
            return contextlib.nullcontext()
        return tf.device(named(part % self.machines))  # type: ignore[operator, no-any-return]


@dataclass(frozen=True)
class Cluster:
    """Machines that run.

    Attributes:
      workers: their processes, whose memory is limited.
      hosts: processes that hold what leaves these; none, or as many.
    """

    workers: tuple[HostProcess, ...]
    hosts: tuple[HostProcess, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that any of the workers held since `reset`."""
        return max(process.memory().peak_bytes for process in self.workers)

    def reset(self) -> None:
        """Lets the peaks begin anew."""
        for process in self.workers:
            process.reset_peak()


@contextlib.contextmanager
def cluster(machines: int, limit: int | None, has_hosts: bool) -> Iterator[Cluster]:
    """Starts machines and connects this process to them; they end with the scope.

    Args:
      machines: how many.
      limit: most bytes each worker may hold; None for the machine's memory.
      has_hosts: whether each has a host beside it.
    """
    with ExitStack() as stack:

        def start(job: str, limit: int | None) -> HostProcess:
            process = HostProcess(limit, job)
            stack.callback(process.stop)
            return process

        workers = [start(_WORKER.format(i), limit) for i in range(machines)]
        hosts = [start(_HOST.format(i), None) for i in range(machines if has_hosts else 0)]
        ports = {p.job: p.wait_until_ready(_START_TIMEOUT) for p in (*workers, *hosts)}
        host.connect({job: [f"127.0.0.1:{port}"] for job, port in ports.items()})
        stack.callback(host.connect, {})
        for process in workers if limit else ():
            with tf.device(process.device):  # one region, so that what fits is what is free
                buffer(process.limit_bytes - UNCLAIMED)
        yield Cluster(tuple(workers), tuple(hosts))
