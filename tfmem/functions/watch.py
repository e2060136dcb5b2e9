"""What is known of the first steps of a plan, as long as they are watched (see `watched`)."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfmem.bridge.capture import Captured
from tfmem.bridge.effects import Effects, effects_of
from tfmem.errors import Error
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.lessons import Risk
from tfmem.functions.pricing import Tracing
from tfmem.options import Options
from tfmem.runtime import memory

_log = logging.getLogger("tfmem")

WATCHED = 5
"""Steps of each plan that are watched. The first has its memory still to get, and the padding of
the allocator settles in those after it; each costs a copy of what a step updates. More find what
comes late, fewer cost less."""

REPLANS = 3
"""Times that an input signature is planned again. Sizes that are wrong by a fifth need two."""

_BEGIN_AGAIN = "its random ops with a seed would give other numbers in a new function"

_OF_ITS_OWN = (
    "its random ops with a seed begin with their first numbers in each; call it with the largest "
    "arguments first, for whose sizes the others run, too"
)


@dataclass
class Watch:
    """What is known of the steps of one input signature, as long as they are watched.

    Attributes:
      effects: what a step leaves behind.
      is_copied: whether a step is copied before, to be made again if it is out of memory.
      tracing: the steps that are traced for the next plan, if that was asked for.
      left: how many steps of the plan are still to be watched.
      made: how many have ended since the first one, whatever their plans.
      behind: how many of them the random kernels of a new function have still to make.
      signature: of the arguments of the first one.
      is_even: whether each of them moved the counters of random kernels alike.
      replans: how often it was planned again.
      due: why it is planned again before the next step; "" if it is not.
      learned: bytes to be left free then, by device.
      is_settled: whether the plan is kept, whatever its steps take.
      risk: the scope in which its steps are made.
    """

    effects: Effects
    is_copied: bool
    tracing: Tracing | None = None
    left: int = WATCHED
    made: int = 0
    behind: int = 0
    signature: Hashable = None
    is_even: bool = True
    replans: int = 0
    due: str = ""
    learned: Mapping[str, int] | None = None
    is_settled: bool = False
    risk: Risk | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is looked for."""
        is_compared = self.is_copied and self.left > 0 and not self.is_settled
        return not is_compared and self.tracing is None and not self.due

    def why_not_anew(self) -> str:
        """Why random kernels would not go on with their numbers in a new function; "" if so."""
        effects = self.effects
        if not effects.counts or not self.made:
            return ""
        if effects.lasting or not effects.is_counted or not self.is_even:
            return (
                f"{_BEGIN_AGAIN}, and how many they have given out is not known (they are in a "
                "loop or branch, or shapes differ from step to step)"
            )
        return ""

    def follow(self, before: Watch) -> None:
        """Goes on where the watch of the plan before ended."""
        self.made, self.signature = before.made, before.signature
        self.is_even, self.replans = before.is_even, before.replans
        self.behind = self.made if self.effects.counts else 0


def watch_of(
    captured: Captured, planned: Sequence[Planned], tracing: Tracing | None, options: Options
) -> Watch | None:
    """How the first steps of a plan are watched; None if they are not.

    They are if a budget is set that the planner is to keep, on a device whose allocator tells what
    it holds, or if they are traced. The limit of a device is a budget only where it changes a plan.
    """
    is_asked = options.budget is not None or not all(one.plan.is_noop for one in planned)
    is_copied = (
        options.watch
        and options.strategy is None
        and is_asked
        and any(one.request.budget and _is_counted(one.request.device) for one in planned)
    )
    if not is_copied and tracing is None:
        return None
    return Watch(effects_of(captured), is_copied, tracing)


def why_not_anew(entry: Entry) -> str:
    """As of a watch, for an entry that may have none any more."""
    if entry.rewritten is None or not entry.rewritten.has_run:
        return ""
    if entry.watch is not None and entry.watch.is_copied:
        return entry.watch.why_not_anew()
    return _BEGIN_AGAIN if effects_of(entry.captured).counts else ""


@dataclass(frozen=True)
class Ended:
    """What an entry leaves to the one that takes its place.

    Attributes:
      why_not_anew: why random kernels would not go on with their numbers there; "" if they do.
      watch: the last that it had.
    """

    why_not_anew: str
    watch: Watch | None


def ended(entry: Entry) -> Ended:
    """What an entry leaves behind; nothing of its function is kept."""
    return Ended(why_not_anew(entry), entry.watch)


def go_on(made: Entry, before: Ended | None) -> Entry:
    """Lets an entry go on where the one whose place it takes ended; says so if it cannot."""
    if before is not None and before.why_not_anew:
        _log.warning("%s: planned again: %s", made.name, before.why_not_anew)
    elif before is not None and before.watch is not None and made.watch is not None:
        made.watch.follow(before.watch)
    return made


def tell_of_numbers(made: Entry, known: Iterable[Entry]) -> None:
    """Says so if a trace has functions of its own for several sizes, each with random kernels.

    TensorFlow runs one function for all sizes of open dimensions, whose kernels go on counting.
    """
    alike = [one for one in known if _differ_in_sizes(one.captured, made.captured)]
    if any(one.rewritten or made.rewritten for one in alike) and effects_of(made.captured).counts:
        _log.warning("%s: planned for several sizes of its arguments: %s", made.name, _OF_ITS_OWN)


def _differ_in_sizes(first: Captured, second: Captured) -> bool:
    """Whether they are of one trace, for arguments of other sizes."""
    if first.signature is None or second.signature is None or first.shapes == second.shapes:
        return False
    one, other = first.signature.function_type, second.signature.function_type
    return bool(one.parameters == other.parameters)


def _is_counted(device: str) -> bool:
    try:
        memory.memory_info(device)
    except Error:
        return False
    return True
