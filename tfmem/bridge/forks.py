"""Whether this process is a fork of one in which TensorFlow had begun, and so lacks its threads."""

from __future__ import annotations

import os

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager import context

from tfmem.errors import Error


class _Fork:
    """What this process knows of the one that it is a fork of."""

    def __init__(self) -> None:
        self.had_begun = False

    def note(self) -> None:
        """In a fork: looks whether TensorFlow had begun."""
        known = context.context_safe()
        self.had_begun = self.had_begun or (known is not None and known._initialized)


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.note)


def check_no_fork() -> None:
    """Raises tfmem.Error in a fork, where TensorFlow would wait for threads that are not there."""
    if _fork.had_begun:
        raise Error(
            "this process is a fork of one in which TensorFlow had been used, and TensorFlow would "
            "wait here for threads that are only there; start it another way "
            "(multiprocessing.get_context('spawn')), or before TensorFlow is used"
        )
