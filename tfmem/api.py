"""`optimize` and what it returns: the face of tfmem.

call -> signature -> (first time: trace, capture, plan, move variables, rewrite) -> run
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, overload

import tensorflow as tf

from tfmem.bridge.calls import fresh
from tfmem.bridge.capture import Captured
from tfmem.bridge.forks import check_no_fork
from tfmem.errors import BudgetError, Error, HostMemoryError
from tfmem.functions import failures, rewrite, steps
from tfmem.functions.decide import entry_of
from tfmem.functions.entry import Entry, Planned
from tfmem.functions.failures import outlives_host, without_frames
from tfmem.functions.iterators import OfElements, takes_first
from tfmem.functions.layouts import RENEWALS, layouts
from tfmem.functions.placed import Placed, changed, distinct
from tfmem.functions.resolve import polymorphic, requests_of
from tfmem.functions.signature import signature_of
from tfmem.functions.tracing import captured, name_of, outgrown, sharing, suits, traced
from tfmem.functions.watch import Ended, ended, go_on, tell_of_numbers
from tfmem.functions.watched import Owner, watched
from tfmem.functions.ways import Ways
from tfmem.options import Options, checked_options
from tfmem.plan import Plan
from tfmem.planning.request import Request
from tfmem.planning.strategy import Strategy
from tfmem.report.build import explained, report_of
from tfmem.report.report import Report
from tfmem.runtime import variables

_log = logging.getLogger("tfmem")


@overload
def optimize(
    function: None = None,
    *,
    budget: float | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
    watch: bool = True,
) -> Callable[[Callable[..., Any]], Optimized]: ...


@overload
def optimize(
    function: Callable[..., Any],
    *,
    budget: float | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
    watch: bool = True,
) -> Optimized: ...


def optimize(
    function: Callable[..., Any] | None = None,
    *,
    budget: float | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
    watch: bool = True,
) -> Optimized | Callable[[Callable[..., Any]], Optimized]:
    """Makes a function run in less memory; also a decorator, with or without arguments.

    Args:
      function: a `tf.function`, or a callable, which becomes one. It must be complete: gradients
        and the optimizer's update inside, or inference.
      budget: most bytes that may be in use on `device` at any moment of a step, everything counted,
        as predicted. An int, or text such as "6GiB" or "800MB". None: the device's own limit; where
        it has none, only the order is changed, which takes time where many nodes would run at once.
      device: the device whose memory is scarce. Default: GPU:0 if there is one, otherwise CPU:0.
        Several for a function that computes on several: the budget is planned for on each of them,
        and what the function puts on no device runs on the first.
      host: the device that takes what leaves `device`. Default: CPU:0 for a GPU; for a CPU the
        running `tfmem.host_process()`, if any, otherwise none, and swap and place are off. One for
        each device, or one for all.
      techniques: a subset of ("order", "recompute", "swap", "place"). Default: all that apply.
      max_slowdown: refuse plans whose predicted step time is above this multiple of the original's.
      strategy: a policy to be carried out as it is, such as `tfmem.TensorFlowMem()`. Default: the
        planner chooses.
      profile: where costs come from: "static" (from sizes and rates of a usual device), "auto"
        (device and link are probed, and what steps measured before is used), "measured" (as well,
        and if nothing was measured before, the first four calls run on a plan made from the probes,
        three of them traced; then the plan is made anew). Both are kept on disk.
      watch: whether the first five steps of a plan for a budget are compared with it, and made
        again under another if they are out of memory; what they update is copied to the host.

    Returns:
      An `Optimized`, called exactly as the function was; without `function`, a decorator.

    Raises:
      tfmem.Error: an argument is not valid. What can only be known when the function is called
        (a device that does not exist, a budget that cannot be met) is raised then.
    """
    options = checked_options(
        budget=budget,
        device=device,
        host=host,
        techniques=techniques,
        max_slowdown=max_slowdown,
        strategy=strategy,
        profile=profile,
        watch=watch,
    )
    if function is None:
        return lambda decorated: Optimized(decorated, options)
    return Optimized(function, options)


def explain(
    function: Callable[..., Any],
    *args: Any,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Report:
    """What fills the memory of a function that is not optimised, and what budgets would cost.

    No step is run. The function is traced: variables that it makes are made, on the host or on the
    device. The device and its link are probed unless that was done before. `Report.html` shows it.

    Args:
      function: as of `optimize`.
      *args: the arguments that it would be called with.
      device: as of `optimize`.
      host: as of `optimize`.
      **kwargs: its keyword arguments.

    Returns:
      A report whose plan changes nothing, with a `frontier`.

    Raises:
      tfmem.Error: as of `optimize` and `Optimized.plan`, but that no budget can be missed.
    """
    return Optimized(function, checked_options(device=device, host=host)).explain(*args, **kwargs)


def _steps_of(optimized: Optimized) -> tuple[OfElements, Any]:
    return optimized._of_elements, optimized.original


class Optimized:
    """A function planned for a memory budget, called exactly as the original is.

    Polymorphic as a tf.function is: one plan for each input signature; where a trace has open
    dimensions (`input_signature` with None), one for all arguments that are no larger. Under a
    `tf.GradientTape` that wants its gradient, the original runs: the rewritten graph has none.

    Attributes:
      original: the original tf.function; another one, traced anew, once variables have moved.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if isinstance(function, Optimized):
            raise Error("the function is optimised already; pass its .original with other options")
        self.original: Any = polymorphic(function)
        self._options = options
        self._entries: dict[Hashable, Entry] = {}
        self._ended: dict[Hashable, Ended] = {}
        self._accepted: dict[Hashable, tuple[Planned, ...]] = {}
        self._bound: weakref.WeakKeyDictionary[Any, Optimized] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._has_told, self._ways = False, Ways()
        self._placed = Placed(self.name, self._forget)
        self._of_elements = OfElements(options, lambda step: Optimized(step, options))
        functools.update_wrapper(self, self.original.python_function, updated=())

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins without plans."""
        return Optimized, (self.original, self._options)

    @property
    def name(self) -> str:
        """Name of the Python function."""
        return name_of(self.original)

    def __get__(self, instance: Any, owner: type | None = None) -> Optimized:
        if instance is None:
            return self
        if instance not in self._bound:
            self._bound[instance] = Optimized(self.original.__get__(instance, owner), self._options)
        return self._bound[instance]

    @outlives_host
    @takes_first(_steps_of)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry = self._entry(args, kwargs)
        if entry.watch is not None and not tf.inside_function():
            of = (lambda: self.original), self._entry, self._run, self._options
            return watched(Owner(self._lock, *of, self._again, self._put), entry, args, kwargs)
        return self._run(entry, args, kwargs)

    def _run(self, entry: Entry, args: Any, kwargs: Any) -> Any:
        """A step that is not watched; one of the original's if a tape wants its gradient."""
        with variables.stay():
            if not entry.is_stale:
                return self._step(entry, args, kwargs)
        return self(*args, **kwargs)  # another thread has moved variables meanwhile

    def _step(self, entry: Entry, args: Any, kwargs: Any) -> Any:
        told = functools.partial(failures.out_of_memory, entry)
        with failures.explained(told) if self._options.watch else contextlib.nullcontext():
            if entry.rewritten is None or not steps.is_recorded(entry, args, kwargs):
                return steps.run(self.original, entry, args, kwargs)
            if not self._has_told:
                self._has_told = True
                steps.tell_of_tape(self.name)
            return self.original(*args, **kwargs)

    def _again(self, entry: Entry, args: Any, kwargs: Any, planned: tuple[Planned, ...]) -> Entry:
        """Another entry in the place of one: for plans, its variables home before, or anew."""
        if planned:
            self._placed.try_to_restore()
        made = self._prepared(args, kwargs, planned)
        self._put(entry, made)
        return made

    def _put(self, entry: Entry, instead: Entry) -> None:
        """Puts an entry in the place of another, for all signatures that it is for."""
        known = tuple(self._entries.items())
        self._entries.update({key: instead for key, one in known if one is entry})

    @outlives_host
    @takes_first(_steps_of)
    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """The rewritten ConcreteFunction for these arguments; the original's if unchanged."""
        made = self._entry(args, kwargs).rewritten
        return made.function if made else self.original.get_concrete_function(*args, **kwargs)

    @outlives_host
    @takes_first(_steps_of)
    def prepare(self, *args: Any, **kwargs: Any) -> int:
        """Plans and rewrites for these arguments unless that is done; how many plans there are.

        Variables that the plan places move to the host.

        Raises:
          tfmem.Error: as of `plan`, or the host has no room; nothing has moved.
        """
        self._entry(args, kwargs)
        return len(distinct(self._known))

    @outlives_host
    @takes_first(_steps_of)
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans for these arguments without running a step or placing a variable.

        The next call has this plan if that still fits into what is free. The function is traced,
        which makes the variables that it makes, on the host or on the device. No variable that was
        there before is written.

        Raises:
          BudgetError: the budget cannot be met.
          HostMemoryError: the host has less free memory than the plan needs.
          UnsupportedFunctionError: the function cannot be captured.
          tfmem.Error: there is no such device.
        """
        known = self._known.get(signature_of(args, kwargs))
        if known is None or (known.is_stale and not self._placed.parked):
            known = self._planned(args, kwargs)
            self._accepted[signature_of(args, kwargs)] = known.planned
        return known.plan

    @outlives_host
    @takes_first(_steps_of)
    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What is predicted for these arguments and, after a call with them, what was measured.

        Before the first call with them it plans, with what `plan` says of that.
        """
        entry = self._known.get(signature_of(args, kwargs))
        return report_of(entry or self._planned(args, kwargs))

    @outlives_host
    @takes_first(_steps_of)
    def explain(self, *args: Any, **kwargs: Any) -> Report:
        """What fills the memory of the original, and what budgets would cost; see `explain`."""
        requests = requests_of(self._options)
        found, profile = self._capture(requests, args, kwargs), self._options.profile
        first, *others = (explained(self.name, found, one, profile) for one in requests)
        return replace(first, others=tuple(others))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the input signatures that it was called with so far."""
        others = (plan for step in self._of_elements.steps for plan in step.plans)
        return *(entry.plan for entry in distinct(self._known)), *others

    def reports(self) -> tuple[Report, ...]:
        """A report of each of the plans."""
        others = (report for step in self._of_elements.steps for report in step.reports())
        return *map(report_of, distinct(self._known)), *others

    @property
    def _known(self) -> dict[Hashable, Entry]:
        return self._placed.parked or self._entries

    @outlives_host
    def restore_variables(self) -> None:
        """Moves what plans placed on the host back to where it was, until the next call.

        Raises:
          tfmem.Error: it has no room there; nothing has moved.
        """
        for step in self._of_elements.steps:
            step.restore_variables()
        with self._lock:
            self._placed.park(self.original, self._entries)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        check_no_fork()
        key = signature_of(args, kwargs)
        entry = self._entries.get(key)
        if entry is None or not entry.is_current or not suits(entry, self.original, args, kwargs):
            with self._lock:
                if (found := self._placed.unpark()) is not None:
                    self.original, self._entries = found
                entry = self._entries.get(key)  # another thread may have made it meanwhile
                make, call = (self._entries, self._prepared, args, kwargs), (args, kwargs)
                if entry is None or entry.is_stale:
                    if shared := sharing(self._entries, key, self.original, *call):
                        return shared
                    others = outgrown(self._entries, self.original, *call, self._ways.growths[0])
                    return layouts.instead_of(others, *make)
                if not entry.is_fit:
                    return layouts.renewed(entry, *make)
                if not suits(entry, self.original, *call):
                    return layouts.instead_of([entry], *make)
        return entry

    def _prepared(
        self, args: Any, kwargs: Any, planned: tuple[Planned, ...] = (), tries: int = RENEWALS
    ) -> Entry:
        if any(entry.is_stale for entry in self._entries.values()):
            self._forget()
        entry = self._planned(args, kwargs, planned, settles=True)
        if not entry.plan.is_noop:
            entry = rewrite.rewritten(entry, self._placed)
        if not entry.is_fit:  # what is free is not what it was when the plan was made
            return self._prepared(args, kwargs, tries=layouts.tries_left(entry, tries))
        tell_of_numbers(entry, self._entries.values())
        key = signature_of(args, kwargs)
        self._entries[key] = go_on(entry, self._ended.pop(key, None))
        _log.info("%s: %s", self.name, entry.plan.summary())
        return entry

    def _forget(self, original: Any = None) -> None:
        """Drops every trace: what was traced before variables moved would not find them."""
        self.original = original or fresh(self.original)
        self._ended |= changed(self._entries, ended)
        self._entries.clear()

    def _planned(
        self, args: Any, kwargs: Any, planned: tuple[Planned, ...] = (), settles: bool = False
    ) -> Entry:
        """What is decided, or was before for the same graph; variables settle before a step."""
        start, requests = time.perf_counter(), requests_of(self._options)
        found, key = self._capture(requests, args, kwargs), signature_of(args, kwargs)
        known = self._accepted.pop(key, ()), settles, self._entries.get(key)
        try:
            return entry_of(self.name, found, start, requests, self._options, planned, *known)
        except (BudgetError, HostMemoryError) as error:
            if not self._ways.another(found, without_frames(error)):
                raise
        return self._planned(args, kwargs, planned, settles)

    def _capture(self, requests: tuple[Request, ...], args: Any, kwargs: Any) -> Captured:
        original, concrete = traced(self.original, self._options, requests, args, kwargs)
        if original is not self.original:
            self._forget(original)
        before = self._entries, signature_of(args, kwargs), self._ways
        of = functools.partial(captured, original, concrete, requests, args, kwargs, *before)
        return self._ways.captured(of)
