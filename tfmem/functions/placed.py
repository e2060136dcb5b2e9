"""The variables that a function's plans placed on the host, their way home and back again."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tfmem.bridge.forks import check_no_fork
from tfmem.errors import Error
from tfmem.functions.entry import Entry
from tfmem.functions.layouts import layouts
from tfmem.runtime import host, variables

_log = logging.getLogger("tfmem")

Entries = dict[Hashable, Entry]
"""By the signatures that they are for."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class Parked:
    """What a function has while its variables are home.

    Its rewritten functions are kept, and with them the counters of their random kernels.

    Attributes:
      original: the tf.function that the entries are of.
      entries: without tenants.
      groups: the variables that were placed, by the devices that they were on.
      devices: those of all variables of the entries when these were made.
      process: the host process that was running.
    """

    original: Any
    entries: Entries
    groups: Mapping[str, Sequence[Any]]
    devices: Sequence[tuple[Any, str]]
    process: Any

    @property
    def is_valid(self) -> bool:
        """Whether every variable is where it was when the entries were made."""
        return all(variable.device == device for variable, device in self.devices)


class Placed:
    """Where the variables were that one function's plans have moved."""

    def __init__(self, name: str, has_moved: Callable[[], None]) -> None:
        """Begins with none.

        Args:
          name: of the function.
          has_moved: a method, called whenever variables have as long as its object is alive.
        """
        self._name, self._told = name, weakref.WeakMethod(has_moved)
        self._before: list[tuple[Any, str]] = []
        self._parked: Parked | None = None

    @property
    def parked(self) -> Entries:
        """The entries that the next call has again."""
        return self._parked.entries if self._parked else {}

    def move(self, groups: Mapping[str, Sequence[Any]]) -> None:
        """Moves variables to the devices that they are grouped under, all or none."""
        away = {
            device: found
            for device, group in groups.items()
            if (found := [one for one in group if one.device != device])
        }
        if away:
            self._before += [(one, one.device) for group in away.values() for one in group]
            variables.move_groups(away)
            self._tell()

    def restore(self) -> None:
        """Moves all back to where they were.

        Raises:
          tfmem.Error: they have no room there; nothing has moved.
        """
        check_no_fork()
        groups = _grouped(self._before)
        variables.move_groups(groups)
        self._before.clear()
        if groups:
            self._tell()

    def park(self, original: Any, entries: Entries) -> None:
        """Moves all back to where they were, until the next call; raises as `restore`."""
        check_no_fork()
        if not self._before:
            return
        kept = {key: entry for key, entry in entries.items() if not entry.is_stale}
        captured = [one for entry in kept.values() for one in entry.captured.variables.values()]
        devices = [(one, one.device) for one in captured]
        groups = _grouped((one, one.device) for one, _ in self._before)
        self.restore()
        if kept:
            made = changed(kept, _without_tenants)
            self._parked = Parked(original, made, groups, devices, host.running())

    def unpark(self) -> tuple[Any, Entries] | None:
        """Moves variables and lays memory out as when all was parked: what was, if that can be."""
        parked, self._parked = self._parked, None
        if parked is None or host.running() is not parked.process:
            return None
        try:
            self.move(parked.groups)
        except Error as error:
            _log.warning("%s: planned again: %s", self._name, error)
            return None
        if not parked.is_valid:
            self.restore()
            return None
        return parked.original, changed(parked.entries, _again)

    def try_to_restore(self) -> None:
        """Moves all back if they have room there, and says so if not."""
        try:
            self.restore()
        except Error as error:
            _log.warning("%s: variables stay on the host: %s", self._name, error)

    @contextmanager
    def restored_after_errors(self) -> Iterator[None]:
        """A scope after which all are back where they were if anything is raised in it."""
        try:
            yield
        except BaseException:
            self.try_to_restore()
            raise

    def _tell(self) -> None:
        if (told := self._told()) is not None:
            told()


def _grouped(places: Iterable[tuple[Any, str]]) -> dict[str, list[Any]]:
    """Variables by their devices."""
    groups: dict[str, list[Any]] = {}
    for variable, device in places:
        groups.setdefault(device, []).append(variable)
    return groups


def distinct(entries: Mapping[Hashable, Entry]) -> list[Entry]:
    """Each entry once: one may be for several signatures."""
    return list({id(entry): entry for entry in entries.values()}.values())


def changed(entries: Entries, change: Callable[[Entry], Made]) -> dict[Hashable, Made]:
    """What is made of entries, once of each, by the signatures that they are for."""
    made = {id(entry): change(entry) for entry in distinct(entries)}
    return {key: made[id(entry)] for key, entry in entries.items()}


def _without_tenants(entry: Entry) -> Entry:
    """An entry whose plans have no place in the free memory of devices any more."""
    layouts.move_out(entry.tenants)
    return replace(entry, tenants=())


def _again(entry: Entry) -> Entry:
    """An entry whose variables are on their devices again, with new handles."""
    return replace(entry.here(), tenants=layouts.move_in(entry))
