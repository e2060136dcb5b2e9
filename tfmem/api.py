"""`optimize` and what it returns: the face of tfmem.

call -> signature -> (first time: trace, capture, plan, move variables, rewrite) -> run
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import tensorflow as tf
from tqdm import tqdm

from tfmem import host as host_module
from tfmem import measure, variables
from tfmem.arguments import flat_arguments
from tfmem.bodies import Bodies
from tfmem.capture import Captured, capture
from tfmem.clones import with_clones
from tfmem.costs import Costs
from tfmem.errors import BudgetError, Error
from tfmem.ir import Graph, Value
from tfmem.options import Options, checked_options
from tfmem.passes.linearise import Linearise
from tfmem.passes.place import Place
from tfmem.passes.prune import Prune
from tfmem.passes.recompute import Recompute
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.pipeline import Pass, run_passes
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.search import Decision, Request, carry_out, choose
from tfmem.planning.strategy import Strategy
from tfmem.planning.tensorflowmem import TensorFlowMem
from tfmem.pricing import Tracing, measured, price
from tfmem.rebuild import Rewritten, rebuild
from tfmem.report import Alive, Report
from tfmem.request import bytes_beside, check_host_memory, have_room, requests_of
from tfmem.signature import signature_of
from tfmem.tracing import canonical_arguments, fresh, is_recorded

_log = logging.getLogger("tfmem")

_SLOW = 1.0
"""Seconds of planning from which on a plan is kept on disk."""


@overload
def optimize(
    function: None = None,
    *,
    budget: int | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
) -> Callable[[Callable[..., Any]], Optimized]: ...


@overload
def optimize(
    function: Callable[..., Any],
    *,
    budget: int | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
) -> Optimized: ...


def optimize(
    function: Callable[..., Any] | None = None,
    *,
    budget: int | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
) -> Optimized | Callable[[Callable[..., Any]], Optimized]:
    """Makes a function run in less memory; also a decorator, with or without arguments.

    Args:
      function: a `tf.function`, or a callable, which becomes one. It must be complete: gradients
        and the optimizer's update inside, or inference.
      budget: most bytes that may be in use on `device` at any moment of a step, everything counted.
        An int, or text such as "6GiB" or "800MB". None: the device's own limit where it has one;
        where it has none, only what costs no time is done (the order).
      device: the device whose memory is scarce. Default: GPU:0 if there is one, otherwise CPU:0.
        Several for a function that computes on several: the budget holds for each of them, and what
        the function puts on no device runs on the first.
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
    )
    if function is None:
        return lambda decorated: Optimized(decorated, options)
    return Optimized(function, options)


class Optimized:
    """A function that runs within a memory budget, called exactly as the original is.

    Polymorphic as a tf.function is: one plan for each input signature. Under a `tf.GradientTape`
    that wants its gradient, the original runs, for the rewritten graph has none.

    Attributes:
      original: the original tf.function. If variables have moved to the host, a tf.function that
        was traced before fails at its next call; this one is traced anew.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if isinstance(function, Optimized):
            raise Error("the function is optimised already; pass its .original with other options")
        if not callable(function):
            raise Error(
                f"cannot optimise {function!r}: it is a {type(function).__name__}, not a function; "
                "pass a tf.function or a plain callable"
            )
        if isinstance(function, tf.types.experimental.ConcreteFunction):
            raise Error(
                "cannot optimise a ConcreteFunction, whose variables are bound already; "
                "pass the tf.function that it was made from"
            )
        is_function = isinstance(function, tf.types.experimental.PolymorphicFunction)
        self.original: Any = function
        if not is_function:
            self.original = tf.function(function)
        self._options = options
        self._entries: dict[Hashable, _Entry] = {}
        self._bound: weakref.WeakKeyDictionary[Any, Optimized] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._has_told = False
        self._moved: list[tuple[Any, str]] = []
        functools.update_wrapper(self, self.original.python_function)

    @property
    def name(self) -> str:
        """Name of the Python function."""
        return str(getattr(self.original.python_function, "__name__", "function"))

    def __get__(self, instance: Any, owner: type | None = None) -> Optimized:
        if instance is None:
            return self
        if instance not in self._bound:
            self._bound[instance] = Optimized(self.original.__get__(instance, owner), self._options)
        return self._bound[instance]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry = self._entry(args, kwargs)
        if entry.rewritten is None:
            return self.original(*args, **kwargs)
        if is_recorded(args, kwargs, tuple(entry.captured.variables.values())):
            self._tell_gradient()
            return self.original(*args, **kwargs)
        args, kwargs = canonical_arguments(self.original, args, kwargs)
        with host_module.guard():
            if entry.tracing is None or tf.inside_function():
                return entry.rewritten(*args, **kwargs)
            return self._traced(entry, args, kwargs)

    def _traced(self, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step under the profiler; after the last of them the plan is made anew."""
        assert entry.tracing is not None
        assert entry.rewritten is not None
        step, key = entry.rewritten, signature_of(args, kwargs)
        with self._lock:
            result = entry.tracing.run(lambda: step(*args, **kwargs))
            if entry.tracing.is_done and self._entries.get(key) is entry:
                self._entries[key] = replace(entry, tracing=None)
                try:
                    self._prepared(args, kwargs)
                except Error as error:
                    _log.warning("%s: the plan made from sizes is kept: %s", self.name, error)
        return result

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """The rewritten ConcreteFunction for these arguments; the original's if unchanged."""
        entry = self._entry(args, kwargs)
        if entry.rewritten is None:
            return self.original.get_concrete_function(*args, **kwargs)
        return entry.rewritten.function

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans for these arguments without running a step or moving a variable.

        Raises:
          BudgetError: the budget cannot be met.
          UnsupportedFunctionError: the function cannot be captured.
        """
        return self._planned(args, kwargs).plan

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What is predicted for these arguments and, after a call with them, what was measured."""
        entry = self._entries.get(signature_of(args, kwargs))
        return (entry or self._planned(args, kwargs)).report()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the input signatures that it was called with so far."""
        return tuple(entry.plan for entry in self._entries.values())

    def reports(self) -> tuple[Report, ...]:
        """A report of each of the plans."""
        return tuple(entry.report() for entry in self._entries.values())

    def restore_variables(self) -> None:
        """Moves the variables that plans placed on the host back to where they were.

        The next call plans anew.

        Raises:
          tfmem.Error: they have no room there; nothing has moved.
        """
        with self._lock:
            groups: dict[str, list[Any]] = {}
            for variable, device in self._moved:
                groups.setdefault(device, []).append(variable)
            variables.move_groups(groups)
            self._moved.clear()
            if groups:
                self._forget()

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry:
        entry = self._entries.get(signature_of(args, kwargs))
        if entry is None or entry.is_stale:
            with self._lock:
                entry = self._prepared(args, kwargs)
        return entry

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry:
        if any(entry.is_stale for entry in self._entries.values()):
            self._forget()
        entry = self._planned(args, kwargs)
        if not entry.plan.is_noop:
            entry = self._rewritten(entry)
        self._entries[signature_of(args, kwargs)] = entry
        _log.info("%s: %s", self.name, entry.plan.summary())
        return entry

    def _forget(self) -> None:
        """Drops every trace: what was traced before variables moved would not find them."""
        self.original = fresh(self.original)
        self._entries.clear()

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry:
        start = time.perf_counter()
        requests = requests_of(self._options)
        captured = self._capture(requests, args, kwargs)
        stages: list[_Stage] = []
        graph, tracing = Prune()(captured.graph), None
        for request in requests:
            if stages:
                graph = run_passes(graph, passes_of(stages[-1].decision.plan), _observe)
            request = replace(request, beside=bytes_beside(captured, request))
            decision, tracing = self._decision(captured, graph, request)
            check_host_memory(decision.plan)
            stages.append(_Stage(graph, decision))
        seconds = time.perf_counter() - start
        return _Entry(captured, tuple(stages), seconds, variables.moves(), tracing)

    def _decision(
        self, captured: Captured, graph: Graph, request: Request
    ) -> tuple[Decision, Tracing | None]:
        strategy = self._options.strategy
        profile = "static" if strategy else self._options.profile
        costs = price(captured, graph, request, profile)
        if profile == "measured" and not measured(graph, request):
            tracing = Tracing(graph, request)
            return _without_placement(graph, costs, request, captured.bodies), tracing
        if strategy:
            return carry_out(graph, costs, request, strategy), None
        return _decided(graph, costs, request, captured.bodies), None

    def _capture(
        self, requests: Sequence[Request], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Captured:
        first = requests[0]
        strategy = self._options.strategy or TensorFlowMem()
        may_place = "place" in first.techniques and len(requests) == 1
        with variables.created_on(first.host if may_place else "", strategy.may_place) as created:
            concrete = self.original.get_concrete_function(*args, **kwargs)
        if created and self._options.strategy is None and have_room(created, concrete, first):
            variables.move_variables(created, first.device)
            self._forget()
            concrete = self.original.get_concrete_function(*args, **kwargs)
        args, kwargs = canonical_arguments(self.original, args, kwargs)
        flat = flat_arguments(concrete, args, kwargs)
        return capture(concrete, device=first.device, args=flat)

    def _rewritten(self, entry: _Entry) -> _Entry:
        start = time.perf_counter()
        captured, last = entry.captured, entry.stages[-1]
        graph = run_passes(last.graph, passes_of(last.decision.plan), _observe)
        bodies: dict[str, tuple[Graph, Graph]] = {}
        away: dict[str, list[Any]] = {}
        for plan in (stage.decision.plan for stage in entry.stages):
            placed = [captured.variables[placement.variable] for placement in plan.placements]
            away.setdefault(plan.host, []).extend(v for v in placed if v.device != plan.host)
            bodies |= _rewritten_bodies(captured.bodies, plan)
        if any(away.values()):
            self._moved += [(v, v.device) for group in away.values() for v in group]
            variables.move_groups({host: group for host, group in away.items() if group})
            self._forget()
        rewritten = rebuild(captured, graph, bodies)
        seconds = entry.seconds + time.perf_counter() - start
        return replace(entry, rewritten=rewritten, seconds=seconds, moves=variables.moves())

    def _tell_gradient(self) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "%s is called under a GradientTape that wants its gradient: the original runs, "
                "unoptimised; optimise the function that holds the tape instead",
                self.name,
            )


@dataclass(frozen=True)
class _Stage:
    """What was decided for one device: the graph that was planned, and the decision."""

    graph: Graph
    decision: Decision


@dataclass(frozen=True)
class _Entry:
    """What was decided, and made, for one input signature.

    `stages` are those of the scarce devices, each planned on the graph that those before it leave.
    `tracing` is there as long as its steps are being measured.
    `moves` counts the variables moved, in the whole process, when it was made: an entry that is
    older than the last move may refer to variables that are elsewhere now.
    """

    captured: Captured
    stages: tuple[_Stage, ...]
    seconds: float
    moves: int
    tracing: Tracing | None = None
    rewritten: Rewritten | None = None

    @property
    def is_stale(self) -> bool:
        """Whether a variable that this was made for has moved since."""
        return self.moves != variables.moves() and self.captured.has_moved()

    @property
    def plan(self) -> Plan:
        """The first device's plan, with those of the others."""
        first, *others = (stage.decision.plan for stage in self.stages)
        return replace(first, others=tuple(others))

    def report(self) -> Report:
        """The first device's report, with those of the others."""
        first, *others = map(self._report, self.stages)
        return replace(first, plan=self.plan, others=tuple(others))

    def _report(self, stage: _Stage) -> Report:
        plan, after = stage.decision.plan, stage.decision.after
        graph = with_clones(stage.graph, plan.recomputations)
        return Report(
            plan=plan,
            baseline_timeline=stage.decision.before.timeline,
            timeline=after.timeline,
            alive_at_peak=tuple(self._alive(graph, *item) for item in after.alive_at_peak),
            measured_peak_bytes=_measured_peak(plan.device) if self.rewritten else None,
            planning_seconds=self.seconds,
        )

    def _alive(self, graph: Graph, value: Value, nbytes: int) -> Alive:
        node = graph.by_name[value.node]
        return Alive(value, node.op, nbytes, self.captured.source(node.origin or node.name))


def _measured_peak(device: str) -> int | None:
    try:
        return measure.memory_info(device)[1]
    except Error:  # the allocator keeps no statistics, or is another process's
        return None


def passes_of(plan: Plan) -> list[Pass]:
    """The passes that carry a plan out, in their order."""
    passes: list[Pass] = []
    if plan.recomputations:
        passes.append(Recompute(plan.recomputations))
    if plan.order:
        passes.append(Reorder(plan.order))
    if plan.evictions:
        passes.append(Swap(plan.evictions, plan.host))
    if plan.placements:
        passes.append(Place(plan.placements, plan.host))
    if plan.order:
        passes.append(Linearise(plan.device, plan.window))
    return passes


def _rewritten_bodies(bodies: Bodies, plan: Plan) -> dict[str, tuple[Graph, Graph]]:
    """The bodies that a plan changes, by their function's name: as they were, as they are to be."""
    made = {}
    for one in plan.bodies:
        body = bodies[one.node][one.branch]
        made[body.function] = body.graph, run_passes(body.graph, passes_of(one.plan), _observe)
        made |= _rewritten_bodies(body.bodies, one.plan)
    return made


def _observe(done: Pass, before: Graph, after: Graph, seconds: float) -> None:
    _log.debug("%s: %d to %d nodes, %.2f s", type(done).__name__, len(before), len(after), seconds)


def _without_placement(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    """A plan that moves no variable if there is one: another can still be chosen after it."""
    near = replace(request, techniques=request.techniques - {"place"})
    try:
        return _decided(graph, costs, near, bodies)
    except BudgetError:
        return _decided(graph, costs, request, bodies)


def _decided(graph: Graph, costs: Costs, request: Request, bodies: Bodies) -> Decision:
    found = cache.load(graph, costs, request, bodies)
    if found is None:
        start = time.perf_counter()
        with tqdm(desc="tfmem: planning", unit=" plans", delay=2, leave=False, disable=None) as bar:
            found = choose(graph, costs, request, bar.update, bodies)
        seconds = time.perf_counter() - start
        if seconds > _SLOW:
            _log.info("%d nodes planned in %.1f s", len(graph), seconds)
            cache.save(graph, costs, request, found.plan, bodies)
    return found
