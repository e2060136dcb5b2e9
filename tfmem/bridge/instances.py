"""The objects of a class that are alive."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


class _Witness:
    """What each search must find, or `gc.freeze` hides what is younger than it."""


class _Search:
    """Looks for objects, but not among those that it left out."""

    def __init__(self) -> None:
        self._witness = _Witness()

    def referrers(self, kinds: Iterable[type]) -> list[Any]:
        """What refers to classes; what others have frozen is unfrozen for it."""
        sought = (_Witness, *kinds)
        found = gc.get_referrers(*sought)
        if any(one is self._witness for one in found):
            return found
        gc.unfreeze()
        return gc.get_referrers(*sought)

    def leave_out(self) -> None:
        """All that lives now."""
        gc.collect()
        gc.freeze()
        self._witness = _Witness()


_search = _Search()


def instances(kind: type[_Kind]) -> list[_Kind]:
    """The objects of a class of Python's, and of those derived from it, that anybody holds.

    Each refers to its class, and is found by that. `gc.get_objects` would hold all objects of the
    process meanwhile, also tuples that other threads are making: their `tuple(...)` raises a
    SystemError then (seen with CPython 3.11). What `gc.freeze` has hidden is unfrozen for it.
    """
    found = _search.referrers(_with_subclasses(kind))
    return [one for one in found if issubclass(type(one), kind)]


def references(kind: type) -> int:
    """How many references there are to a class and those derived from it.

    Each object of theirs is one, so that it tells, without a search, when one was made or is gone.
    """
    return sum(map(sys.getrefcount, _with_subclasses(kind)))


def freeze() -> None:
    """Hides what lives now, of which nothing will be sought, from searches and collections.

    For processes that plan many small functions: both look through all that was imported, which
    takes longer than such a plan.
    """
    _search.leave_out()


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for one in subclasses:
        yield from _with_subclasses(one)
