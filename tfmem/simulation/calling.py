"""Who calls a step again and again, and what he does beside the steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

PLACES = ((1.0, True), (1.5, False))
"""How the first arguments may lie where nothing tells: by how much their chunks are larger than
what was asked for, which is less than twice, and whether they lie side by side, with the next ones
if these are there, to be one chunk when they are free. Without one of these or the other accepted
plans ran out of memory in step 3 to 24 (a ResNet-RS, a second-order step, a CSPDarkNet)."""


class Caller(Enum):
    """What somebody does who calls a step again and again.

    SAME passes the same arguments again. NEW, the usual one, makes new ones before it lets go of
    the old, and keeps what the last step returned until the next one has. So do AHEAD and EARLY,
    whose next arguments another thread, such as one of `tf.data`'s, makes as the step before
    begins: AHEAD has let go of the arguments before those by then, EARLY has not, or only at times:
    the threads race.
    """

    SAME = auto()
    NEW = auto()
    AHEAD = auto()
    EARLY = auto()

    @property
    def is_fed(self) -> bool:
        """Whether another thread makes its arguments."""
        return self in (Caller.AHEAD, Caller.EARLY)

    def is_early(self, step: int, steps: int) -> bool:
        """Whether it holds a step's arguments still when those after the next are made.

        EARLY does at first, so that all of them have been elsewhere, and then in every second step.
        """
        return self is Caller.EARLY and (step < steps // 2 or step % 2 > 0)


class Occasion(NamedTuple):
    """One of those for which steps are replayed.

    Attributes:
      caller: who calls.
      padding, is_joined: one of `PLACES`.
      first: which of the variations comes first; 0 for the step that is told.
    """

    caller: Caller
    padding: float
    is_joined: bool
    first: int


def occasions(
    callers: Sequence[Caller], is_known: bool, starts: Sequence[int]
) -> Iterator[Occasion]:
    """Those for which steps have to fit.

    Args:
      callers: kinds of them.
      is_known: whether it is known where the first arguments lie.
      starts: the variations that may come first.
    """
    for caller, place, first in itertools.product(callers, PLACES, starts):
        is_open = caller.is_fed or not (caller is Caller.SAME or is_known)
        if is_open or place == PLACES[0]:  # nothing is made where SAME has its arguments
            yield Occasion(caller, *place, first)
