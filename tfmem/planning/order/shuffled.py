"""Orders in which the nodes of a plan may run whose window lets them overtake one another."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tfmem.graph.compact import KEPT
from tfmem.graph.ir import Graph


def shuffled(graph: Graph, order: Sequence[str], window: int, seed: int) -> tuple[str, ...]:
    """An order made at random, in which each node runs once all `window` places before it have run.

    Constants that wait for nothing, which no order holds, come first.

    Args:
      graph: whose nodes they are.
      order: every node, topologically.
      window: how many neighbouring nodes may be in flight.
      seed: another one makes another order.
    """
    choose, form = random.Random(seed), graph.form
    numbers = [form.number[name] for name in order]
    done: set[int] = set()
    for n in numbers:
        if (form.is_input[n] or form.kind[n] == KEPT) and done.issuperset(form.predecessors[n]):
            done.add(n)
    made = [n for n in numbers if n in done]
    left = [n for n in numbers if n not in done]
    place = {n: i for i, n in enumerate(left)}
    while left:
        beyond = place[left[0]] + window
        ready = [
            i
            for i, n in enumerate(left[:window])
            if place[n] < beyond and done.issuperset(form.predecessors[n])
        ]
        made.append(left.pop(choose.choice(ready)))
        done.add(made[-1])
    return tuple(form.names[n] for n in made)
