"""Orders in which nodes may run whose window lets them overtake one another."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import chain

from tfmem.costs.types import Requests
from tfmem.graph.compact import KEPT, Compact
from tfmem.plan import Plan
from tfmem.simulation.program import Program


def shuffled(form: Compact, order: Sequence[int], window: int, seed: int) -> list[int]:
    """An order made at random, in which each node runs once all `window` places before it have run.

    Constants that wait for nothing, which no order holds, come first.

    Args:
      form: the graph.
      order: nodes of it, topologically.
      window: how many neighbouring nodes may be in flight.
      seed: another one makes another order.

    Returns:
      The places of `order`, as they come.
    """
    choose, among = random.Random(seed), set(order)
    before = [among.intersection(form.predecessors[n]) for n in order]
    done: set[int] = set()
    for i, n in enumerate(order):
        if (form.is_input[n] or form.kind[n] == KEPT) and done >= before[i]:
            done.add(n)
    made = [i for i, n in enumerate(order) if n in done]
    left = [i for i, n in enumerate(order) if n not in done]
    place = {i: number for number, i in enumerate(left)}
    while left:
        beyond = place[left[0]] + window
        ready = [
            number
            for number, i in enumerate(left[:window])
            if place[i] < beyond and done >= before[i]
        ]
        made.append(left.pop(choose.choice(ready)))
        done.add(order[made[-1]])
    return made


def orders_of(program: Program, plan: Plan, count: int) -> tuple[list[int], ...]:
    """So many orders in which the positions of a plan may come; none where they come in one.

    Nor where values cross to the host, whose copies wait for what is before them in the order.
    """
    if plan.window == 1 or plan.transfers or plan.placements:
        return ()
    places = (shuffled(program.graph, program.order, plan.window, seed) for seed in range(count))
    return tuple(places)


def in_order(asked: Sequence[Requests], places: Iterable[int]) -> Requests:
    """What a step asks for whose positions come so; what they give back too early at its end.

    Args:
      asked: as `requests` gives it: for inputs, then at each position.
      places: the positions.
    """
    first, *others = asked
    found = [*first, *chain.from_iterable(others[place] for place in places)]
    awaited = {number for number, nbytes in found if nbytes > 0}
    made, late = list[tuple[int, int]](), list[tuple[int, int]]()
    for number, nbytes in found:
        if nbytes > 0:
            awaited.discard(number)
        (late if number in awaited else made).append((number, nbytes))
    return (*made, *late)
