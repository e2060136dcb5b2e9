"""What is known of the first steps of a plan, as long as they are watched (see `watched`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tfmem.bridge.capture import Captured
from tfmem.bridge.effects import Effects, effects_of
from tfmem.errors import Error
from tfmem.functions.entry import Planned
from tfmem.functions.lessons import Risk
from tfmem.functions.pricing import Tracing
from tfmem.options import Options
from tfmem.runtime import memory

WATCHED = 5
"""Steps of each plan that are watched. The first has its memory still to get, and the padding of
the allocator settles in those after it; each costs a copy of what a step updates. More find what
comes late, fewer cost less."""

REPLANS = 3
"""Times that an input signature is planned again. Sizes that are wrong by a fifth need two."""


@dataclass
class Watch:
    """What is known of the steps of one input signature, as long as they are watched.

    Attributes:
      effects: what a step leaves behind.
      is_copied: whether a step is copied before, to be made again if it is out of memory.
      tracing: the steps that are traced for the next plan, if that was asked for.
      left: how many steps of the plan are still to be watched.
      made: how many have ended since the first one, whatever their plans.
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

    def follow(self, before: Watch) -> None:
        """Goes on where the watch of the plan before ended."""
        self.made, self.signature = before.made, before.signature
        self.is_even, self.replans = before.is_even, before.replans


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


def _is_counted(device: str) -> bool:
    try:
        memory.memory_info(device)
    except Error:
        return False
    return True
