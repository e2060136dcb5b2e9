"""Asks kernels of a local device what they hold, by running each alone (`bridge.asked`)."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from tfmem.bridge import asked
from tfmem.bridge.asked import Answer, Ask, Question
from tfmem.bridge.traces import HeapEvent
from tfmem.costs.types import GRAIN
from tfmem.errors import Error
from tfmem.graph import device_names
from tfmem.runtime import devices, heap, memory
from tfmem.runtime.limited import Elsewhere

_COPIES = 4
"""Times of its inputs and outputs that a kernel may need to run at all: those, and as they are
copied for cuDNN. One without room would wait ten seconds for it."""

_MOST_KNOWN = 4096
"""Answers that are remembered."""

_AMPLE, _SECONDS = 2**34, 60.0
"""Bytes in which any kernel finds room, as far as the machine has them; seconds to wait for it."""


@contextmanager
def asking() -> Iterator[Ask]:
    """Gives what asks kernels; those that might end this process run in one of its own.

    That begins where memory is limited, with the first of them, and ends with the context.
    """
    with Elsewhere(_AMPLE) as elsewhere:
        yield partial(_ask, elsewhere)


def ask(question: Question) -> Answer | None:
    """What one kernel holds, as `asking` tells."""
    with asking() as ask_kernels:
        return ask_kernels(question)


def _ask(elsewhere: Elsewhere, question: Question) -> Answer | None:
    """What a kernel holds; None if it cannot be told.

    It cannot without room to run it, on another task's device, or where the allocator does not
    count. The device's peak begins anew.
    """
    if not device_names.is_local(question.device):
        return None
    may_end = question.op in asked.ENDING_OPS and not device_names.is_gpu(question.device)
    try:
        if may_end and not _has_all(question.device):
            return _answer_elsewhere(elsewhere, question)
        return _answer(question)
    except (tf.errors.OpError, Error):
        return None


def _answer_elsewhere(elsewhere: Elsewhere, question: Question) -> Answer:
    """As `_answer`, of a process of its own that has the same threads."""
    shapes, scratch = elsewhere.call(
        "tfmem.runtime.asking:answer_here",
        base64.b64encode(question.attrs).decode(),
        [(dtype.name, shape) for dtype, shape in question.inputs],
        [(dtype.name, shape) for dtype, shape in question.outputs],
        question.op,
        devices.threads_of_a_kernel(),
        timeout=_SECONDS,
    )
    return Answer.of(shapes, scratch)


def _has_all(device: str) -> bool:
    """Whether a CPU's allocator may take all that the machine has.

    Raises:
      tfmem.Error: it does not count.
    """
    in_use, _ = memory.memory_info(device)
    limit = memory.device_limit(device)
    return limit is None or limit - in_use >= _AMPLE


def answer_here(
    attrs: str, inputs: list[Any], outputs: list[Any], op: str, threads: int
) -> tuple[Any, Any]:
    """What a kernel of this process's CPU holds: shapes and scratch as of `Answer`.

    Args:
      attrs: in base 64; this and others as of `Question`, types by name.
      threads: that share the work of a kernel.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    given, made = (
        tuple((tf.as_dtype(name), tuple(shape)) for name, shape in one) for one in (inputs, outputs)
    )
    device = devices.full_name("CPU:0")
    question = Question(op, base64.b64decode(attrs), given, (), made, device)
    found = _answer(question)
    return found.shapes, found.scratch


@functools.lru_cache(_MOST_KNOWN)
def _answer(question: Question) -> Answer:
    """As `ask`; errors, which are not remembered, are raised."""
    needed = _COPIES * question.nbytes
    in_use, _ = memory.memory_info(question.device)
    limit = memory.device_limit(question.device)
    if limit is not None and in_use + needed > limit:
        raise tf.errors.ResourceExhaustedError(None, None, f"{question.op} has no room")
    is_gpu = device_names.is_gpu(question.device)
    tries = is_gpu and question.op in asked.TRYING_OPS
    try:
        with _little_room(question.device, needed + question.most) if tries else nullcontext():
            if is_gpu:  # where the first run tries algorithms
                asked.run(question)
            with heap.traced(question.device) as events:
                made = asked.run(question)
    finally:
        memory.reset_peak(question.device)
    return Answer.of((one.shape for one in made), _scratch(events, question.op))


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
