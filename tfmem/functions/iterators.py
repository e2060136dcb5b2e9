"""Steps that take their batches themselves, `next(iterator)` in the function, of open sizes.

    call(iterator) -> as many elements as a step takes -> step(elements), planned for their sizes

How large such a batch is can be known only once it has been taken. So it is taken before the step,
which is traced with what stands for the iterator and hands out arguments. What was taken for a step
that could not be planned is there for the next call.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from tfmem.bridge import handed
from tfmem.bridge.calls import is_traced
from tfmem.functions.resolve import requests_of
from tfmem.functions.signature import signature_of
from tfmem.functions.tracing import traced
from tfmem.options import Options

_Owner = TypeVar("_Owner")
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def takes_first(
    steps_of: Callable[[_Owner], tuple[OfElements, Any]],
) -> Callable[
    [Callable[Concatenate[_Owner, _Args], _Result]],
    Callable[Concatenate[_Owner, _Args], _Result],
]:
    """Makes a method of an optimised function that of its step of elements, where it has one.

    These are taken from the iterators among its arguments; a call uses them up.

    Args:
      steps_of: the steps of elements of the object, and its tf.function.
    """

    def of_elements(
        method: Callable[Concatenate[_Owner, _Args], _Result],
    ) -> Callable[Concatenate[_Owner, _Args], _Result]:
        @functools.wraps(method)
        def taking(self: _Owner, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            steps, original = steps_of(self)
            call = steps.call(original, args, kwargs)
            if call is None:
                return method(self, *args, **kwargs)
            found: _Result = call.made(method.__name__)
            return found

        return taking

    return of_elements


@dataclass(frozen=True)
class _Step:
    """A step of elements.

    Attributes:
      optimized: an `Optimized` that takes those of each iterator, then tensors.
      counts: how many of each iterator it takes.
    """

    optimized: Any
    counts: tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """A call of a step of elements.

    Attributes:
      step: what is called.
      parts: the arguments of the user's call.
      taken: elements that were taken and not used yet, by iterator.
      lock: held by whoever takes.
    """

    step: _Step
    parts: handed.Parts
    taken: weakref.WeakKeyDictionary[Any, list[Any]]
    lock: threading.RLock

    def made(self, method: str) -> Any:
        """What a method of the step returns, or raises; iterators that end raise as they do."""
        optimized = self.step.optimized
        pairs = list(zip(self.parts.iterators, self.step.counts, strict=True))
        with self.lock:
            given = [*(self._next(*pair) for pair in pairs), *self.parts.tensors]
            if method == "__call__":
                optimized.prepare(*given)
                for iterator, count in pairs:
                    del self.taken[iterator][:count]
        return getattr(optimized, method)(*given)

    def _next(self, iterator: Any, count: int) -> tuple[Any, ...]:
        """The next elements of an iterator, which stay there."""
        waiting = self.taken.setdefault(iterator, [])
        while len(waiting) < count:
            waiting.append(iterator.get_next())
        return tuple(waiting[:count])


class OfElements:
    """The steps of elements of one function, one for each signature of its calls."""

    def __init__(self, options: Options, optimize: Callable[[Any], Any]) -> None:
        """Begins with none.

        Args:
          options: of the function.
          optimize: does so with another one, in the same way.
        """
        self._options, self._optimize = options, optimize
        self._steps: dict[Hashable, _Step | None] = {}
        self._taken: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    @property
    def steps(self) -> list[Any]:
        """Those made so far."""
        return [step.optimized for step in self._steps.values() if step is not None]

    def call(self, original: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call | None:
        """A call of the user's as one of a step of elements; None if it is none.

        Args:
          original: the tf.function.
          args: positional arguments.
          kwargs: keyword arguments.
        """
        parts = None if is_traced() else handed.parts_of(args, kwargs)
        if parts is None:
            return None
        key = signature_of(args, dict(kwargs))
        with self._lock:
            if key not in self._steps:
                self._steps[key] = self._made(original, parts)
            step = self._steps[key]
        return None if step is None else _Call(step, parts, self._taken, self._lock)

    def _made(self, original: Any, parts: handed.Parts) -> _Step | None:
        """The step of elements of a function; None if it does more with an iterator than take."""
        requests, counts = requests_of(self._options), (1,) * len(parts.iterators)
        while True:
            function, stand_ins = handed.of_elements(original, parts, counts)
            try:
                function, _ = traced(function, self._options, requests, (), {})
            except Exception:
                if any(one.misuse for one in stand_ins):
                    return None
                raise
            if (used := tuple(one.count for one in stand_ins)) == counts:
                return _Step(self._optimize(function), counts) if any(counts) else None
            counts = used
