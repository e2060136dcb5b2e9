"""What was decided, and made, for one input signature of a function."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tfmem.bridge.capture import Captured
from tfmem.bridge.effects import effects_of
from tfmem.bridge.feeds import Feeds
from tfmem.bridge.rebuild import Rewritten
from tfmem.costs.types import GRAIN, Costs
from tfmem.functions.peaks import Peaks
from tfmem.graph.compact import KEPT
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.request import Decision, Request
from tfmem.runtime import host, variables
from tfmem.runtime.host_child import DEVICE
from tfmem.simulation.replay import Replay

if TYPE_CHECKING:
    from tfmem.functions.watch import Watch


@dataclass(frozen=True)
class Planned:
    """What was decided for one device: the graph that was planned, its costs, what was asked."""

    graph: Graph
    costs: Costs
    decision: Decision
    request: Request

    @property
    def plan(self) -> Plan:
        """The plan that was decided on."""
        return self.decision.plan

    @property
    def most_bytes(self) -> float:
        """Bytes that its steps may have in use at most, whichever nodes of a window run together.

        What others hold counts besides, and what was not foreseen.
        """
        asked, after = self.request, self.decision.after
        if not asked.budget:
            return math.inf
        beside = asked.bytes_beside + asked.bytes_unforeseen
        return asked.budget - beside - (after.window_peak_bytes - after.peak_bytes)

    @property
    def is_fed(self) -> bool:
        """Whether it was made for a limited room in which iterators make batches."""
        return self.costs.fed is not None and self.request.room is not None


Step = tuple[Replay, int]
"""A step, to be replayed so many times."""


@dataclass(eq=False)
class Tenant:
    """A plan whose steps run in the free memory of a device.

    Attributes:
      name: of the function.
      device: its full name.
      step: to be replayed, wherever arguments lie.
      walls: buffers that keep chunks of the free memory apart, one list for all plans of a device.
      is_fit: whether it still finds the chunks that it needs.
      in_use: most bytes of the device in use beside steps, their arguments included.
      feeds: what makes arguments in the same memory, for which each step waits; None if nothing.
      stand_ins: buffers in the place of arguments in NumPy's memory, by the ids of these.
      last: the arguments of the last step that the caller held, and the addresses they lay at.
      is_let_go: whether the caller lets go of them before he makes the next ones.
    """

    name: str
    device: str
    step: Step
    walls: list[Any] = field(default_factory=list, repr=False)
    is_fit: bool = True
    in_use: int = 0
    feeds: Feeds | None = None
    stand_ins: dict[int, Any] = field(default_factory=dict, repr=False)
    last: list[tuple[weakref.ref[Any], range]] = field(default_factory=list, repr=False)
    is_let_go: bool = False


@dataclass(frozen=True)
class Entry:
    """What was decided, and made, for one input signature.

    `planned` is that of the scarce devices, each planned on the graph that those before it leave.
    `watch` is there as long as its steps are watched, `events` tells what was found so far, `peaks`
    what its steps held. `tenants` are its plans that share the free memory of a device with others.
    `moves` counts the variables moved, in the whole process, when it was made: an entry that is
    older than the last move may refer to variables that are elsewhere now.
    `renewals` counts how often it was planned again for others that share a device.
    """

    name: str
    captured: Captured
    planned: tuple[Planned, ...]
    seconds: float
    moves: int
    rewritten: Rewritten | None = None
    tenants: tuple[Tenant, ...] = ()
    watch: Watch | None = None
    events: tuple[str, ...] = ()
    peaks: Peaks = field(default_factory=Peaks, compare=False)
    renewals: int = 0

    def here(self) -> Entry:
        """This entry for its variables where they are now: their handles are known again."""
        moves, found = variables.moves(), self.captured.variables.items()
        handles = {name: weakref.ref(variable.handle) for name, variable in found}
        return replace(self, captured=replace(self.captured, handles=handles), moves=moves)

    @property
    def is_current(self) -> bool:
        """Whether it can run: its variables and the free memory are where it was made for."""
        return not self.is_stale and self.is_fit

    @property
    def is_fit(self) -> bool:
        """Whether its plans still find the free memory that they were made for."""
        return all(tenant.is_fit for tenant in self.tenants)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The scarce devices that it is planned for."""
        return tuple(one.plan.device for one in self.planned)

    @cached_property
    def updated(self) -> tuple[Any, ...]:
        """The captured variables that a step may update."""
        captured = self.captured.variables
        return tuple(captured[n] for n in effects_of(self.captured).written if n in captured)

    @cached_property
    def needs_host(self) -> bool:
        """Whether a plan makes use of the host process."""
        plans = (one.plan for one in self.planned)
        return any(p.host == DEVICE and (p.evictions or p.placements) for p in plans)

    @property
    def is_stale(self) -> bool:
        """Whether a variable that this was made for has moved since, or its host has gone."""
        if self.needs_host and not host.is_connected():
            return True
        return self.moves != variables.moves() and self.captured.has_moved()

    def constants(self, device: str) -> int:
        """Bytes of a device that the constants of its function hold from its first call on."""
        if self.rewritten is None or not self.rewritten.has_run:
            return 0
        graph = self.rewritten.graph
        held = (
            node.nbytes
            for node, kind in zip(graph.nodes, graph.form.kind, strict=True)
            if kind == KEPT and not node.is_input and node.device == device
        )
        return sum(-(-nbytes // GRAIN) * GRAIN for sizes in held for nbytes in sizes)

    @property
    def plan(self) -> Plan:
        """The first device's plan, with those of the others."""
        first, *others = (one.plan for one in self.planned)
        return replace(first, others=tuple(others))
