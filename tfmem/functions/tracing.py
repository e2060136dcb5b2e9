"""How a function is traced, its variables made where they have room, and captured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from tfmem.bridge.calls import canonical_arguments, flat_arguments, fresh
from tfmem.bridge.capture import Captured, capture
from tfmem.bridge.forks import check_no_fork
from tfmem.bridge.frames import uncopied
from tfmem.bridge.lines import told
from tfmem.bridge.room import Before, are_near, are_within
from tfmem.errors import BudgetError
from tfmem.functions.answers import answering
from tfmem.functions.arguments import lie_alike, with_passed
from tfmem.functions.contents import with_contents
from tfmem.functions.entry import Entry
from tfmem.functions.failures import Failure, explained, tells_bugs
from tfmem.functions.placed import distinct
from tfmem.functions.resolve import have_room
from tfmem.functions.ways import Ways
from tfmem.options import Options
from tfmem.planning.published.tensorflowmem import TensorFlowMem
from tfmem.planning.request import Request
from tfmem.runtime import creation, variables
from tfmem.runtime.asking import asking
from tfmem.simulation.contents import lengths


def name_of(original: Any) -> str:
    """Name of a tf.function's Python function; what has none, as a partial, is a "function"."""
    return str(getattr(original.python_function, "__name__", "function"))


def traced(
    original: Any, options: Options, requests: tuple[Request, ...], args: Any, kwargs: Any
) -> tuple[Any, Any]:
    """The concrete function for some arguments, and the tf.function that it is of.

    Where variables may be placed, large ones that it makes are made on the host; if they have room
    on the device, so that the planner may choose, they move there, and it is traced anew.

    Returns:
      The tf.function, which is another one if it was traced anew; its concrete function.

    Raises:
      BudgetError: what is made while it is traced has no room.
      tfmem.Error: this process is a fork of one in which TensorFlow had begun.
    """
    check_no_fork()
    first = requests[0]
    strategy = options.strategy or TensorFlowMem()
    host = first.host if "place" in first.techniques and len(requests) == 1 else ""

    def may_place(nbytes: int) -> bool:
        return strategy.may_place(nbytes) and creation.has_room(nbytes, host)

    reason = explained(partial(_without_memory, original))
    with creation.created_on(host, may_place) as created, reason, uncopied():
        concrete = original.get_concrete_function(*args, **kwargs)
    if created and options.strategy is None and have_room(created, concrete, first):
        variables.move_variables(created, first.device)
        original = fresh(original)
        with uncopied():
            concrete = original.get_concrete_function(*args, **kwargs)
    return original, concrete


@tells_bugs
def captured(
    original: Any,
    concrete: Any,
    requests: tuple[Request, ...],
    args: Any,
    kwargs: Any,
    entries: Mapping[Hashable, Entry] = MappingProxyType({}),
    key: Hashable = None,
    ways: Ways | None = None,
) -> Captured:
    """A function that was traced for some arguments, with what is known of these.

    Where there are entries that are too small, there is room for more: in the place of the entry
    that the same signature had, or beside all.

    Args:
      original, concrete, requests, args, kwargs: the function, what is asked, and the call.
      entries: by signature.
      key: the signature of the call.
      ways: how it is captured; default: as it is.
    """
    ways = ways or Ways()
    first, there = requests[0], [entries[key]] if key in entries else entries.values()
    known = [one.captured for one in there if one.captured.is_of(concrete)]
    computed = [one.sizing.most for one in known if one.sizing is not None]
    flat = flat_arguments(concrete, *canonical_arguments(original, args, kwargs))
    with told(concrete.graph), asking() as ask:
        found = with_contents(
            capture(
                concrete,
                device=first.device,
                args=flat,
                ask=answering(ask, first.budget),
                count=lengths,
                before=Before.of([one.shapes for one in known], computed, ways.growths[0]),
                unrolls=ways.unrolls,
            )
        )
    return with_passed(found, flat, (args, kwargs))


def sharing(
    known: MutableMapping[Hashable, Entry], key: Hashable, original: Any, args: Any, kwargs: Any
) -> Entry | None:
    """The entry of the same trace, one with open dimensions, for arguments no smaller.

    It is put among those that are known, too.

    Args:
      known: entries by signature.
      key: the signature of the call.
      original: the tf.function.
      args, kwargs: of the call.
    """
    entries = tuple(known.values())
    if not entries or any(entry.is_stale for entry in entries):
        return None
    concrete, flat = _concrete(original, args, kwargs)
    for entry in entries:
        if entry.captured.holds_for(concrete, flat) and lie_alike(entry.captured, flat):
            known[key] = entry
            return entry
    return None


def outgrown(
    entries: Mapping[Hashable, Entry], original: Any, args: Any, kwargs: Any, growth: float
) -> list[Entry]:
    """Entries of the same trace whose place one for larger arguments takes, if it has a plan.

    Those that are much smaller stay: their steps are faster.
    """
    if not entries or any(entry.is_stale for entry in entries.values()):
        return []
    concrete, flat = _concrete(original, args, kwargs)
    known = [one for one in distinct(entries) if one.captured.is_of(concrete)]
    shapes = Before.of([one.captured.shapes for one in known], (), growth).shapes_for(flat)
    return [
        one
        for one in known
        if are_within(one.captured.shapes, shapes) and are_near(shapes, one.captured.shapes, flat)
    ]


def _concrete(original: Any, args: Any, kwargs: Any) -> tuple[Any, Sequence[Any]]:
    """The concrete function of a call, and its arguments as that takes them."""
    with uncopied():
        concrete = original.get_concrete_function(*args, **kwargs)
    return concrete, flat_arguments(concrete, *canonical_arguments(original, args, kwargs))


def suits(entry: Entry, original: Any, args: Any, kwargs: Any) -> bool:
    """Whether an entry of the same signature is for sizes that are no smaller."""
    sizing, signature = entry.captured.sizing, entry.captured.signature
    if sizing is None or signature is None:
        return True
    return sizing.holds_for(flat_arguments(signature, *canonical_arguments(original, args, kwargs)))


def _without_memory(original: Any, failure: Failure) -> BudgetError:
    """Says what it means that a function is out of memory while it is traced."""
    return BudgetError(
        f"{name_of(original)} is out of memory while it is traced, which makes its variables, "
        "such as those of an optimizer, before anything can be planned: "
        f"{failure.said}. Raise the limit of the device, or free what else is held there"
    )
