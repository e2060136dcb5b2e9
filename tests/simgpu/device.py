"""The environment of processes that have the simulated GPU, and what that is capable of."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.simgpu.build import library
from tfmem.costs import store

NAME = "/job:localhost/replica:0/task:0/device:{}:{}"


@dataclass(frozen=True)
class Capabilities:
    """How fast a simulated GPU is; by default so slow that this machine's CPU keeps up.

    Attributes:
      flops: floating-point operations a second.
      nbytes: bytes of its memory that kernels read or write in a second.
      launch: seconds that each kernel takes at least.
      to_device: bytes a second of the link, from the host.
      to_host: bytes a second of the link, to the host.
      latency: seconds of a copy before its first byte.
      both_ways: 1 if copies that meet do not slow one another, 2 if they share one link.
    """

    flops: float = 3e10
    nbytes: float = 6e9
    launch: float = 2e-5
    to_device: float = 1e9
    to_host: float = 1e9
    latency: float = 2e-5
    both_ways: float = 1.0

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the library that say so."""
        fields = dataclasses.asdict(self).items()
        return {f"SIMGPU_{name.removeprefix('n').upper()}": str(value) for name, value in fields}


@dataclass(frozen=True)
class Machine:
    """A GPU and the link to its host, in units a second, as their makers have them.

    Attributes:
      flops: floating-point operations on float32, without tensor cores.
      nbytes: bytes of its memory.
      link: bytes each way, of those that arrive: some 0.8 of what PCI Express moves.
    """

    flops: float
    nbytes: float
    link: float

    def scaled(self, flops: float = 2e10, nbytes: float = 2e9) -> Capabilities:
        """So much slower, all rates alike, that there are no more operations nor bytes a second."""
        scale = min(flops / self.flops, nbytes / self.nbytes)
        link = scale * self.link
        return Capabilities(
            flops=scale * self.flops, nbytes=scale * self.nbytes, to_device=link, to_host=link
        )


MACHINES = {
    "TITAN X, PCIe 3": Machine(11e12, 480e9, 12.5e9),
    "T4, PCIe 3": Machine(8.1e12, 320e9, 12.5e9),
    "A10, PCIe 4": Machine(31.2e12, 600e9, 25e9),
    "H100, PCIe 5": Machine(67e12, 3.35e12, 51e9),
}


def environment(cache: Path, known: Capabilities = Capabilities()) -> dict[str, str]:
    """What a process has to find in its environment to have a simulated GPU.

    Args:
      cache: folder for what tfmem keeps; `keep_probes` puts there what the device is capable of.
      known: what that is; as it usually is, by default.

    Raises:
      CannotBuildError: there can be none here.
    """
    return known.variables | {
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(library()),
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "SIMGPU_DEVICES": "1",
        store.DIRECTORY: str(cache),
    }


def keep_probes(fields: Mapping[str, float]) -> None:
    """Keeps what devices are capable of as if it had been probed; for a process that has them.

    To probe a slow device takes minutes, and finds what is known.
    """
    from tfmem.costs import history, profiler
    from tfmem.costs.types import Link, Rates

    known, machine = Capabilities(**fields), profiler.machine()
    host = NAME.format("CPU", 0)
    link = Link(
        to_host=known.to_host,
        from_host=known.to_device,
        latency=known.latency,
        contention=0.0,
        duplex=3.0 - known.both_ways,
    )
    for number in range(int(os.environ["SIMGPU_DEVICES"])):
        device = NAME.format("GPU", number)
        history.keep_probe(Rates(known.flops, known.nbytes, known.launch), machine, device)
        history.keep_probe(link, machine, device, host)
