"""Where a CPU's allocator has its memory, and what is not in it.

On a CPU a tensor may lie in memory of NumPy's, and only its address tells. The system gives a
program its heap at one end of all addresses, large pieces of memory at the other. Regions are large
pieces, as a rule; once an array of their size has been freed, the C library has them, too, between
arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from tfmem.costs.types import GRAIN

_FAR = 2**40
"""Bytes that are more than any two chunks are apart, and less than both ends of the memory are."""

_BEGIN = 64
"""Bytes of a page that the C library keeps where it takes so much from the system at once, as for
large regions, that are to begin at multiples of 64."""

_PAGE = 4096
"""Bytes of a page: what lies before a buffer can be read on its own page only."""

_LENGTH = 8
"""Bytes before a block in which the GNU C library writes how long the block is, with these bytes;
it is a multiple of twice as many, and the lowest bits mean something else."""

_LEAST_REGION, _MORE = 2**21, 64
"""Bytes of the first region; each is as many times two. What a block has more than was asked for,
if it has to begin at a multiple of 64, is less than that."""


class Regions:
    """What is known of the regions of each device: one stays the allocator's for good."""

    def __init__(self) -> None:
        self._places: dict[str, set[int]] = {}

    def note(self, device: str, begins: Iterable[int], limit: int = 0) -> None:
        """Remembers where chunks of a device begin, but those beside others within a limit."""
        places = self._places.setdefault(device, set())
        for begin in begins:
            if not any(_is_beside(begin, place, limit) for place in places):
                places.add(begin)

    def is_known(self, device: str) -> bool:
        """Whether free chunks of a device were ever looked for."""
        return device in self._places

    def hold(self, device: str, begin: int, nbytes: int, limit: int) -> bool:
        """Whether so many bytes from an address on are a chunk of a CPU's allocator.

        Chunks of a region are a multiple of a grain apart; one that fills a region has no other
        beside it, and begins where the C library gave as much as regions have. Near a region that
        lies between arrays, one part of a larger array in four is taken for a chunk.

        Args:
          device: its full name.
          begin: the address.
          nbytes: of a tensor.
          limit: bytes that its regions take at most.
        """
        places = self._places.get(device, ())
        if abs(begin - int(np.empty(GRAIN, np.uint8).ctypes.data)) >= _FAR:
            is_beside = any(_is_beside(begin, place, _FAR) for place in places)
            return is_beside or begin % GRAIN == _BEGIN
        length = _block_length(begin)
        if _LENGTH <= length - nbytes < 3 * _LENGTH:
            return False  # an array of its own
        is_near = any(_is_beside(begin, place, limit) for place in places)
        return is_near or _is_of_region(length)


regions = Regions()


def _is_beside(begin: int, chunk: int, distance: int) -> bool:
    return (begin - chunk) % GRAIN == 0 and abs(begin - chunk) < distance


def _block_length(begin: int) -> int:
    """Bytes of the C library's block that begins at an address, its own notes included.

    Whatever stands there if none does; 0 where it cannot be read.
    """
    if begin % _PAGE < _LENGTH:
        return 0
    return int(ctypes.c_size_t.from_address(begin - _LENGTH).value // _LENGTH * _LENGTH)


def _is_of_region(length: int) -> bool:
    region = 1 << max(0, length.bit_length() - 1)
    return region >= _LEAST_REGION and length - region < _MORE
