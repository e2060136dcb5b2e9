"""The free chunks of a device's allocator: measured, and laid out before a plan's first step.

TensorFlow does not tell where its BFC allocator has room, but its profiler reports of every chunk
that is handed out its address and size, and which part of the free bytes is not in the largest free
chunk. `measured` asks for buffers of many sizes and gives each back at once: best fit shows the
smallest chunk that takes it. That takes some milliseconds and changes nothing but the allocator's
peak, which begins anew.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfmem.bridge import traces
from tfmem.bridge.traces import HeapEvent
from tfmem.costs.types import GRAIN
from tfmem.graph import device_names
from tfmem.runtime import devices, memory
from tfmem.runtime.regions import regions

LEAST_CHUNK = 2**15
"""Bytes of the smallest free chunks that are looked for: smaller ones take none of the buffers that
decide whether a step has room."""

_STEP = 0.7
"""Of one size that is asked for to the next. A chunk of less than twice the request is handed out
whole, and so tells its size. Of 84 chunks all were found at 0.6 to 0.9, at 0.7 in half the time."""

_MOST, _ALMOST = 0.7, 0.95
"""Of the largest free chunk, the most that is asked for (more than half, so that it is handed out
whole), and the least that is taken for it."""

_REST = 100 * 2**20
"""Bytes of a chunk that may be left over: where 128 MiB are, it is split whatever is asked for."""

_MOST_ROUNDS = 40
"""How often all sizes are asked for, the chunks found meanwhile being held. Chunks of similar sizes
hide one another, so that each round finds some; the next one asks for more of those sizes."""

_FEW = 6
"""One in so many sizes is asked for at first."""

MOST_AT_ONCE = 64
"""Buffers of a size that are asked for at a time, once chunks of it were found."""

_HELD, _PARTS = (2**12, 2**15, 2**18), 64
"""Bytes of buffers that are held to learn how much is free; then a part of what was found to be."""

_DIGITS = 2e-6
"""By how much the difference of two parts of the free bytes, as reported, may be wrong."""

_REGIONS = 2**16
"""Bytes of which regions are multiples; what is measured has six digits."""

_SLACK = 2 * _REGIONS
"""Bytes by which less is claimed than was measured to be left: a request that finds no room waits
ten seconds and fails. All that is left is taken from the system, whatever is asked for of it, as
long as that is more than the last region."""

UNTOLD = (tf.errors.AlreadyExistsError, tf.errors.ResourceExhaustedError, tf.errors.AbortedError)
"""What is raised where nothing tells what is free."""

_Chunks = tuple[dict[int, int], dict[int, Any], range]

_EVERY_ALLOCATION = 3
"""Level of the profiler's host tracer from which on allocators report."""

_IN_MEMORY, _LEAST_LEFT = "/dev/shm", 32 * 2**20
"""Linux's folder for files in memory, and bytes that it must have left. To make and delete a file
and its folders takes 0.1 ms there and 10 on some disks, a dozen times for each plan."""


@dataclass(frozen=True)
class Heap:
    """What an allocator has.

    Attributes:
      in_use: bytes of all chunks handed out.
      free: bytes of each free chunk of at least `LEAST_CHUNK`, by address.
      begins: the addresses.
      unclaimed: bytes that it may still take from the system, in regions of their own.
    """

    in_use: int
    free: tuple[int, ...]
    begins: tuple[int, ...]
    unclaimed: int


def measured(device: str) -> Heap | None:
    """The heap of a local device; None where nothing tells.

    That is where the device has no limit, its allocator keeps no statistics, TensorFlow's profiler
    is in use by somebody else, or other threads take what is free meanwhile.
    """
    name = devices.full_name(device)
    limit = memory.device_limit(name)
    if limit is None:
        return None
    memory.memory_info(name)  # something has been allocated then
    try:
        in_use, pool, largest = pool_of(name, limit)
        found, _, _ = all_chunks(name, pool, largest)
    except UNTOLD:
        return None
    finally:
        memory.reset_peak(name)
    regions.note(name, found)
    if pool < limit:
        regions.count(name, pool - (memory.region_bytes(name) or 0))
    begins = tuple(sorted(found))
    return Heap(in_use, tuple(found[one] for one in begins), begins, max(0, limit - pool))


def claim(device: str, nbytes: int | None = None) -> None:
    """Lets an allocator take the rest of its limit from the system as one region, or `nbytes`.

    It does once nothing that it has is free. What is hardly more than the slack stays where it is,
    and `nbytes` may be free already.
    """
    name = devices.full_name(device)
    limit = memory.device_limit(name)
    if limit is None:
        return
    try:
        _, pool, largest = pool_of(name, limit)
        rest = limit - pool - _SLACK
        rest = rest if nbytes is None else min(rest, nbytes)
        if rest > (_SLACK if nbytes is None else largest):
            held = list(all_chunks(name, pool, largest)[1].values())
            held += side_by_side(name, max(0, largest - rest + _SLACK), largest)
            held.append(buffer(name, rest))
    except UNTOLD:
        return


def side_by_side(device: str, nbytes: int, largest: int) -> list[Any]:
    """Buffers of so many bytes altogether from a chunk that is split only for less than half of it,
    or where `_REST` and more is left."""
    made = []
    while nbytes:
        most = max(2 * largest // 5, largest - 2 * _REST)
        part = min(nbytes, most // GRAIN * GRAIN or GRAIN)
        made.append(buffer(device, part))
        nbytes, largest = nbytes - part, largest - part
    return made


def pool_of(device: str, limit: int) -> tuple[int, int, int]:
    """Bytes in use, bytes of all regions, bytes of the largest free chunk."""
    told = _free_bytes(device, _HELD)
    free = _believed(told, limit)
    part = int(free) // _PARTS // GRAIN * GRAIN
    if part > _HELD[-1]:
        told += _free_bytes(device, [part])
        free = _believed(told, limit)
    in_use, apart, _, _ = told[-1]
    pool = min(limit, round((in_use + free) / _REGIONS) * _REGIONS)
    if device_names.is_gpu(device) and memory.region_bytes(device) is not None:
        pool = limit
    return in_use, pool, int((pool - in_use) * (1 - apart))


def _believed(told: Sequence[tuple[int, float, float, float]], limit: int) -> float:
    """The free bytes that are told most exactly by a buffer of those of `_free_bytes`.

    Allocators report the part of the free bytes that is not in the largest chunk. Of how many bytes
    it is a part follows from how it changes as a buffer is held: the larger that is, the more
    exactly, unless it takes so much of the largest chunk that another is the largest then. So a
    larger one is believed where it says what smaller ones do.
    """
    free, error = math.inf, math.inf
    for in_use, _, found, doubt in told:
        is_same = abs(found - free) <= error + doubt
        if free == math.inf or (is_same and doubt < error):
            free, error = min(found, limit - in_use), doubt
    return free


def _free_bytes(device: str, sizes: Sequence[int]) -> list[tuple[int, float, float, float]]:
    """Bytes in use, the part of the free bytes that is not in the largest free chunk, the free
    bytes, by how many more or less they may be; as told by two buffers of each size.

    Of two the first is given back before the other.

        the other lies in a smaller chunk      apart (free - n) = before free - n
        in the largest, the first elsewhere    apart (free - n) = before free
        both in the largest: a hole more       apart (free - n) = before free + n
    """
    with traced(device) as events:
        for nbytes in sizes:
            first, second = buffers(device, nbytes, 2)
            del first
            del second
    return [_told(of_size(events, nbytes, 4)) for nbytes in sizes]


def _told(events: Sequence[HeapEvent]) -> tuple[int, float, float, float]:
    first, second, apart, before = events
    n, change = second.given, apart.fragmentation - before.fragmentation
    is_beside = second.address == first.address + first.given
    added = -n if change < 0 else n if is_beside else 0
    if not change:
        return before.in_use, before.fragmentation, math.inf, math.inf
    free = (added + n * apart.fragmentation) / change
    doubt = _DIGITS / abs(change) + GRAIN / n  # a grain is taken to make a buffer
    return before.in_use, before.fragmentation, free, abs(free) * doubt


def all_chunks(device: str, pool: int, largest: int) -> _Chunks:
    """As `_free_chunks`, with those nearly as large as the largest, found once others are full.

    The largest, of several the last, is left free.
    """
    found, held, tail = _free_chunks(device, largest)
    hidden, filled = tail, dict[int, Any]()
    while hidden:
        with traced(device) as events:
            filled[hidden.start] = buffer(device, len(hidden))
        (last,) = of_size(events, len(hidden), 1)
        left = _largest_chunk(last, pool)
        if left < LEAST_CHUNK:
            break
        more, others, hidden = _free_chunks(device, left)
        found |= more
        held |= others
    if filled:
        start = max(filled, key=lambda one: (found[one], one))
        tail = range(start, start + found[start])
        del filled[start]
    return found, held | filled, tail


def _largest_chunk(last: HeapEvent, pool: int) -> int:
    """Bytes of the largest free chunk after an event; its part of nothing is no number."""
    rest = pool - last.in_use
    return 0 if math.isnan(last.fragmentation) else int(rest * (1 - last.fragmentation))


def _free_chunks(device: str, largest: int) -> _Chunks:
    """Bytes of each free chunk by its address; what fills all but the largest; where that is.

    The most that is asked for at once leaves room for what other threads ask for meanwhile. Where
    the first buffer of a size lies in the largest chunk, it and all larger ones fit nowhere else
    and are asked for no more; a few sizes, asked for at first, tell most of them.
    """
    found: dict[int, int] = {}
    held: dict[int, Any] = {}
    tail = range(0)
    if largest < 2 * LEAST_CHUNK:
        return found, held, tail
    sizes = [max(int(_MOST * largest), largest - _REST)]
    while sizes[-1] * _STEP > LEAST_CHUNK:
        sizes.append(max(int(_STEP * sizes[-1]), sizes[-1] - _REST))
    sizes.append(LEAST_CHUNK)
    counts = {size // GRAIN * GRAIN: 1 for size in sizes}
    for number in range(_MOST_ROUNDS):
        new: dict[int, int] = {}
        every = 1 if number else _FEW
        asked = _asked(device, dict(islice(counts.items(), 0, None, every)))
        ends = {(one.requested, one.address + one.given) for one in asked}
        for one in asked:
            is_rest = (one.requested, one.address) in ends  # of a chunk that was split before
            is_whole = one.requested + GRAIN <= one.given < 2 * one.requested and not is_rest
            if not is_whole or one.address in tail or one.address in found:
                continue
            if not tail and one.given >= _ALMOST * largest:
                tail = range(one.address, one.address + one.given)
                found[one.address] = one.given
                continue
            new.setdefault(one.address, one.given)
            more = min(2 * counts[one.requested], largest // (4 * one.requested))
            counts[one.requested] = max(1, min(more, MOST_AT_ONCE))
        if number and not new:
            break
        held |= {address: buffer(device, nbytes) for address, nbytes in new.items()}
        found |= new
        first = {one.requested: one.address for one in reversed(asked)}
        least = min((size for size, begin in first.items() if begin in tail), default=largest)
        counts = {size: count for size, count in counts.items() if size < least}
    return found, held, tail


def of_size(events: Sequence[HeapEvent], nbytes: int, count: int) -> list[HeapEvent]:
    """The events of a size, as many as were caused; an AbortedError if others cause some, too."""
    found = [one for one in events if one.requested == nbytes]
    if len(found) != count:
        raise tf.errors.AbortedError(None, None, f"others ask for {nbytes} bytes")
    return found


def _asked(device: str, counts: Mapping[int, int]) -> list[HeapEvent]:
    """The chunks handed out for buffers of each size, so many of them at a time."""
    with traced(device) as events:
        for nbytes, count in counts.items():
            together = buffers(device, nbytes, count)
            del together
    return [one for one in events if one.is_request and one.requested in counts]


def buffer(device: str, nbytes: int) -> Any:
    """A buffer of a device's allocator that nothing is written to.

    Raises:
      tf.errors.ResourceExhaustedError: there is none, after ten seconds.
    """
    return buffers(device, nbytes, 1)[0]


def buffers(device: str, nbytes: int, count: int) -> list[Any]:
    """So many of them side by side in time; an error as of `buffer`."""
    with tf.init_scope(), tf.device(device):
        return memory.buffers(nbytes, count)


@contextmanager
def traced(device: str) -> Iterator[list[HeapEvent]]:
    """Gathers what the allocator of a device does within the block; the list is filled at its end.

    Raises:
      tf.errors.AlreadyExistsError: somebody else uses TensorFlow's profiler.
    """
    events: list[HeapEvent] = []
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_EVERY_ALLOCATION, python_tracer_level=0, device_tracer_level=0
    )
    with tempfile.TemporaryDirectory(prefix="tfmem-", dir=_folder_in_memory()) as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            yield events
        finally:
            tf.profiler.experimental.stop()
        events += traces.heap_events(Path(folder), device)


def _folder_in_memory() -> str | None:
    """A folder whose files are in memory; None where there is none with room."""
    try:
        left = shutil.disk_usage(_IN_MEMORY).free
    except OSError:
        return None
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) and left >= _LEAST_LEFT else None
