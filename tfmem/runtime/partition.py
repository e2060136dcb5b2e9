"""Chunks of a device's free memory, kept apart from one another for the steps of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfmem.costs.types import GRAIN, HOLE, WALLS
from tfmem.runtime import devices, heap, memory

_SMALL_AT_ONCE = 4
"""Buffers of each size that are asked for at first to fill the chunks that are too small to count,
128 KiB altogether. More take fewer rounds where there are many such chunks, and find no room where
little is free."""


def partition(device: str, sizes: Sequence[int]) -> list[Any]:
    """Keeps chunks apart, in the largest free one, so that they never join one another or the rest.

    Each free chunk is kept apart from its neighbours, too: what lies beside it now, such as an
    argument, joins it no more when it is freed.

    Args:
      device: a local device.
      sizes: bytes of the chunks, in the order of their addresses.

    Returns:
      Buffers between the chunks, which keep them apart as long as they are alive; none where
      nothing tells what is free, or the chunks have no room.
    """
    name = devices.full_name(device)
    limit = memory.device_limit(name)
    if limit is None:
        return []
    try:
        return _partitioned(name, limit, sizes)
    except heap.UNTOLD:
        return []
    finally:
        memory.reset_peak(name)  # once what filled the chunks is gone


def _partitioned(device: str, limit: int, sizes: Sequence[int]) -> list[Any]:
    _, pool, largest = heap.pool_of(device, limit)
    found, held, tail = heap.all_chunks(device, pool, largest)
    rest = len(tail) - HOLE * GRAIN
    if rest < sum(sizes) + GRAIN * (len(sizes) + WALLS):
        return []
    between = _filled(device, tail)
    walls = _first_walls(device, tail)
    inside = heap.side_by_side(device, rest, rest)
    for address in list(held):
        del held[address]  # all but this chunk are taken
        between += _walled(device, found[address], (), walls)
    inside.clear()
    between += _walled(device, rest, sizes, walls)
    return walls


def _first_walls(device: str, tail: range) -> list[Any]:
    """Fills the first grains of the largest chunk but for the hole, if none is left elsewhere.

    There is one hole then. A second one would take the next wall, which would be missing.
    """
    with heap.traced(device) as events:
        walls = [heap.buffer(device, GRAIN)]
    (first,) = heap.of_size(events, GRAIN, 1)
    if first.address == tail.start:
        walls.append(heap.buffer(device, GRAIN))
    return walls


def _walled(device: str, size: int, chunks: Sequence[int], walls: list[Any]) -> list[Any]:
    """Fills a free chunk with walls: at both ends, and behind each of the chunks in it.

    To make a buffer takes a grain meanwhile, for which there is one hole: the last wall is of two
    grains, so that it fits what is left and not that hole.

    Returns:
      The buffers between the walls.
    """
    left = size - WALLS * GRAIN
    walls.append(heap.buffer(device, GRAIN))
    between: list[Any] = []
    for nbytes in chunks:
        between += heap.side_by_side(device, nbytes, left)
        walls.append(heap.buffer(device, GRAIN))
        left -= nbytes + GRAIN
    between += heap.side_by_side(device, left, left + 2 * GRAIN)
    walls.append(heap.buffer(device, 2 * GRAIN))
    return between


def _filled(device: str, tail: range) -> list[Any]:
    """Buffers that fill the free chunks of less than `LEAST_CHUNK` bytes."""
    halvings = (heap.LEAST_CHUNK // GRAIN).bit_length() - 1
    counts = {GRAIN << n: _SMALL_AT_ONCE for n in reversed(range(halvings))}
    held = list[Any]()
    while counts:
        outside = _outside(device, counts, tail)
        held += outside.values()
        found = [size for size, buffers in outside.items() if len(buffers) == counts[size]]
        counts = {size: min(2 * counts[size], heap.MOST_AT_ONCE) for size in found}
    return held


def _outside(device: str, counts: Mapping[int, int], tail: range) -> dict[int, list[Any]]:
    """Of so many buffers of each size those that lie outside of a chunk."""
    with heap.traced(device) as events:
        made = {size: heap.buffers(device, size, n) for size, n in counts.items()}
    asked = [one for one in events if one.is_request]
    outside = {}
    for size, buffers in made.items():
        pairs = zip(buffers, heap.of_size(asked, size, len(buffers)), strict=True)
        outside[size] = [buffer for buffer, place in pairs if place.address not in tail]
    return outside
