"""Where a CPU's allocator has its memory, and what is not in it.

On a CPU a tensor may lie in memory of NumPy's, and only its address tells. The system gives a
program its heap at one end of all addresses, large pieces of memory at the other. Regions are large
pieces, as a rule; once an array of their size has been freed, the C library has them, too, between
arrays. It notes before each block how long that is, in front of a region as of an array.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from tfmem.costs.types import GRAIN

_FAR = 2**40
"""Bytes that are more than any two chunks are apart, and less than both ends of the memory are."""

_BEGIN = 64
"""Bytes of a page that the C library keeps where it takes so much from the system at once, as for
large regions, that are to begin at multiples of 64."""

_MEMORY = "/proc/self/mem"
"""Linux's file of what stands in this process's memory; where nothing does, reading it fails."""

_PAGE = 4096
"""Bytes of a page, of which the C library takes a whole number where it takes so much at once."""

_LENGTH = 8
"""Bytes before a block in which the GNU C library writes how long the block is, with these bytes;
it is a multiple of twice as many, and the lowest bits mean something else."""

_MOST_OWN = 5 * _LENGTH
"""Bytes that a block of the GNU C library has more than was asked for are less: its own note, what
makes it a multiple, and a rest that is too small for a block."""

_LEAST_REGION, _MORE = 2**21, 64
"""Bytes of the first region; each is as many times two. What a block has more than was asked for,
if it has to begin at a multiple of 64, is less than that."""

_MOST_BETWEEN = 2**25
"""Bytes of the GNU C library's own: the largest blocks that lie between others."""

_MOST = 2**47
"""Bytes that a process can have on Linux: a larger note is none of a block."""

_AT_ONCE = 2**16
"""Bytes that are read at a time: pages one by one take three times as long."""


class Regions:
    """What is known of the regions of each device: one stays the allocator's for good."""

    def __init__(self) -> None:
        self._places: dict[str, set[int]] = {}
        self._sums: dict[str, int] = {}
        self._around: dict[int, tuple[int, int] | None] = {}

    def note(self, device: str, begins: Iterable[int]) -> None:
        """Remembers where chunks of a device begin."""
        self._places.setdefault(device, set()).update(begins)

    def note_first(self, device: str, begin: int) -> None:
        """Remembers a chunk of a device's allocator if it is the first of a region."""
        if not _is_far(begin) and _region_of(_block_length(begin), _MORE):
            self.note(device, (begin,))

    def count(self, device: str, nbytes: int) -> None:
        """Remembers how many bytes those regions take whose bytes are a power of two."""
        self._sums[device] = nbytes

    def is_known(self, device: str) -> bool:
        """Whether free chunks of a device were ever looked for."""
        return device in self._places

    def hold(self, device: str, begin: int, nbytes: int, limit: int) -> bool:
        """Whether so many bytes from an address on are a chunk of a CPU's allocator.

        Chunks of a region are a multiple of a grain apart. Near a region that lies between arrays,
        one part of a larger array in four is taken for a chunk. A chunk that fills a region has no
        other beside it, and begins where the C library gave as much as regions have. If an array of
        its own would have such a block, or no chunk is near, it is a region's if one is missing
        among those that are known.

        Args:
          device: its full name.
          begin: the address.
          nbytes: of a tensor.
          limit: bytes that its regions take at most.
        """
        places = self._places.setdefault(device, set())
        if _is_far(begin):
            is_beside = any(_is_beside(begin, place, _FAR) for place in places)
            return is_beside or begin % GRAIN == _BEGIN
        length = _block_length(begin)
        may_be_array = _LENGTH <= length - nbytes < _MOST_OWN
        is_like_region = bool(_region_of(length, _MORE))
        if may_be_array and not is_like_region:
            return False
        is_near = any(_is_beside(begin, place, limit) for place in places)
        if not may_be_array and (is_near or is_like_region):
            return True
        if is_in_one := self._is_in_region(device, begin):
            places.add(begin)
        return is_in_one

    def _is_in_region(self, device: str, begin: int) -> bool:
        """Whether a region that is known begins at an address, or one that is missing is around."""
        for place in self._places[device] - self._around.keys():
            self._around[place] = around(place)
        known = dict(filter(None, map(self._around.get, self._places[device])))
        if begin in known:
            return True
        missing = self._sums.get(device, 0) - sum(known.values())
        if missing < _LEAST_REGION or (found := around(begin)) is None:
            return False
        first, nbytes = found
        return first in known or nbytes <= missing


regions = Regions()


def _is_beside(begin: int, chunk: int, distance: int) -> bool:
    return (begin - chunk) % GRAIN == 0 and abs(begin - chunk) < distance


def _block_length(begin: int) -> int:
    """Bytes of the C library's block that begins at an address, its own notes included.

    Whatever stands there if none does; 0 where it cannot be read.
    """
    with contextlib.suppress(OSError), open(_MEMORY, "rb", buffering=0) as memory:
        note = os.pread(memory.fileno(), _LENGTH, begin - _LENGTH)
        return _length(int.from_bytes(note, sys.byteorder))
    return 0


def _length(note: int) -> int:
    return note // (2 * _LENGTH) * 2 * _LENGTH


def _region_of(length: int, more: int) -> int:
    """Bytes of a region whose block is longer by less than `more` bytes; 0 for other blocks."""
    region = 1 << max(0, length.bit_length() - 1)
    return region if region >= _LEAST_REGION and length - region < more else 0


def around(chunk: int) -> tuple[int, int] | None:
    """Where the region around a chunk begins, and its bytes, if they are a power of two.

    It is looked for in the C library's notes, as far back as its blocks are large at most.
    """
    is_far = _is_far(chunk)
    step, more = (_PAGE, 2 * _PAGE) if is_far else (GRAIN, _MORE)
    first = (_BEGIN if is_far else chunk) - _LENGTH
    with contextlib.suppress(OSError), open(_MEMORY, "rb", buffering=0) as memory:
        for start, part in _before(memory.fileno(), chunk - _LENGTH):
            offset = (first - start) % step
            notes = np.frombuffer(part, np.uint64)[offset // _LENGTH :: step // _LENGTH]
            may_be = (notes >= _LEAST_REGION) & (notes < _MOST)
            for number in reversed(np.flatnonzero(may_be).tolist()):
                begin = start + offset + number * step + _LENGTH
                region = _region_of(_length(int(notes[number])), more)
                if region and begin <= chunk < begin + region:
                    return begin, region
    return None


def _before(memory: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What stands in memory in the page of an address and before it, in parts of whole pages.

    Raises:
      OSError: nothing stands in the page before the last part.
    """
    last = end // _PAGE * _PAGE + _PAGE
    for stop in range(last, last - _MOST_BETWEEN - _PAGE, -_AT_ONCE):
        part = b""
        with contextlib.suppress(OSError):
            part = os.pread(memory, _AT_ONCE, stop - _AT_ONCE)
        if len(part) == _AT_ONCE:
            yield stop - _AT_ONCE, part
            continue
        for page in range(stop - _PAGE, stop - _AT_ONCE - 1, -_PAGE):
            yield page, os.pread(memory, _PAGE, page)


def _is_far(begin: int) -> bool:
    """Whether an address is not near those that NumPy's small arrays have."""
    return abs(begin - int(np.empty(GRAIN, np.uint8).ctypes.data)) >= _FAR
