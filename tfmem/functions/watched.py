"""The first steps of a plan are watched: a plan that was wrong is made again with what was learned.

    copy what a step changes -> step -> what did it take?   more than the budget: plan again
                                  |
                                  +---> out of memory: put back, plan again, the same step again

Predictions miss what no graph shows. After each watched step the allocator tells what was in use,
which is compared with the budget. A step that is out of memory is made again under a tighter plan;
for that its variables are copied to the host before it, and what it takes from an iterator is taken
before it and kept.

Random kernels with a seed count the numbers that they have given out, and those of a function that
is made anew begin with the first. So a new function makes as many steps as were made before, and
what they change is put back.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfmem.bridge.elements import Supply
from tfmem.bridge.feeds import has_begun
from tfmem.bridge.inputs import owner_of
from tfmem.errors import Error
from tfmem.functions import lessons, steps
from tfmem.functions.decide import plan_devices
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.failures import (
    Failure,
    failure_of,
    is_failure,
    out_of_memory,
    without_frames,
)
from tfmem.functions.layouts import layouts
from tfmem.functions.signature import signature_of
from tfmem.functions.watch import REPLANS, WATCHED
from tfmem.graph import device_names
from tfmem.options import Options
from tfmem.runtime import memory, variables
from tfmem.runtime.snapshot import Snapshot
from tfmem.units import format_bytes

_log = logging.getLogger("tfmem")


_TRIES = 3
"""How often a plan is looked for after a step: that which leaves as much free as was wanted, then
those that leave what can be, as far as the one before told. Each takes as long as planning."""


@dataclass(frozen=True)
class Owner:
    """The optimised function whose steps are watched.

    Attributes:
      lock: held by whoever changes its entries.
      original: the tf.function that it is of now.
      entry: the entry of a call.
      run: makes a step that is not watched.
      options: how its calls are planned.
      renew: makes another entry and puts it in the place of one: for these plans, once the
        variables that were placed are home again; without plans, as is decided anew.
      put: puts the second entry in the place of the first.
    """

    lock: contextlib.AbstractContextManager[Any]
    original: Callable[[], Any]
    entry: Callable[[Any, Any], Entry]
    run: Callable[[Entry, Any, Any], Any]
    options: Options
    renew: Callable[[Entry, Any, Any, tuple[Planned, ...]], Entry]
    put: Callable[[Entry, Entry], None]


def watched(owner: Owner, entry: Entry, args: Any, kwargs: Any) -> Any:
    """One of the first steps; one that cannot be watched ends the watch.

    Where it may have to be put back, no other thread may make a step meanwhile.

    Raises:
      OutOfMemoryError: it is out of memory and cannot be made again.
    """
    assert entry.watch is not None
    if tf.distribute.has_strategy() or steps.is_recorded(entry, args, kwargs):
        owner.put(entry, replace(entry, watch=None))
        return owner.run(entry, args, kwargs)
    with contextlib.nullcontext() if entry.watch.effects.lasting else owner.lock:
        entry = owner.entry(args, kwargs)
        if entry.watch is not None:
            return _Step(owner, entry, args, kwargs).run()
    return owner.run(entry, args, kwargs)  # another thread has made the last one meanwhile


class _Step:
    """One call of the user's, whose step is made until it ends."""

    def __init__(self, owner: Owner, entry: Entry, args: Any, kwargs: Any) -> None:
        assert entry.watch is not None
        self._owner, self._entry, self._watch = owner, entry, entry.watch
        self._args, self._kwargs = args, kwargs
        self._copy: Snapshot | None = None
        self._taken: dict[str, Supply] = {}
        self._why_not = "" if entry.watch.is_copied else "It is not made again, as is asked for"

    def run(self) -> Any:
        """The outputs of the step; raises as `watched`."""
        watch = self._watch
        key = signature_of(self._args, self._kwargs)
        watch.signature = watch.signature or key
        watch.is_even = watch.is_even and watch.signature == key
        if watch.is_copied or (watch.due and watch.effects.counts):
            self._prepare()
        if watch.due:
            self._plan_as_due()
        while True:
            try:
                with self._risk():
                    self._catch_up()
                    result = self._step()
            except Exception as error:
                if not is_failure(error):
                    raise
                failure, cause = failure_of(error), without_frames(error)
            else:
                self._end()
                return result
            self._recover(failure, cause)

    # Before the step.

    def _prepare(self) -> None:
        """Copies what the step will change, and takes what it will take."""
        effects, entry = self._watch.effects, self._entry
        inputs = steps.inputs(self._owner.original(), entry, self._args, self._kwargs)
        by_name = {item.name: one for item, one in zip(entry.captured.inputs, inputs, strict=True)}
        captured = entry.captured.variables
        written = [
            captured[name] if name in captured else owner_of(by_name[name])
            for name in effects.written
        ]
        try:
            if any(variable is None for variable in written):
                raise Error("one is passed as a handle")
            rows = set(entry.captured.graph.form.copied_variables)
            named = zip(effects.written, written, strict=True)
            self._copy = Snapshot(written, {id(one) for name, one in named if name in rows})
        except Error as error:
            self._why_not = f"It is not made again: its variables could not be copied: {error}"
            self._tell(f"a step that is out of memory cannot be made again: {error}")
            return
        if effects.lasting:
            self._why_not = (
                "It is not made again, for what it does cannot be undone: "
                f"{', '.join(effects.lasting[:3])}"
            )
            return
        for name, expected in effects.elements.items():
            if not has_begun(by_name[name]) and any(one.is_fed for one in entry.planned):
                self._watch.due = "what its iterators keep is known now"
            self._taken[name] = Supply(by_name[name], expected)

    def _instead(self) -> dict[int, Any]:
        """Iterators over what was taken, by the places of the inputs that they stand for."""
        places = {item.name: place for place, item in enumerate(self._entry.captured.inputs)}
        return {
            places[name]: supply.iterator()
            for name, supply in self._taken.items()
            if not supply.is_empty
        }

    # The step.

    def _risk(self) -> contextlib.AbstractContextManager[None]:
        """The scope in which a step is made."""
        watch, entry = self._watch, self._entry
        if not watch.is_copied:
            return contextlib.nullcontext()
        if watch.risk is None:
            watch.risk = lessons.Risk(entry.captured, entry.planned)
        return watch.risk

    def _step(self) -> Any:
        for request in (one.request for one in self._entry.planned):
            if request.budget is not None:
                with contextlib.suppress(Error):  # its allocator keeps no statistics
                    memory.begin_step(request.device, request.budget)
        tracing = self._watch.tracing
        return self._once() if tracing is None else tracing.run(self._once)

    def _once(self) -> Any:
        original, instead = self._owner.original(), self._instead()
        with variables.stay():
            return steps.run(original, self._entry, self._args, self._kwargs, instead)

    def _catch_up(self) -> None:
        """Brings the random kernels of a new function to where those before it were."""
        behind, self._watch.behind = self._watch.behind, 0
        if behind and self._copy is None:
            self._tell(f"planned again, and random ops with a seed begin again: {self._why_not}")
        elif behind and self._copy is not None:
            for _ in range(behind):
                self._once()
            self._copy.restore()

    def _end(self) -> None:
        """Notes what the step took; nothing is watched after the last one."""
        watch = self._watch
        watch.made += 1
        watch.left -= 1
        if watch.tracing is not None and watch.tracing.is_done:
            watch.due = "the nodes were measured" if watch.tracing.is_kept else watch.due
            watch.tracing = None
        if watch.is_copied and not watch.is_settled:
            self._compare()
        if watch.is_over:
            self._put(replace(self._entry, watch=None))

    def _compare(self) -> None:
        """Compares what was in use with the budget.

        Not on a GPU in the first step: cuDNN tries its algorithms there, with all that is free.
        """
        found, learned = [], {}
        for one in self._entry.planned:
            request = one.request
            if device_names.is_gpu(request.device) and self._watch.left == WATCHED - 1:
                continue
            with contextlib.suppress(Error):
                peak, budget = memory.step_peak(request.device), request.budget
                if budget is not None and peak > budget:
                    learned[request.device] = lessons.after_excess(one, peak)
                    found.append(
                        f"{format_bytes(peak)} were in use on {request.device} in step "
                        f"{self._watch.made}, where the budget is {format_bytes(budget)}"
                    )
        if not found:
            return
        if self._watch.replans < REPLANS:
            self._watch.due, self._watch.learned = "; ".join(found), learned
        else:
            self._watch.is_settled = True
            self._tell(f"{'; '.join(found)}; it was planned {REPLANS} times again already")

    # Planning again.

    def _plan_as_due(self) -> None:
        watch = self._watch
        due, learned = watch.due, watch.learned
        watch.due, watch.learned = "", None
        if why_not := self._why_not_anew():
            watch.is_settled = True
            self._tell(f"{due}; the plan is kept: {why_not}")
        elif learned is None:
            if error := self._renew(()):
                if not watch.made:
                    raise error
                self._tell(f"the plan made from sizes is kept: {error}")
        else:
            watch.replans += 1
            if plan := self._plan_for(learned):
                self._tell(f"{due}; planned again: {plan}")
            else:
                watch.is_settled = True
                self._tell(f"{due}; no plan that takes less was found")

    def _recover(self, failure: Failure, cause: BaseException) -> None:
        """After a step that was out of memory: everything as before it, and another plan.

        Raises:
          OutOfMemoryError: there is none, or the step cannot be made again.
        """
        watch, entry = self._watch, self._entry
        restored = None if self._copy is None else self._copy.restore()
        planned = {one.request.device: one for one in entry.planned}
        one = planned.get(failure.device) if failure.device else entry.planned[0]
        if one is None:
            why = "That device is not planned for"
            raise out_of_memory(entry, failure, restored, why) from cause
        learned = {one.request.device: lessons.after_failure(one, failure)}
        why = self._why_not or self._why_not_anew()
        if not why and watch.replans >= REPLANS:
            why = f"It was planned {REPLANS} times again already"
        if not why:
            watch.replans += 1
            if plan := self._plan_for(learned):
                node = next(iter(failure.nodes), "a node")
                self._tell(
                    f"step {watch.made + 1} was out of memory at {node}; everything was put back, "
                    f"planned again: {plan}"
                )
                return
            why = "No plan that takes less was found"
            # What others took meanwhile may not be in the way again.
            if watch.replans == 1 and not self._renew(entry.planned):
                self._tell(f"step {watch.made + 1} was out of memory; {why}: it is made once more")
                return
        if watch.is_copied:
            self._keep(learned)  # the next process is refused, or begins with another plan
        raise out_of_memory(entry, failure, restored, why) from cause

    def _why_not_anew(self) -> str:
        """Why random kernels would not go on with their numbers in a new function; "" if so."""
        watch = self._watch
        if watch.effects.counts and watch.made and self._copy is None:
            return self._why_not or "it has random ops with a seed, and its steps are not copied"
        return watch.why_not_anew()

    def _plan_for(self, learned: Mapping[str, int]) -> str:
        """Plans so that as much is left free, or as much as can be.

        If others hold more than when it was planned, what they hold is enough to know.

        Returns:
          What the plan is for; "" if there is none that leaves more free.
        """
        if lessons.more_is_held(self._entry) and self._renew(()) is None:
            return "more is held beside it than when it was planned before"
        for _ in range(_TRIES):
            found = self._planned(learned)
            if not isinstance(found, Error):
                self._keep(learned)  # where it is planned anew, for more is held, it looks there
            error = found if isinstance(found, Error) else self._renew(found)
            if error is None:
                return self._left_free() or "nothing is left free for what was not foreseen"
            learned = lessons.reachable(self._entry, learned, error)
            if not learned:
                break
        return ""

    def _planned(self, learned: Mapping[str, int]) -> tuple[Planned, ...] | Error:
        """Plans that leave as much free, for what was asked before; why there are none."""
        entry = self._entry
        requests = (
            replace(one.request, bytes_unforeseen=learned[one.request.device])
            if one.request.device in learned
            else one.request
            for one in entry.planned
        )
        try:
            return plan_devices(entry.captured, requests, self._owner.options)[0]
        except Error as error:
            return without_frames(error)

    def _renew(self, planned: tuple[Planned, ...]) -> Error | None:
        """Puts another entry, for plans or as is decided anew, in the place of the present one.

        Returns:
          Why there is no plan that has room; the entry is the same then.
        """
        original, before = self._owner.original(), self._entry
        layouts.move_out(before.tenants)
        try:
            made = self._owner.renew(before, self._args, self._kwargs, planned)
        except Error as error:
            self._put(replace(before, tenants=layouts.move_in(before)))
            return without_frames(error)
        watch = self._watch if made.watch is None else made.watch
        watch.follow(self._watch)
        is_rewritten = bool(before.rewritten or made.rewritten)
        if not is_rewritten and self._owner.original() is original:
            watch.behind = 0  # the steps before were its own
        self._watch = watch
        self._put(replace(made, events=self._entry.events), made)
        gc.collect()  # a function that is gone still holds its constants on the device
        return None

    def _keep(self, learned: Mapping[str, int]) -> None:
        for one in self._entry.planned:
            if one.request.device in learned:
                lessons.keep(self._entry.captured, one.request, learned[one.request.device])

    def _left_free(self) -> str:
        return ", ".join(
            f"{format_bytes(one.request.bytes_unforeseen)} are left free on {one.request.device} "
            "for what was not foreseen"
            for one in self._entry.planned
            if one.request.bytes_unforeseen
        )

    # What is said.

    def _tell(self, event: str) -> None:
        """Says something once, in the log and in the report."""
        if event not in self._entry.events:
            _log.warning("%s: %s", self._entry.name, event)
            self._put(replace(self._entry, events=(*self._entry.events, event)))

    def _put(self, entry: Entry, instead_of: Entry | None = None) -> None:
        self._owner.put(instead_of or self._entry, entry)
        self._entry = entry
