"""Steps of one program that differ: in the branches that they take, in when their copies arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tfmem.costs.types import Asked, Costs
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.program import Program
from tfmem.simulation.requests import functions

FEWEST, MOST = 4, 16
"""Other steps that are replayed in turn with the one that is told, where graphs are large and where
they are small. More find more of what buffers may have to make do with, and take longer: the most
that one plan of a chain took was 8.98 MB in 4 of them, 9.64 in 16, 9.90 in 300 (decision 0119)."""

HELD_SECONDS = 2e-3
"""How long a thread of TensorFlow may be away, and what it holds with it: its RPC's what another
process was sent, from when that has it; the one that calls a function what that takes and gives,
from when it calls. Others go on meanwhile. More foresees what happens where others take the cores,
and refuses more."""

IS_HELD = 0.5
"""Part of what may be held that is, in one variation. All of it at once never was."""

Variation = tuple[Lifetimes, Mapping[int, Asked]]
"""When the buffers of a step begin and end, and what its functions ask for."""


def variations_of(
    lifetimes: Lifetimes, costs: Costs, landed: Mapping[int, int], count: int = FEWEST
) -> tuple[Variation, ...]:
    """Other steps that there may be; none where nothing is chosen, crosses or may be held.

    Nodes that choose by one value, such as a branch and its gradient, choose alike, each branch in
    turn; those of bodies are not told apart. What comes to the device has its buffer from some
    moment on between the earliest, as in `lifetimes`, and its first use, if not at a fixed one.
    What goes to the host, and no node waits for that, has its own to some moment between the end of
    the copy and the latest, as in `lifetimes`. What another process was sent, and what functions
    took and gave, may be held for a moment more. Some kernels ask for their outputs in any order.

    Args:
      lifetimes: of the step that is told.
      costs: what it is priced by.
      landed: for copies to the host, the position by whose end they are over at the earliest; any
        after the last use, if it is not known.
      count: of the steps, if copies differ and nothing may be held, of which the most in many steps
        is more than was ever seen; else `FEWEST`.
    """
    steps = lifetimes.program
    choosing = {
        steps.graph.priced[node]: steps.graph.reads[node][0]
        for node in steps.order
        if steps.graph.priced[node] in costs.choices
    }
    arrivals, departures = list(_arrivals(lifetimes, costs)), list(_departures(lifetimes, landed))
    held, together = dict(_held(lifetimes, costs)), list(_in_any_order(lifetimes, costs))
    if not (choosing or arrivals or departures or held or together):
        return ()
    if held or not (arrivals or departures):
        count = FEWEST
    found = []
    for number in range(count):
        choose = random.Random(number)
        other = _at_other_moments(lifetimes, arrivals, departures, held, choose)
        other = _in_another_order(other, together, choose)
        branches = _branches(choosing, costs.choices, number)
        found.append((other, functions(steps, costs, other, branches)))
    return tuple(found)


def _branches(
    choosing: Mapping[str, int], choices: Mapping[str, int], number: int
) -> dict[str, int]:
    """The branch of each node that chooses, by the value by which it does."""
    choose, first = random.Random(0), dict[int, int]()
    for name, which in choosing.items():
        first.setdefault(which, choose.randrange(choices[name]))
    return {name: (first[which] + number) % choices[name] for name, which in choosing.items()}


def _at_other_moments(
    lifetimes: Lifetimes,
    arrivals: Sequence[tuple[int, int, int]],
    departures: Sequence[tuple[int, int]],
    held: Mapping[int, int],
    choose: random.Random,
) -> Lifetimes:
    """The same step in which copies arrive, and are let go of, at other moments."""
    start, end = lifetimes.start.copy(), lifetimes.end.copy()
    for buffer, first, last in arrivals:
        start[buffer] = choose.randint(first, last)
    for buffer, first in departures:
        end[buffer] = choose.randint(first, int(end[buffer]))
    for buffer, last in held.items():
        if choose.random() < IS_HELD:
            end[buffer] = choose.randint(int(end[buffer]), last)
    return replace(lifetimes, start=start, end=end)


def _in_another_order(
    lifetimes: Lifetimes, together: Sequence[Sequence[int]], choose: random.Random
) -> Lifetimes:
    """The same step in which each group of buffers is asked for in another order."""
    if not together:
        return lifetimes
    turn = np.arange(len(lifetimes.start))
    for buffers in together:
        turn[buffers] = choose.sample(buffers, len(buffers))
    return replace(lifetimes, turn=turn)


def _in_any_order(lifetimes: Lifetimes, costs: Costs) -> Iterator[list[int]]:
    """The buffers of each node whose kernel asks for them in any order."""
    steps = lifetimes.program
    form = steps.graph
    for node in steps.order if costs.unordered else ():
        if form.priced[node] in costs.unordered:
            made = {lifetimes.buffers[v] for v in range(form.first[node], form.first[node + 1])}
            yield sorted(made - {-1})


def _arrivals(lifetimes: Lifetimes, costs: Costs) -> Iterator[tuple[int, int, int]]:
    """Buffers of what comes to the device, first and last position at which they may begin.

    A copy by the device's own kernel begins behind its trigger (`passes.linearise`), if a node
    before that has waited for the way out.
    """
    steps = lifetimes.program
    needed = _first_uses(steps)
    paces = {copy.made: copy.pace for copy in steps.copies if costs.by_kernels and copy.pace >= 0}
    for number, copy in enumerate(steps.copies, len(steps.graph.names)):
        buffer = lifetimes.buffers[copy.made]
        if not copy.to_host and number in needed and lifetimes.nbytes[buffer]:
            first = int(lifetimes.start[buffer])
            if first <= paces.get(copy.source, first):
                yield buffer, first, max(first, needed[number])


def _departures(lifetimes: Lifetimes, landed: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Buffers that only a copy to the host holds in the end, and the first position to end at."""
    steps, buffers = lifetimes.program, lifetimes.buffers
    first: dict[int, int] = {}
    for number, copy in enumerate(steps.copies):
        if copy.to_host:
            buffer = buffers[copy.source]
            begin = first.get(buffer, int(lifetimes.start[buffer]))
            over = copy.pace if copy.pace >= 0 else landed.get(number, 0)
            first[buffer] = max(begin, over)
    early = {b for b, position in first.items() if b >= 0 and position < lifetimes.end[b]}
    if not early:
        return
    for position, node in enumerate(steps.order):
        for value in steps.reads.get(node, steps.graph.reads[node]):
            if buffers[value] in early:
                first[buffers[value]] = max(first[buffers[value]], position)
    yield from ((b, first[b]) for b in sorted(early) if first[b] < lifetimes.end[b])


def _held(lifetimes: Lifetimes, costs: Costs) -> Iterator[tuple[int, int]]:
    """Buffers that may be held for longer than they are needed, and the last position for that."""
    steps = lifetimes.program
    if not (steps.sent or costs.once):
        return
    form, end = steps.graph, lifetimes.end.tolist()
    seconds = np.array([costs.seconds.get(form.priced[node], 0.0) for node in steps.order])
    ends = np.cumsum(seconds)
    from_end, from_begin = (
        np.minimum(np.searchsorted(ends, begin + HELD_SECONDS), len(ends) - 1).tolist()
        for begin in (ends, ends - seconds)
    )
    last: dict[int, int] = {}
    for buffer in {lifetimes.buffers[value] for value in steps.sent} - {-1}:
        last[buffer] = from_end[end[buffer]]
    for position, node in enumerate(steps.order):
        if form.priced[node] in costs.once:
            read = steps.reads.get(node, form.reads[node])
            for value in (*read, *range(form.first[node], form.first[node + 1])):
                buffer = lifetimes.buffers[value]
                last[buffer] = max(last.get(buffer, 0), from_begin[position])
    yield from sorted((b, position) for b, position in last.items() if b >= 0 and end[b] < position)


def _first_uses(steps: Program) -> dict[int, int]:
    """The first position that waits for each copy."""
    found: dict[int, int] = {}
    for position, node in enumerate(steps.order):
        for awaited in steps.waits.get(node, ()):
            found.setdefault(awaited, position)
    return found
