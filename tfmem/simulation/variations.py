"""Steps of one program that differ: in the branches that they take, in when their copies arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfmem.costs.types import Asked, Costs
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.program import Program
from tfmem.simulation.requests import functions

COUNT = 4
"""Other steps that are replayed in turn with the one that is told. More find more of what buffers
may have to make do with, and take longer."""

Variation = tuple[Lifetimes, Mapping[int, Asked]]
"""When the buffers of a step begin and end, and what its functions ask for."""


def variations_of(lifetimes: Lifetimes, costs: Costs) -> tuple[Variation, ...]:
    """Other steps that there may be; none where nothing is chosen and nothing crosses.

    Nodes that choose by one value, such as a branch and its gradient, choose alike, each branch in
    turn; those of bodies are not told apart. What comes to the device has its buffer from some
    moment on between the earliest, as in `lifetimes`, and its first use.
    """
    steps = lifetimes.program
    choosing = {
        steps.graph.priced[node]: steps.graph.reads[node][0]
        for node in steps.order
        if steps.graph.priced[node] in costs.choices
    }
    arrivals = list(_arrivals(lifetimes))
    found = []
    for number in range(COUNT if choosing or arrivals else 0):
        other = _arriving(lifetimes, arrivals, random.Random(number))
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


def _arriving(
    lifetimes: Lifetimes, arrivals: Sequence[tuple[int, int, int]], choose: random.Random
) -> Lifetimes:
    """The same step in which what comes to the device does so at other moments."""
    start = lifetimes.start.copy()
    for buffer, first, last in arrivals:
        start[buffer] = choose.randint(first, last)
    return replace(lifetimes, start=start)


def _arrivals(lifetimes: Lifetimes) -> Iterator[tuple[int, int, int]]:
    """Buffers of what comes to the device, first and last position at which they may begin."""
    steps = lifetimes.program
    needed = _first_uses(steps)
    for number, copy in enumerate(steps.copies, len(steps.graph.names)):
        buffer = lifetimes.buffers[copy.made]
        if not copy.to_host and number in needed and lifetimes.nbytes[buffer]:
            first = int(lifetimes.start[buffer])
            yield buffer, first, max(first, needed[number])


def _first_uses(steps: Program) -> dict[int, int]:
    """The first position that waits for each copy."""
    found: dict[int, int] = {}
    for position, node in enumerate(steps.order):
        for awaited in steps.waits.get(node, ()):
            found.setdefault(awaited, position)
    return found
