"""What watched steps teach: bytes of a budget to keep free for what no prediction foresaw.

The allocator tells what a step really took, or the step ends out of memory at some node. From
either follows how many bytes the next plan has to leave free, and that is kept beside the plans, so
that the next process begins with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

from tfmem.bridge.capture import Captured
from tfmem.costs import history, profiler
from tfmem.costs.types import held_by
from tfmem.errors import BudgetError, Error
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.failures import Failure
from tfmem.functions.resolve import bytes_beside
from tfmem.graph.compact import SMALL
from tfmem.planning.cache import PLANNER
from tfmem.planning.candidate import FILLED_IN_ANY_ORDER, capacity
from tfmem.planning.request import Request
from tfmem.simulation.leaving import padding
from tfmem.units import format_bytes

_log = logging.getLogger("tfmem")

TIGHTER = 0.94
"""Part of what a plan was made for that the next one is made for where a step was out of memory
although no more was in use than foreseen: there was room, but not in one piece. Nearer to 1 it
takes more steps that fail (10 seconds each, in which TensorFlow waits for memory), further from it
plans waste more of the budget."""


_UNBOUNDED = 2**63


def unforeseen(captured: Captured, request: Request) -> int:
    """Bytes that earlier steps of a function took beyond what was predicted for such a request.

    A step that ended its process counts as one that was out of memory: on a CPU some of oneDNN's
    kernels do not look whether their scratch memory was there, and crash (TensorFlow 2.21).
    """
    lesson = _lesson(captured, request)
    found, after_death = lesson.nbytes(), lesson.of_the_dead()
    if after_death > found:
        _log.warning(
            "a process ended in a watched step of this plan: %s are left free on %s",
            format_bytes(after_death),
            request.device,
        )
        lesson.keep(after_death)
        lesson.end()
    return max(found, after_death)


def keep(captured: Captured, request: Request, nbytes: int) -> None:
    """Keeps what is to be foreseen from now on."""
    _lesson(captured, request).keep(nbytes)


class Risk:
    """A scope in which steps of a plan are made that may end the process: the next one knows it."""

    def __init__(self, captured: Captured, planned: Iterable[Planned]) -> None:
        """Takes what was decided for each device."""
        self._learned = [
            (_lesson(captured, one.request), after_failure(one, Failure("")))
            for one in planned
            if one.request.budget is not None
        ]

    def __enter__(self) -> None:
        for lesson, nbytes in self._learned:
            lesson.begin(nbytes)

    def __exit__(self, *_: object) -> None:
        for lesson, _nbytes in self._learned:
            lesson.end()


def _lesson(captured: Captured, request: Request) -> history.Lesson:
    names = " ".join(sorted(request.techniques))
    limits = repr((request.budget, request.max_slowdown))
    facts = request.device, request.host, names, limits, PLANNER
    return history.Lesson(captured.graph, profiler.machine(), *facts)


def after_excess(one: Planned, peak: int) -> int:
    """Bytes to keep free after a step that took more than the budget.

    Args:
      one: what was decided for the device.
      peak: the most that was in use in the step.
    """
    found = peak - one.decision.worst_bytes + one.request.bytes_unforeseen
    return max(one.request.bytes_unforeseen, min(found, _enough_for_order(one)))


def after_failure(one: Planned, failure: Failure) -> int:
    """Bytes to keep free after a step that was out of memory.

    What was predicted for the node that failed is too much if as much was in use as predicted, and
    in proportion if more was: nothing else is known of the rest of the step, which did not run. A
    buffer that the node was not to ask for, as scratch that no rule knows, is left free as a whole:
    it would be wanted beside as much as is predicted then.

    Args:
      one: what was decided for the device.
      failure: what TensorFlow said.
    """
    request = one.request
    room = _room(one)
    at_node = _foreseen(one) * _share_at(one, failure)
    needed = (failure.peak_bytes or 0) + failure.nbytes - request.bytes_beside
    larger = needed / max(1.0, at_node)
    most = room / larger if larger > 1 else at_node
    most = min(most, TIGHTER * (room - request.bytes_unforeseen))
    found = max(request.bytes_unforeseen + 1, math.ceil(room - most))
    found = max(found, request.bytes_unforeseen + _not_foreseen(one, failure, larger))
    return min(found, _enough_for_order(one))


def more_is_held(entry: Entry) -> bool:
    """Whether others hold more of a device than when an entry was planned for it.

    Small buffers do not count: they lie in pieces that are kept apart, where they break up nothing.
    """
    return any(
        bytes_beside(entry.captured, one.request)
        >= one.request.bytes_beside + padding(one.graph, one.costs, one.plan) + SMALL
        for one in entry.planned
    )


def reachable(entry: Entry, learned: Mapping[str, int], error: Error) -> dict[str, int]:
    """What the plan with the least peak leaves free; nothing if that is not more than now.

    Where holes are in the way of that plan, half of what was wanted more is tried.

    Args:
      entry: as it is now.
      learned: bytes that were to be left free on its device.
      error: why they cannot be.
    """
    if len(entry.planned) > 1 or not isinstance(error, BudgetError):
        return {}
    request = entry.planned[0].request
    least, most = request.bytes_unforeseen, learned[request.device]
    if error.least_bytes is None or request.budget is None:
        return {}
    free = most - (error.least_bytes - request.budget)
    free = free if free < most else (least + most) // 2
    return {request.device: free} if free > least else {}


def _not_foreseen(one: Planned, failure: Failure, larger: float) -> int:
    """Bytes of the buffer that found no room, if the node that failed was to have none like it.

    Where more was in use than predicted, its buffers are taken to be as many times as large.
    """
    costs, names = one.costs, failure.nodes_of(one.graph.by_name)
    if not names:
        return 0
    name, wanted = names[0], costs.allocated(failure.nbytes)
    within = costs.requests[name].events if name in costs.requests else ()
    asked = (nbytes for _, nbytes in within)
    sizes = *one.graph.by_name[name].nbytes, *held_by(costs, name), *asked
    foreseen = [*map(costs.allocated, sizes)]
    return 0 if wanted in foreseen or wanted <= larger * max(foreseen, default=0) else wanted


def _enough_for_order(one: Planned) -> int:
    """Bytes that are enough to have the nodes ordered, where they are not; else no bound.

    How much of an excess was due to nodes that ran together is not known before they are ordered.
    """
    if not one.plan.is_noop:
        return _UNBOUNDED
    in_any_order = (_foreseen(one) + one.decision.loose_bytes) / FILLED_IN_ANY_ORDER
    for needed in (in_any_order, _foreseen(one)):
        found = math.floor(_room(one) - needed) + 1
        if found > one.request.bytes_unforeseen:
            return found
    return _UNBOUNDED


def _foreseen(one: Planned) -> int:
    """The predicted peak of the function alone."""
    return one.decision.worst_bytes - one.request.bytes_beside - one.request.bytes_unforeseen


def _room(one: Planned) -> float:
    """What the budget and the allocator leave beside others."""
    request = one.request
    assert request.budget is not None
    most = capacity(one.graph, one.costs, one.plan, request.room)
    return min(request.budget - request.bytes_beside, most)


def _share_at(one: Planned, failure: Failure) -> float:
    """What is predicted to be in use while the node that failed runs, over the peak."""
    after = one.decision.after
    position = {name: i for i, name in enumerate(after.order)} if not one.plan.is_noop else {}
    found = [int(after.timeline[position[name]]) for name in failure.nodes_of(position)]
    return found[0] / max(1, after.peak_bytes) if found else 1.0
