"""What was planned and what was measured, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tfmem.budget import format_bytes
from tfmem.ir import Value
from tfmem.plan import Plan


@dataclass(frozen=True)
class Alive:
    """A tensor that is on the device at the peak.

    Attributes:
      value: which output of which node.
      op: the node's op type.
      nbytes: its size as allocated.
      source: line of user code that made it, ``file:line``; "" where it is not known.
    """

    value: Value
    op: str
    nbytes: int
    source: str = ""


@dataclass(frozen=True)
class Report:
    """Predicted and, once a step has run, measured figures of one input signature.

    Attributes:
      plan: what was decided, with what it predicts.
      baseline_timeline: bytes on the device while each node runs, in the original function.
      timeline: the same under the plan, [nodes in the planned order].
      alive_at_peak: what makes up the planned peak, largest first.
      measured_peak_bytes: the most that the allocator held during the calls so far; None before the
        first call or where it keeps no statistics.
      planning_seconds: time from the trace to the rewritten function.
      others: reports of further devices.
    """

    plan: Plan
    baseline_timeline: npt.NDArray[np.int64]
    timeline: npt.NDArray[np.int64]
    alive_at_peak: tuple[Alive, ...]
    measured_peak_bytes: int | None
    planning_seconds: float
    others: tuple[Report, ...] = ()

    def text(self) -> str:
        """The report for people, a few lines."""
        measured = self.measured_peak_bytes
        lines = [
            replace(self.plan, others=()).summary(),
            f"measured peak    {format_bytes(measured) if measured else 'not measured'}",
            f"planned in       {self.planning_seconds:.2f} s",
            "alive at the planned peak:",
        ]
        for alive in self.alive_at_peak[:10]:
            where = f"  {alive.source}" if alive.source else ""
            lines.append(f"  {format_bytes(alive.nbytes):>12}  {alive.op:<24} {alive.value}{where}")
        return "\n".join([*lines, *(report.text() for report in self.others)])
