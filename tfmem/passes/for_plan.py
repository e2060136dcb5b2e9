"""Which passes carry a plan out, and in which order."""

from __future__ import annotations

from tfmem.passes.linearise import Linearise
from tfmem.passes.pipeline import Pass
from tfmem.passes.place import Place
from tfmem.passes.recompute import Recompute
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.passes.transfer import Route
from tfmem.plan import Plan


def passes_of(plan: Plan, route: Route | None = None) -> list[Pass]:
    """The passes that carry a plan out, in their order.

    Args:
      plan: of one device; that of a loop's or branch's body likewise.
      route: how values cross to the plan's host and back; default: by the runtime's Send and Recv.
    """
    route = route or Route(plan.host)
    passes: list[Pass] = []
    if plan.recomputations:
        passes.append(Recompute(plan.recomputations))
    if plan.order:
        passes.append(Reorder(plan.order))
    if plan.evictions:
        passes.append(Swap(plan.evictions, route))
    if plan.placements:
        passes.append(Place(plan.placements, route))
    if plan.order:
        passes.append(Linearise(plan.device, plan.window))
    return passes
