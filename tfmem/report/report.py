"""What was planned and what was measured, as data and as text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tfmem.errors import Error
from tfmem.graph.ir import Value
from tfmem.plan import Plan
from tfmem.report import page, plots
from tfmem.simulation.simulate import Trace
from tfmem.units import format_bytes


@dataclass(frozen=True)
class Alive:
    """A tensor that is on the device at the peak.

    Attributes:
      value: which output of which node.
      op: the node's op type.
      nbytes: its size as allocated.
      source: line of user code that made it, ``file:line``, or which variable it is; "" where
        neither is known.
    """

    value: Value
    op: str
    nbytes: int
    source: str = ""


@dataclass(frozen=True)
class Origin:
    """Where a node comes from.

    Attributes:
      op: its op type.
      source: line of user code that made it, ``file:line``, or which variable it is; "" where
        neither is known.
    """

    op: str
    source: str = ""


@dataclass(frozen=True)
class Offer:
    """What a budget would cost.

    Attributes:
      budget: in bytes.
      plan: what would be done.
    """

    budget: int
    plan: Plan

    @property
    def slowdown(self) -> float:
        """Predicted step time over the original's."""
        return self.plan.step_seconds / max(1e-12, self.plan.baseline_step_seconds)


@dataclass(frozen=True)
class Report:
    """Predicted and, once a step has run, measured figures of one input signature.

    Attributes:
      name: of the function.
      plan: what was decided, with what it predicts.
      original: a step of the original function.
      planned: a step under the plan.
      origins: of the nodes that have one of the two's buffers or run in them.
      alive_at_peak: what makes up the planned peak, largest first.
      measured_peak_bytes: the most that the allocator held while one of the calls so far ran, what
        others hold included; None before the first call or where it keeps no statistics.
      planning_seconds: time from the trace to the rewritten function.
      frontier: what budgets would cost, largest first; only from `tfmem.explain`.
      others: reports of further devices.
      events: what was found in the steps that were watched, a line each.
    """

    name: str
    plan: Plan
    original: Trace
    planned: Trace
    origins: Mapping[str, Origin]
    alive_at_peak: tuple[Alive, ...]
    measured_peak_bytes: int | None
    planning_seconds: float
    frontier: tuple[Offer, ...] = ()
    others: tuple[Report, ...] = ()
    events: tuple[str, ...] = ()

    def text(self) -> str:
        """The report for people, a few lines."""
        measured = self.measured_peak_bytes
        lines = [
            replace(self.plan, others=()).summary(),
            f"measured peak    {format_bytes(measured) if measured else 'not measured'}",
            f"planned in       {self.planning_seconds:.2f} s",
            *self.events,
            "alive at the planned peak:",
        ]
        for alive in self.alive_at_peak[:10]:
            where = f"  {alive.source}" if alive.source else ""
            lines.append(f"  {format_bytes(alive.nbytes):>12}  {alive.op:<24} {alive.value}{where}")
        if self.frontier:
            lines.append("what a budget would cost:")
        for offer in self.frontier:
            lines.append(
                f"  {format_bytes(offer.budget):>12}  peak {format_bytes(offer.plan.peak_bytes)}, "
                f"{offer.slowdown:.2f} times the step time: {offer.plan.techniques}"
            )
        return "\n".join([*lines, *(report.text() for report in self.others)])

    def to_json(self) -> str:
        """The report as JSON text: the summary, and both steps in columns.

        Names, ops and lines stand in `texts` and are referred to by their place there. Times are in
        microseconds, positions are places in `order`.
        """
        return json.dumps(self._fields(), separators=(",", ":"))

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one page that needs no network.

        It shows device memory over the step before and after on one scale with the budget, the
        copies and the computation, and at a click the tensors alive at that moment.

        Raises:
          tfmem.Error: the file cannot be written.
        """
        write(path, page.render(self.to_json()))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws device memory over the step before and after, with the budget, as a picture.

        Args:
          path: its ending says which kind: .png, .svg, .pdf.

        Raises:
          tfmem.Error: matplotlib is not installed, or the file cannot be written.
        """
        plots.draw(self, path)

    def _fields(self) -> dict[str, Any]:
        texts = _Texts()
        return {
            "name": self.name,
            "device": self.plan.device,
            "host": self.plan.host,
            "budget": self.plan.budget,
            "baseline_peak_bytes": self.plan.baseline_peak_bytes,
            "peak_bytes": self.plan.peak_bytes,
            "measured_peak_bytes": self.measured_peak_bytes,
            "baseline_step_seconds": self.plan.baseline_step_seconds,
            "step_seconds": self.plan.step_seconds,
            "host_bytes": self.plan.host_bytes,
            "planning_seconds": self.planning_seconds,
            "is_unchanged": self.plan.is_noop,
            "events": self.events,
            "frontier": [
                {
                    "budget": offer.budget,
                    "peak_bytes": offer.plan.peak_bytes,
                    "step_seconds": offer.plan.step_seconds,
                    "slowdown": offer.slowdown,
                    "techniques": offer.plan.techniques,
                }
                for offer in self.frontier
            ],
            "summary": replace(self.plan, others=()).summary(),
            "original": self._columns(self.original, texts),
            "planned": self._columns(self.planned, texts),
            "texts": list(texts.places),
            "others": [report._fields() for report in self.others],
        }

    def _columns(self, trace: Trace, texts: _Texts) -> dict[str, Any]:
        buffers, copies = trace.buffers, trace.copies
        return {
            "order": self._nodes(trace.order, texts),
            "begin": [round(1e6 * seconds) for seconds in trace.begins],
            "end": [round(1e6 * seconds) for seconds in trace.ends],
            "bytes": trace.timeline.tolist(),
            "clones": [i for i, name in enumerate(trace.order) if name in self._clones],
            "buffers": self._nodes([buffer.value.node for buffer in buffers], texts)
            | {
                "bytes": [buffer.nbytes for buffer in buffers],
                "first": [buffer.first for buffer in buffers],
                "last": [buffer.last for buffer in buffers],
            },
            "copies": self._nodes([copy.value.node for copy in copies], texts)
            | {
                "bytes": [copy.nbytes for copy in copies],
                "to_host": [int(copy.to_host) for copy in copies],
                "begin": [round(1e6 * copy.begin) for copy in copies],
                "end": [round(1e6 * copy.end) for copy in copies],
            },
        }

    @cached_property
    def _clones(self) -> frozenset[str]:
        return frozenset(one.clone for one in self.plan.recomputations)

    def _nodes(self, names: Sequence[str], texts: _Texts) -> dict[str, list[int]]:
        origins = [self.origins.get(name, Origin("")) for name in names]
        return {
            "name": [texts.place(name) for name in names],
            "op": [texts.place(origin.op) for origin in origins],
            "source": [texts.place(origin.source) for origin in origins],
        }


class _Texts:
    """Texts, each once, by the place where it stands."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def write(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file for people; raises `tfmem.Error` if it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Error(f"cannot write {os.fspath(path)}: {error.strerror}") from error
