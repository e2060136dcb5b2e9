"""Copies of callers' local variables, which hold their tensors for as long as the callers run.

    for batch in batches:
        step(batch)  # traced -> super() in a layer -> the frame of this loop holds the first batch

AutoGraph looks for the frame that a `super()` without arguments was written in through all frames
up to the first (`py_builtins.super_in_original_context`). Before Python 3.13 (PEP 667) what it
looks at is a copy of a function's variables, which stays with the frame until that ends.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_IS_COPIED = sys.version_info < (3, 13)

_OWN = 3
"""References to a copy that nobody else holds: the frame's, a variable's and an argument's."""


@contextmanager
def uncopied() -> Iterator[None]:
    """A scope in which functions may be traced: no frame keeps what they make it copy.

    A copy that somebody holds, as of a call of `locals()`, stays as it is; and so do all of them
    while the process is traced: a debugger puts such copies back in the place of the variables.
    """
    try:
        yield
    finally:
        if _IS_COPIED and sys.gettrace() is None:
            _forget()


def _forget() -> None:
    own = inspect.currentframe()
    frame = own.f_back if own else None
    while frame is not None:
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function's; those of others are no copies
            copy = frame.f_locals
            if sys.getrefcount(copy) <= _OWN:
                for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                    copy.pop(name, None)
        frame = frame.f_back
