"""What is asked of the planner for one device, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfmem.costs.types import Block, Lying
from tfmem.plan import Plan
from tfmem.simulation.simulate import Simulation

TECHNIQUES = ("order", "recompute", "swap", "place")
"""Names of all techniques, in the order in which their passes run after recomputation."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a plan must keep to.

    Attributes:
      budget: most bytes that may be in use on the device; None for no bound.
      techniques: what may be used.
      max_slowdown: most that the predicted step time may grow, as a factor; None for no bound.
    """

    budget: int | None = None
    techniques: frozenset[str] = frozenset(TECHNIQUES)
    max_slowdown: float | None = None


@dataclass(frozen=True, kw_only=True)
class Request(Bounds):
    """The bounds of a plan for one device, with devices and limits found.

    Attributes:
      device: the device whose memory is scarce, by its full name.
      host: the device that takes what leaves it; "" if there is none.
      room: bytes of each chunk that the device's allocator has free, by address, beside what is
        in use when the plan is made; None if it may grow without a limit.
      may_grow: whether its allocator may have more than that.
      lying: where the large arguments of the first call lie between these chunks, by address.
      blocks: the variables that may be placed, with the free chunks beside them.
      bytes_beside: in use on the device, for the whole step, that are no part of the function.
      bytes_unforeseen: to be left free, for steps measured before took more than was predicted.
      in_order: whether one node must run after the other, in one order that is known.
      whole: the request that was made, of whose budget this has what others leave.
      sources: of nodes, which variable one is or where the user's code made it, as far as known.
    """

    device: str
    host: str = ""
    room: tuple[int, ...] | None = None
    may_grow: bool = False
    lying: tuple[Lying, ...] = ()
    blocks: tuple[Block, ...] = ()
    bytes_beside: int = 0
    bytes_unforeseen: int = 0
    in_order: bool = False
    whole: Request | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Decision:
    """A plan with the simulations that it rests on.

    The simulations compare plans; the peaks that the plan predicts are the usual ones in the
    allocator, which pads what it hands out. The budget is kept by `worst_bytes`, that of the step
    it pads most. `fits` says whether the holes between chunks leave room for it, `loose_bytes` how
    much more may be in use where the plan leaves nodes to run in any order; `least_bytes` is the
    least budget that is known to do, where it is more than `worst_bytes`.
    """

    plan: Plan
    before: Simulation
    after: Simulation
    worst_bytes: int
    fits: bool = True
    loose_bytes: int = 0
    least_bytes: int = 0

    def keeps(self, budget: int | None) -> bool:
        """Whether a budget in bytes holds, and the allocator has room; True without a budget."""
        return budget is None or (self.worst_bytes <= budget and self.fits)
