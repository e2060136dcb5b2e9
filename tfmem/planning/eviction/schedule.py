"""What a rehearsal decides: which node runs when, what runs again, what goes to the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Run(NamedTuple):
    """One run of a node: the first if `index` is 0, else that of the clone with this index."""

    node: int
    index: int  # type: ignore[assignment]  # tuple.index is never wanted here


@dataclass(slots=True)
class HostCopy:
    """A value's copy on the host, with its ways there and back.

    Attributes:
      pace: number of the run that waits for the copy to the host to land; -1 if none does.
      fetches: the ways back: number of the run that each is wanted by, and the runs that read it.
    """

    pace: int = -1
    fetches: list[tuple[int, list[Run]]] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """One step of a function under a memory limit.

    Attributes:
      runs: every run of a node on the device, in order.
      clones: the runs that read each clone.
      copies: the values (run, output) that have a copy on the host.
      seconds: time of a step of the function, by the rehearsal's own clock.
      peak_bytes: most bytes in use, what stays for the whole step included.
      timeline: bytes in use during each run.
    """

    runs: list[Run] = field(default_factory=list)
    clones: dict[Run, list[Run]] = field(default_factory=dict)
    copies: dict[tuple[Run, int], HostCopy] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    timeline: list[int] = field(default_factory=list)
