"""What watched steps teach: bytes of a budget to keep free for what no prediction foresaw.

The allocator tells what a step really took, or the step ends out of memory at some node. From
either follows how many bytes the next plan has to leave free, and that is kept beside the plans, so
that the next process begins with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tfmem.bridge.capture import Captured
from tfmem.costs import history, profiler
from tfmem.functions.entry import Planned
from tfmem.functions.failures import Failure
from tfmem.planning.cache import PLANNER
from tfmem.planning.candidate import capacity
from tfmem.planning.judge import UNORDERED
from tfmem.planning.request import Request

TIGHTER = 0.94
"""Part of what a plan was made for that the next one is made for where a step was out of memory
although no more was in use than foreseen: there was room, but not in one piece. Nearer to 1 it
takes more steps that fail (10 seconds each, in which TensorFlow waits for memory), further from it
plans waste more of the budget."""


_UNBOUNDED = 2**63


def unforeseen(captured: Captured, request: Request) -> int:
    """Bytes that earlier steps of a function took beyond what was predicted for such a request."""
    return history.unforeseen(captured.graph, profiler.machine(), *_facts(request))


def keep(captured: Captured, request: Request, nbytes: int) -> None:
    """Keeps what is to be foreseen from now on."""
    history.keep_unforeseen(nbytes, captured.graph, profiler.machine(), *_facts(request))


def _facts(request: Request) -> Iterable[str]:
    names = " ".join(sorted(request.techniques))
    limits = (request.budget, request.max_slowdown)
    return request.device, request.host, names, repr(limits), PLANNER


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
    in proportion if more was: nothing else is known of the rest of the step, which did not run.

    Args:
      one: what was decided for the device.
      failure: what TensorFlow said.
    """
    request = one.request
    room = _room(one)
    at_node = _foreseen(one) * _share_at(one, failure)
    needed = (failure.peak_bytes or 0) + failure.nbytes - request.bytes_beside
    most = at_node * min(1.0, room / max(1, needed))
    most = min(most, TIGHTER * (room - request.bytes_unforeseen))
    found = max(request.bytes_unforeseen + 1, math.ceil(room - most))
    return min(found, _enough_for_order(one))


def _enough_for_order(one: Planned) -> int:
    """Bytes that are enough to have the nodes ordered, where they are not; else no bound.

    How much of an excess was due to nodes that ran together is not known before they are ordered.
    """
    if not one.plan.is_noop:
        return _UNBOUNDED
    for above in (UNORDERED, 1.0):
        found = math.floor(_room(one) - above * _foreseen(one)) + 1
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
