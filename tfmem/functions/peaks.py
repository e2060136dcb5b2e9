"""The most that steps of a function hold on its devices, as their allocators count it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tfmem.errors import Error
from tfmem.runtime import memory


class Peaks:
    """Most bytes in use on each device while steps of one function ran.

    The allocator has one counter of the most for the whole process. It begins anew before the first
    step, and what it shows belongs to a later one only if it rose meanwhile. What other threads
    hold while a step runs counts, too.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._uncounted: set[str] = set()

    def of(self, device: str) -> int | None:
        """The most so far; None before the first step, or where the allocator keeps no count."""
        return self._bytes.get(device)

    @contextlib.contextmanager
    def counted(self, devices: Sequence[str]) -> Iterator[None]:
        """Counts what is in use while a step runs within the block, whether it fails or not."""
        before: dict[str, int] = {}
        for device in devices:
            if device in self._uncounted:
                continue
            try:
                if device not in self._bytes:
                    memory.begin_step(device, 0)
                before[device] = memory.step_peak(device)
            except Error:  # its allocator keeps no statistics
                self._uncounted.add(device)
        try:
            yield
        finally:
            for device, peak in before.items():
                now = memory.step_peak(device)
                if device not in self._bytes or now > max(peak, self._bytes[device]):
                    self._bytes[device] = now
