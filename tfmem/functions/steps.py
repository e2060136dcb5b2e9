"""One step of an entry: the original function or the rewritten one, called as the user called."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tfmem.bridge import calls
from tfmem.functions.arguments import in_their_places
from tfmem.functions.entry import Entry
from tfmem.runtime import host as host_module

_log = logging.getLogger("tfmem")


def run(
    original: Any, entry: Entry, args: Any, kwargs: Any, instead: Mapping[int, Any] | None = None
) -> Any:
    """Makes a step; in the scope of `variables.stay`.

    Args:
      original: the tf.function that the entry is of.
      entry: what was decided.
      args: as the user passed them.
      kwargs: keyword arguments.
      instead: what is passed in the place of some inputs, by their places in `inputs`.

    Raises:
      HostMemoryError: the host is gone or full.
    """
    for tenant in entry.tenants:
        if tenant.feeds is not None:
            tenant.feeds.settle()
    with entry.peaks.counted(() if calls.is_traced() else entry.devices):
        result = _made(original, entry, args, kwargs, instead or {})
    if host_module.keeps_copies():
        host_module.keep_copies(entry.updated, [one.handle for one in entry.updated])
    return result


def _made(original: Any, entry: Entry, args: Any, kwargs: Any, instead: Mapping[int, Any]) -> Any:
    if entry.rewritten is None and not instead:
        return original(*args, **kwargs)
    given = args, kwargs
    function, args, kwargs = _function(original, entry, args, kwargs)
    with host_module.guard(), in_their_places(entry.tenants, args, kwargs, given):
        if instead or entry.rewritten is None:
            return calls.call_with(function, args, kwargs, instead)
        return entry.rewritten(*args, **kwargs)


def inputs(original: Any, entry: Entry, args: Any, kwargs: Any) -> list[Any]:
    """Every tensor and handle that a step is given, in the order of what was captured."""
    return calls.flat_inputs(*_function(original, entry, args, kwargs))


def is_recorded(entry: Entry, args: Any, kwargs: Any) -> bool:
    """Whether an active tape wants the gradient of a step."""
    return calls.is_recorded(args, kwargs, tuple(entry.captured.variables.values()))


def tell_of_tape(name: str) -> None:
    """Says why a function's steps are the original's."""
    told = "is called under a GradientTape that wants its gradient: the original runs"
    _log.warning("%s %s; optimise the function with the tape instead", name, told)


def _function(original: Any, entry: Entry, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The ConcreteFunction of an entry, and its arguments in full."""
    if entry.rewritten is not None:
        function = entry.rewritten.function
    else:
        function = original.get_concrete_function(*args, **kwargs)
    return function, *calls.canonical_arguments(original, args, kwargs)
