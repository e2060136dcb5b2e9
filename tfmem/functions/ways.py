"""The ways to capture a function, of which the first that has a plan is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tfmem.bridge.capture import Captured
from tfmem.bridge.room import GROWTHS
from tfmem.errors import Error, UnsupportedFunctionError


class Ways:
    """With room for larger calls, then with less; as it is; at last with its loops as graphs.

    What was refused in one way is not tried again in it: the next call begins with the way in which
    there was a plan.

    Attributes:
      growths: how much more than its call needs a plan is made for, one of `GROWTHS` after another.
      unrolls: whether loops become graphs, if all can.
    """

    def __init__(self) -> None:
        self.growths, self.unrolls = GROWTHS, False
        self._can_unroll = True
        self._refused: Error | None = None

    def another(self, captured: Captured, refused: Error) -> bool:
        """Whether there is another way, which comes next, after a function was refused in one."""
        if captured.has_room:
            self.growths = self.growths[1:]
        elif captured.has_loops and self._can_unroll and not self.unrolls:
            self.unrolls, self._refused = True, refused
        else:
            return False
        return True

    def captured(self, capture: Callable[[], Captured]) -> Captured:
        """A function, captured in the way that comes next.

        Raises:
          Error: what it was refused with in the way before, for its loops have to stay.
        """
        refused, self._refused = self._refused, None
        if refused is None:
            return capture()
        with contextlib.suppress(UnsupportedFunctionError):
            found = capture()
            if not found.has_loops:
                return found
        self.unrolls = self._can_unroll = False
        raise refused
