"""Asks kernels of a local device what they hold, by running each alone (`bridge.asked`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from tfmem.bridge import asked
from tfmem.bridge.asked import Answer, Question
from tfmem.bridge.traces import HeapEvent
from tfmem.costs.types import GRAIN
from tfmem.errors import Error
from tfmem.graph import device_names
from tfmem.runtime import heap, memory

_COPIES = 4
"""Times of its inputs and outputs that a kernel may need to run at all: those, and as they are
copied for cuDNN. One without room would wait ten seconds for it."""

_MOST_KNOWN = 4096
"""Answers that are remembered."""


def ask(question: Question) -> Answer | None:
    """What a kernel holds; None if it cannot be told.

    It cannot without room to run it, in another process, or where the allocator does not count.
    It runs twice, for its first run tries algorithms. The device's peak begins anew.
    """
    if not device_names.is_local(question.device):
        return None
    try:
        return _answer(question)
    except (tf.errors.OpError, Error):
        return None


@functools.lru_cache(_MOST_KNOWN)
def _answer(question: Question) -> Answer:
    """As `ask`; errors, which are not remembered, are raised."""
    needed = _COPIES * question.nbytes
    in_use, _ = memory.memory_info(question.device)
    limit = memory.device_limit(question.device)
    if limit is not None and in_use + needed > limit:
        raise tf.errors.ResourceExhaustedError(None, None, f"{question.op} has no room")
    tries = question.op in asked.TRYING_OPS
    try:
        with _little_room(question.device, needed + question.most) if tries else nullcontext():
            asked.run(question)
            with heap.traced(question.device) as events:
                made = asked.run(question)
    finally:
        memory.reset_peak(question.device)
    return Answer(tuple(tuple(one.shape) for one in made), _scratch(events, question.op))


@contextmanager
def _little_room(device: str, nbytes: int) -> Iterator[None]:
    """Holds what is free of a device, but for so many bytes."""
    limit = memory.device_limit(device)
    held = None
    if limit is not None:
        _, pool, largest = heap.pool_of(device, limit)
        rest = (largest - nbytes) // GRAIN * GRAIN
        if pool == limit and rest > 0:
            held = heap.side_by_side(device, rest, largest)
    yield
    del held


def _scratch(events: Sequence[HeapEvent], op: str) -> tuple[int, ...]:
    """The buffers that a kernel gave back, and a 0 where it made the first that it did not.

    One as large as all that were held at once, if it gave some back before it asked for others.
    """
    asked: list[int] = []
    held: dict[int, int] = {}
    most = 0
    for one in events:
        if one.is_request and one.node in (op, f"_MklNative{op}"):
            held[one.address] = len(asked)
            asked.append(one.requested)
        elif not one.is_request and one.address in held:
            most = max(most, sum(asked[number] for number in held.values()))
            del held[one.address]
    kept = sorted(held.values())
    sizes = [nbytes for number, nbytes in enumerate(asked) if number not in kept]
    at_once = max(0, most - sum(asked[number] for number in kept))
    if sum(sizes) > at_once:
        return (at_once,) * bool(at_once)
    if not sizes or not kept:
        return tuple(sizes)
    return (*sizes[: kept[0]], 0, *sizes[kept[0] :])
