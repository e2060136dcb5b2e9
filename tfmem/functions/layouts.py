"""The free memory of each device, laid out as the plans of all functions of this process want it.

A plan was judged to fit into the chunks that were free when it was made, some of them kept apart by
walls. Functions that take turns, such as the steps of a GAN, share these chunks: those that come
later use them as they are where they can, or all plans are laid out together. A plan that does not
fit any more, since what came later made variables or needs other chunks, is made anew.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from typing import Any

from tfmem.bridge.feeds import Feeds
from tfmem.bridge.room import are_within
from tfmem.costs.types import GRAIN
from tfmem.errors import BudgetError, HostMemoryError
from tfmem.functions.arguments import keep, lying, stand_ins
from tfmem.functions.entry import Entry, Planned, Step, Tenant
from tfmem.functions.watch import ended, go_on, why_not_anew
from tfmem.planning.candidate import shrunk
from tfmem.planning.nested import charge
from tfmem.planning.request import Request
from tfmem.runtime import heap, memory
from tfmem.runtime.heap import Heap
from tfmem.runtime.partition import partition
from tfmem.simulation.layout import layout
from tfmem.simulation.simulate import step_of

_log = logging.getLogger("tfmem")

RENEWALS = 3
"""How often a step is planned again for others that share its device, and how often before it runs,
where what is free changes meanwhile. More finds more functions a place beside each other, and plans
longer where there is none."""

_TOO_LITTLE = (
    "functions planned since leave its plan less room than it was made for, and it is kept: its "
    "next steps may run out of memory; raise the budget of one of them"
)


class Layouts:
    """Which plans share the free memory of each device: a process has one allocator for each."""

    def __init__(self) -> None:
        self._tenants: dict[str, weakref.WeakSet[Tenant]] = {}

    def move_in(self, entry: Entry) -> tuple[Tenant, ...]:
        """Lays free memory out as an entry's plans, and those that are there, want it."""
        tenants = []
        for one in entry.planned:
            with stand_ins(entry.captured, one.plan.device) as held:
                tenants.append(self._moved_in(entry, one, held))
        return tuple(tenant for tenant in tenants if tenant is not None)

    def move_out(self, tenants: Iterable[Tenant]) -> None:
        """Forgets plans whose steps run no more; the walls go with the last of a device."""
        for tenant in tenants:
            tenant.stand_ins.clear()
            others = self._tenants[tenant.device]
            others.discard(tenant)
            if not others:
                tenant.walls.clear()

    @contextmanager
    def without(self, tenants: Iterable[Tenant]) -> Iterator[None]:
        """Moves plans out for others that take their place; after an error they are there again."""
        there = tuple(tenants)
        self.move_out(there)
        try:
            yield
        except BaseException:
            for tenant in there:
                self._tenants[tenant.device].add(tenant)
            raise

    def tries_left(self, entry: Entry, tries: int) -> int:
        """Forgets plans that have no room in the chunks that are free now; they may be made anew.

        Raises:
          BudgetError: they were, as often as they may be.
        """
        self.move_out(entry.tenants)
        if tries:
            return tries - 1
        places = ", ".join(tenant.device for tenant in entry.tenants if not tenant.is_fit)
        raise BudgetError(
            f"{entry.name}: what is free on {places} is too scattered for its plan, however often "
            "it is made; make variables and functions with budgets before others, or raise the "
            "budget"
        )

    def renewed(
        self,
        entry: Entry,
        entries: MutableMapping[Any, Entry],
        make: Callable[[Any, Any], Entry],
        args: Any,
        kwargs: Any,
    ) -> Entry:
        """Another entry in the place of one that does not fit any more; that one if none does.

        Args:
          entry: what is replaced.
          entries: where it is.
          make: plans again for these arguments, and puts what comes out into `entries`.
          args, kwargs: of the call.
        """
        keys = [key for key, known in entries.items() if known is entry]
        for key in keys:
            del entries[key]
        try:
            with self.without(entry.tenants):
                if entry.renewals >= RENEWALS:
                    raise BudgetError("it was planned again before")
                if why_not := why_not_anew(entry):
                    raise BudgetError(why_not)
                made = make(args, kwargs)
        except BaseException as error:
            entries.update(dict.fromkeys(keys, entry))
            if not isinstance(error, (BudgetError, HostMemoryError)):
                raise
            _log.warning("%s: %s (%s)", entry.name, _TOO_LITTLE, error)
            for tenant in entry.tenants:
                tenant.is_fit = True
            return entry
        _log.info("%s: planned again, for functions planned since share the device", entry.name)
        counted = replace(go_on(made, ended(entry)), renewals=entry.renewals + 1)
        entries.update({key: counted for key, known in entries.items() if known is made})
        return counted

    def instead_of(
        self,
        others: Sequence[Entry],
        entries: MutableMapping[Any, Entry],
        make: Callable[[Any, Any], Entry],
        args: Any,
        kwargs: Any,
    ) -> Entry:
        """An entry for a call, in the place of others, which are too small for it.

        The calls that these were for are its own; those that it has no room for stay.

        Args:
          others: what is replaced; they are as before if there is no plan.
          entries, make, args, kwargs: as of `renewed`.
        """
        with self.without([tenant for one in others for tenant in one.tenants]):
            made = make(args, kwargs)
        for one in others:
            go_on(made, ended(one))
            own, shapes = one.captured.shapes, made.captured.shapes
            is_own = own == shapes or are_within(own, shapes)
            if is_own:
                keys = [key for key, known in entries.items() if known is one]
                entries.update(dict.fromkeys(keys, made))
            else:
                self._move_back(one.tenants)
        return made

    def _move_back(self, tenants: Iterable[Tenant]) -> None:
        """Plans that were moved out, where others have laid out what is free meanwhile."""
        for tenant in tenants:
            others = self._tenants[tenant.device]
            tenant.walls = next((one.walls for one in others), tenant.walls)
            others.add(tenant)
            self._share([tenant])

    def _moved_in(self, entry: Entry, one: Planned, held: Mapping[str, Any]) -> Tenant | None:
        """A plan in free memory, what stands in for arguments being held there."""
        plan, captured = one.plan, entry.captured
        others = list(self._tenants.setdefault(plan.device, weakref.WeakSet()))
        if one.request.room is None:
            return None
        if plan.is_noop:
            self._share(others)
            return None
        charged = charge(one.graph, one.costs, captured.bodies, plan.bodies, plan.device)
        step, steps = step_of(one.graph, charged, plan, one.most_bytes)
        tenant = Tenant(entry.name, plan.device, (step.at(()), steps))
        keep(tenant, captured, held)
        if one.costs.fed is not None:
            tenant.feeds = Feeds()
        if others:
            tenant.walls = others[0].walls
        self._tenants[plan.device].add(tenant)

        def first(found: Heap) -> Step:
            return step.at(lying(captured, plan.device, held, found)), steps

        if not (others and self._share(others, first)):
            self._lay_out(tenant, others, first, (step, steps), one.request)
        tenant.in_use, _ = memory.memory_info(plan.device)
        return tenant

    def _share(self, others: Sequence[Tenant], first: Callable[[Heap], Step] | None = None) -> bool:
        """Leaves free memory as it is if a plan fits; finds out which others still do."""
        found = heap.measured(others[0].device) if others else None
        if found is None or (first and not _fits(first(found), found.free, (), is_new=True)):
            return False
        for other in others:
            other.is_fit &= _fits(other.step, found.free, ())
        return True

    def _lay_out(
        self,
        tenant: Tenant,
        others: Sequence[Tenant],
        first: Callable[[Heap], Step],
        foreseen: Step,
        request: Request,
    ) -> None:
        """Lays free memory out for all plans, or if that cannot be for the one that is new.

        Chunks are kept apart for buffers that are larger by what was not foreseen.
        """
        tenant.walls.clear()
        found = heap.measured(tenant.device)
        whole, step = (found.free, first(found)) if found else (request.room or (), foreseen)
        free = shrunk(whole, request.bytes_unforeseen)
        larger = sum(whole) / max(1, sum(free))
        every = [(tenant, step), *((other, other.step) for other in others)]
        sizes = layout([one for _, one in every], free)
        if sizes is None:
            sizes = layout([step], free)
            for one, its_step in every:
                one.is_fit &= _fits(its_step, free, sizes or ())
        enlarged = [ceil(larger * size / GRAIN) * GRAIN for size in sizes or ()]
        walls = partition(tenant.device, enlarged)
        if found and sizes and not walls:
            for one, its_step in every:
                one.is_fit &= _fits(its_step, free, ())
        tenant.walls += walls


layouts = Layouts()


def _fits(step: Step, free: Sequence[int], apart: Sequence[int], is_new: bool = False) -> bool:
    """Whether a step finds room, one that is new with no more padding than its budget allows."""
    replay, steps = step
    found = replay.within_apart(free, apart, steps)
    return found.fits and not (is_new and found.worst_bytes > replay.most)
