"""Who calls a step again and again, and what he does beside the steps."""

from __future__ import annotations

from enum import Enum, auto


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
