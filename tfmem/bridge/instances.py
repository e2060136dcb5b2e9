"""The objects of a class that are alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

_Kind = TypeVar("_Kind")


def instances(kind: type[_Kind]) -> list[_Kind]:
    """The objects of a class of Python's, and of those derived from it, that anybody holds.

    Each refers to its class, and is found by that. `gc.get_objects` would hold all objects of the
    process meanwhile, also tuples that other threads are making: their `tuple(...)` raises a
    SystemError then (seen with CPython 3.11). What `gc.freeze` has hidden is unfrozen for it.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    found = gc.get_referrers(*_with_subclasses(kind))
    return [one for one in found if issubclass(type(one), kind)]


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for one in subclasses:
        yield from _with_subclasses(one)
