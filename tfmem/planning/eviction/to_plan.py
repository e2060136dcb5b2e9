"""A schedule as a plan: names for its runs, and copies that start before they are waited for."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from tfmem.graph.compact import TINY
from tfmem.graph.ir import Value
from tfmem.plan import Fetch, Placement, Plan, Recomputation, Transfer, clone_name
from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.schedule import HostCopy, Run, Schedule


def plan_of(
    schedule: Schedule,
    problem: EvictionProblem,
    base: Sequence[int],
    away: Sequence[str],
    beside: Mapping[str, str],
    limit: int,
) -> Plan:
    """The plan that carries a schedule out, its predictions and devices not yet filled in.

    Args:
      schedule: what was rehearsed.
      problem: where.
      base: every node of the graph, in the order that was rehearsed.
      away: variables that live on the host.
      beside: nodes that run on the host: {node: the variable that it is beside}.
      limit: bytes that copies on their way back may fill up to.
    """
    triggers = _prefetched(schedule, problem, limit)
    transfers: dict[str, list[Transfer]] = {variable: [] for variable in away}
    evictions = []
    for (run, output), copy in schedule.copies.items():
        transfer = _transfer(problem, schedule, run, output, copy, triggers)
        owner = _owner(problem, run.node, output, beside)
        if owner:
            transfers[owner].append(transfer)
        elif transfer.fetches:
            evictions.append(transfer)
    moved: dict[str, list[str]] = {variable: [] for variable in transfers}
    for number in base:
        name = problem.form.names[number]
        if name in beside:
            moved[beside[name]].append(name)
    return Plan(
        order=_order(schedule, problem, base),
        recomputations=tuple(
            Recomputation(
                problem.form.names[run.node],
                tuple(_name(problem, user) for user in dict.fromkeys(users)),
                run.index,
            )
            for run, users in schedule.clones.items()
        ),
        evictions=tuple(evictions),
        placements=tuple(
            Placement(variable, tuple(moved[variable]), tuple(transfers[variable]))
            for variable in transfers
        ),
    )


def _name(problem: EvictionProblem, run: Run) -> str:
    return clone_name(problem.form.names[run.node], run.index)


def _order(schedule: Schedule, problem: EvictionProblem, base: Sequence[int]) -> tuple[str, ...]:
    """The nodes of `base`, each node of the device behind the clones that come before it."""
    runs = iter(schedule.runs)
    on_device = set(problem.order)
    order = []
    for number in base:
        if number not in on_device:
            order.append(problem.form.names[number])
            continue
        for run in runs:
            order.append(_name(problem, run))
            if run == (number, 0):
                break
    return tuple(order)


def _owner(problem: EvictionProblem, node: int, index: int, beside: Mapping[str, str]) -> str:
    """The variable whose placement a value that crosses belongs to; "" if it is an eviction."""
    form = problem.form
    if problem.on_host[node]:
        return beside.get(form.names[node], "")
    if problem.is_sent[form.first[node] + index]:
        for reader in form.successors[node]:
            if form.names[reader] in beside:
                return beside[form.names[reader]]
    return ""


def _transfer(
    problem: EvictionProblem,
    schedule: Schedule,
    run: Run,
    output: int,
    copy: HostCopy,
    triggers: Mapping[tuple[Value, int], int],
) -> Transfer:
    """Of a value of a run; who reads it through another node, which passes it on, is no user."""
    value, before, fetches = Value(_name(problem, run), output), problem.form.predecessors, []
    for number, (wanted, readers) in enumerate(copy.fetches):
        users = [one for one in readers if run.node in before[one.node]]
        if users:
            trigger = triggers.get((value, number), wanted - 1)
            name = _name(problem, schedule.runs[trigger]) if trigger >= 0 else ""
            fetches.append(Fetch(tuple(_name(problem, user) for user in users), name))
    pace = _name(problem, schedule.runs[copy.pace]) if copy.pace >= 0 else ""
    return Transfer(value, tuple(fetches), pace)


def _prefetched(
    schedule: Schedule, problem: EvictionProblem, limit: int
) -> dict[tuple[Value, int], int]:
    """When each way back starts: as early as hides it, as far as there is room below the limit.

    Returns:
      For (value, number of its fetch), the number of the run that the fetch waits for.
    """
    number_of = {run: i for i, run in enumerate(schedule.runs)}
    room = [limit - nbytes for nbytes in schedule.timeline]
    wanted = []
    for (run, output), copy in schedule.copies.items():
        value, earliest = Value(_name(problem, run), output), max(copy.pace, number_of.get(run, -1))
        nbytes = problem.size[problem.form.first[run.node] + output]
        for number, (position, users) in enumerate(copy.fetches):
            if users:
                wanted.append((position, earliest, nbytes, (value, number)))
                earliest = max(number_of[user] for user in users)
    wanted.sort(key=lambda one: one[:3])
    began = list(accumulate((problem.seconds[run.node] for run in schedule.runs), initial=0.0))
    starts = _latest_starts(problem, began, wanted)
    triggers = {}
    first = max(_crossings_end(schedule, problem), _arguments_end(schedule, problem, began))
    for (position, earliest, nbytes, key), wished in zip(wanted, starts, strict=True):
        start = position
        while start > max(first, earliest + 1, wished) and room[start - 1] >= nbytes:
            start -= 1
            room[start] -= nbytes
        triggers[key] = start - 1
        if start == max(first, wished):  # one that had to wait holds up none behind it
            first = start + 1
    return triggers


def _crossings_end(schedule: Schedule, problem: EvictionProblem) -> int:
    """The number of runs before which what tiny values the host makes first are on their way."""
    form, end = problem.form, 0
    for number, run in enumerate(schedule.runs):
        made = problem.outputs(run.node)
        if any(form.nbytes[value] > TINY for value in made):
            break
        if not form.from_host.isdisjoint(made):
            end = number + 1
    return end


def _arguments_end(schedule: Schedule, problem: EvictionProblem, began: Sequence[float]) -> int:
    """The number of runs before which what the caller gives has come, if that lies on the host.

    It is copied as the step begins; what is asked for before it is there may go first, and all
    waits. 0 if the first node that reads it begins so late that others wait less if they do not.
    """
    given = problem.arguments
    nbytes = sum(problem.size[value] for value in given)
    for number, run in enumerate(schedule.runs):
        if not given.isdisjoint(problem.form.reads[run.node]):
            return number + 1 if began[number] <= nbytes / problem.costs.from_host else 0
    return 0


def _latest_starts(
    problem: EvictionProblem, began: Sequence[float], wanted: Sequence[tuple[int, int, int, object]]
) -> list[int]:
    """Before which run each way back must start for all to be there in time, one after the other.

    No two start at once, for then either might be the first.
    """
    starts, free, start = [], math.inf, len(began)
    for position, _, nbytes, _ in reversed(wanted):
        free = min(free, began[position]) - problem.costs.latency - nbytes / problem.costs.from_host
        start = min(start - 1, position, bisect_right(began, free) - 1)
        starts.append(start)
    return starts[::-1]
