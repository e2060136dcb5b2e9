"""What a rehearsal decides: which node runs when, what runs again, what goes to the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """One run of a node: the first if `clone` is 0, else that of the clone with this number."""

    node: int
    clone: int


@dataclass(slots=True)
class HostCopy:
    """A value's copy on the host, with its ways there and back.

    Attributes:
      pace: index of the step that waits for the copy to the host to land; -1 if none does.
      fetches: the ways back: index of the step that each is wanted by, and the steps that read it.
    """

    pace: int = -1
    fetches: list[tuple[int, list[Step]]] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """One step of a function under a memory limit.

    Attributes:
      steps: every run of a node on the device, in order.
      clones: the steps that read each clone.
      copies: the values (step, output) that have a copy on the host.
      seconds: time of a step of the function, by the rehearsal's own clock.
      peak_bytes: most bytes in use, what stays for the whole step included.
      timeline: bytes in use while each step runs.
    """

    steps: list[Step] = field(default_factory=list)
    clones: dict[Step, list[Step]] = field(default_factory=dict)
    copies: dict[tuple[Step, int], HostCopy] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    timeline: list[int] = field(default_factory=list)
