"""What became of a process of the wild suite, from what it told."""

from __future__ import annotations

import itertools
import json
import math
import signal
import statistics
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDING = 1e-4
"""Relative difference of losses that needs no comparison with how other kernels round."""

AMPLIFIED = 30.0
"""How many times further losses may drift than plain TensorFlow that rounds otherwise."""

_FOLDERS = (Path(__file__).parent.parent.parent, sysconfig.get_path("purelib"))

_FULL = ("OOM when allocating", "ran out of memory trying to allocate")

_ACTED = ("planned again: ", "it is made once more")
"""What tfmem says when a watched step took more than its budget, and something was done about it;
a plan that is another before any step ended, as with an iterator that is known late, is no such."""


@dataclass(frozen=True)
class Events:
    """What a process told.

    Attributes:
      told: its events in order.
      status: its exit status; None if it fell silent and was ended.
      log: what it wrote to standard output and standard error.
    """

    told: tuple[dict[str, Any], ...]
    status: int | None
    log: str

    @staticmethod
    def parse(text: str, status: int | None, log: str) -> Events:
        """From lines of JSON, of which the last may be cut off."""
        told = []
        for line in text.splitlines():
            try:
                told.append(json.loads(line))
            except ValueError:
                break
        return Events(tuple(told), status, log)

    def of(self, name: str) -> list[dict[str, Any]]:
        """The events of a name."""
        return [one for one in self.told if one["event"] == name]

    @property
    def gpu(self) -> str:
        """What its GPU is called; "" if it told of none."""
        return next((one["where"] for one in self.of("built")), "")

    @property
    def phase(self) -> str:
        """Where it ended: `loading`, `building`, `planning`, or the number of the step."""
        stages = [one for one in self.told if one["event"] in _STAGES]
        last = stages[-1]["event"] if stages else "loading"
        if last in _BEFORE:
            return str(last)
        return f"step {max(1, self.told[-1]['step'])}"


_STAGES = ("loading", "building", "built", "planning", "running", "step")
_BEFORE = ("loading", "building", "planning")


def judged(
    events: Events,
    budget: int | None,
    plain: dict[str, Any] | None,
    rounding: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Fields of a row.

    Args:
      events: what the process told.
      budget: bytes it had; None for one without a budget.
      plain: the row of the case as it is; None for that row itself.
      rounding: gives the row of the case as it is, rounded otherwise; asked for where losses differ
        by more than `ROUNDING`.
    """
    row = _measured(events, from_step=2 if budget is None else 1)
    outcome, reason = _ended(events)
    if budget is None or plain is None:
        return {**row, "outcome": outcome, "reason": reason, "losses": _losses(events)}
    difference = differing(plain["losses"], _losses(events))
    if outcome == "trained":
        outcome = "kept" if row["peak"] <= budget else "exceeded"
    if difference > ROUNDING:
        drift = differing(plain["losses"], rounding()["losses"])
        row["drift"] = drift
        if difference > max(ROUNDING, AMPLIFIED * drift):
            outcome = "wrong numbers"
    return {**row, "outcome": outcome, "reason": reason, "difference": difference}


def or_of_tensorflow(
    found: dict[str, Any], events: Events, plainly: Callable[[], Events]
) -> dict[str, Any]:
    """What `judged` found, but that TensorFlow itself has no room if a signal ends it just so.

    Args:
      found: fields of a row.
      events: what the process told.
      plainly: runs the case without tfmem in as little memory; asked for where a signal ended the
        process before there was a plan.
    """
    has_begun = events.phase not in _BEFORE
    is_ended = found["outcome"] == "crashed" and (events.status or 0) < 0
    if has_begun or not is_ended or plainly().status != events.status:
        return found
    reason = f"{found['reason']}, without tfmem too"
    return found | {"outcome": "no room to build", "reason": reason}


def _measured(events: Events, from_step: int) -> dict[str, Any]:
    """What was predicted and what was measured, in bytes and seconds; None where nothing was.

    The peak is the most of the steps from `from_step` on, for tracing counts against a budget only.
    """
    planned, again, steps, least = map(events.of, ("planned", "replanned", "step", "least"))
    latest = {one["function"]: one for one in (*planned, *again)}.values()
    peaks = [one["peak"] for one in steps]
    later = peaks[from_step - 1 :] or peaks
    return {
        "phase": events.phase,
        "trained": len(steps),
        "peak": max(later, default=None),
        "peak_first": peaks[0] if peaks else None,
        "peak_second": peaks[1] if len(peaks) > 1 else None,
        "peak_last": peaks[-1] if peaks else None,
        "predicted": max((one["predicted"] for one in latest), default=None),
        "original": max((one["original"] for one in latest), default=None),
        "planning_seconds": round(sum(one["seconds"] for one in planned), 2),
        "step_seconds": statistics.median(one["seconds"] for one in steps) if steps else None,
        "noop": planned[0]["reason"] if planned else "",
        "least": _least(events, least),
        "replanned": _times_acted(events),
        "warnings": _warnings(events),
    }


def _least(events: Events, least: Sequence[dict[str, Any]]) -> int | None:
    refusals = [one["least"] for one in events.of("error") if one.get("least")]
    return max([*(one["nbytes"] for one in least), *refusals], default=None)


def _times_acted(events: Events) -> int:
    lines = [one["text"] for one in events.of("log") if one["level"] == "WARNING"]
    return sum(any(text in line for text in _ACTED) for line in lines)


def _warnings(events: Events) -> list[str]:
    lines = [one["text"] for one in events.of("log") if one["level"] != "INFO"]
    return [line[:300] for line in dict.fromkeys(lines)][:5]


def _ended(events: Events) -> tuple[str, str]:
    """Outcome and reason, before peak and losses are looked at."""
    if events.status is None:
        return "hung", f"silent in {events.phase}"
    errors, phase = events.of("error"), events.phase
    if errors:
        text = _first_line(errors[0]["text"])
        if errors[0]["is_full"]:
            has_begun = phase not in ("loading", "building")
            return ("out of memory" if has_begun else "no room to build"), text
        if errors[0]["is_refusal"] and phase == "planning":
            return "refused", text
        return "crashed", text
    if events.of("end"):
        return "trained", ""
    if any(text in events.log for text in _FULL):
        return "out of memory", _signal(events.status)
    return "crashed", _signal(events.status)


def _first_line(text: str) -> str:
    """The line that says what happened; TensorFlow's stands under the trace of the graph.

    Files are named from where the project or its libraries lie, which is elsewhere for others.
    """
    for folder in _FOLDERS:
        text = text.replace(f"{folder}/", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(_FULL) or "node " in line]
    if "Graph execution error" in lines[0] and telling:
        return f"{lines[0].partition(':')[0]}: {telling[-1]}"[:300]
    return lines[0][:300]


def _signal(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _losses(events: Events) -> list[list[float]]:
    return [one["losses"] for one in events.of("step")]


def differing(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """Largest difference of the losses that both have, relative to the largest of that loss.

    0 where all are the same bitwise; infinite where one is a number and the other is none.
    """
    most = 0.0
    columns = itertools.zip_longest(*before, fillvalue=0.0)
    largest = [max(map(abs, filter(math.isfinite, column)), default=0.0) for column in columns]
    for one, other in zip(before, after, strict=False):
        if len(one) != len(other):
            return math.inf
        for a, b, scale in zip(one, other, largest, strict=False):
            if a == b or (math.isnan(a) and math.isnan(b)):
                continue
            if not math.isfinite(a - b):
                return math.inf
            most = max(most, abs(a - b) / max(scale, 1e-30))
    return most
