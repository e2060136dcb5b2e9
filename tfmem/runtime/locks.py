"""What must not be cut in two: by other threads, or by the keyboard."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class _Planning:
    """Which thread of this process plans."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_planning = _Planning()


def alone(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Lets one thread at a time look at devices, plan, or carry a plan out.

    Another would count as in use what this one tries the device and its free memory with. What runs
    so must trace nothing: the user's code may wait for other threads, or call functions that do.
    """

    @functools.wraps(function)
    def planned(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        with _planning.lock:
            return function(*args, **kwargs)

    return planned


class SharedLock:
    """Held by many at once, or by one alone.

    A thread that holds it may take it again in the same way. Who wants it alone is let in before
    those who come later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: dict[int, int] = {}
        self._waiting = 0
        self._owner: int | None = None
        self._depth = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Holds it with others."""
        me = threading.get_ident()
        with self._changed:
            while not self._may_share(me):
                self._changed.wait()
            self._holders[me] = self._holders.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._holders[me] -= 1
                if not self._holders[me]:
                    del self._holders[me]
                    self._changed.notify_all()

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Holds it alone.

        Args:
          seconds: how long it is waited for.

        Raises:
          TimeoutError: others hold it all that time.
        """
        me = threading.get_ident()
        with self._changed:
            self._waiting += 1
            try:
                if not self._changed.wait_for(lambda: self._is_mine(me), seconds):
                    raise TimeoutError
                self._owner, self._depth = me, self._depth + 1
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._owner = None
                    self._changed.notify_all()

    def _may_share(self, me: int) -> bool:
        if self._owner is not None:
            return self._owner == me
        return not self._waiting or me in self._holders

    def _is_mine(self, me: int) -> bool:
        if self._owner is not None:
            return self._owner == me
        return not self._holders.keys() - {me}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    missed: list[tuple[int, FrameType | None]] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, lambda *signalled: missed.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if missed:
            before(*missed[0])
