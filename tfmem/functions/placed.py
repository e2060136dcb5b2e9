"""The variables that a function's plans placed on the host, and their way home."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tfmem.bridge.forks import check_no_fork
from tfmem.errors import Error
from tfmem.runtime import variables

_log = logging.getLogger("tfmem")


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

    def move(self, groups: Mapping[str, Sequence[Any]]) -> None:
        """Moves variables to the devices that they are grouped under, all or none."""
        if groups:
            self._before += [(one, one.device) for group in groups.values() for one in group]
            variables.move_groups(groups)
            self._tell()

    def restore(self) -> None:
        """Moves all back to where they were.

        Raises:
          tfmem.Error: they have no room there; nothing has moved.
        """
        check_no_fork()
        groups: dict[str, list[Any]] = {}
        for variable, device in self._before:
            groups.setdefault(device, []).append(variable)
        variables.move_groups(groups)
        self._before.clear()
        if groups:
            self._tell()

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
