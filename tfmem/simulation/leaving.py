"""What variables leave in a device's memory as they are placed on the host."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tfmem.costs.types import Block, Costs, Home
from tfmem.graph.ir import Graph
from tfmem.plan import Plan


def with_left(
    room: Sequence[int], blocks: Sequence[Block], placed: Mapping[str, int]
) -> tuple[int, ...]:
    """The free chunks when variables have left, and their chunks have joined those beside them.

    A chunk that has joined the one before it has no bytes any more, so that numbers stay as they
    are. Chunks that are beside none come first, as do those of which nothing is known.

    Args:
      room: bytes of each free chunk before, by address.
      blocks: what lies beside variables.
      placed: the variables that leave, with the bytes of their values as allocated.
    """
    free, alone, unknown = list(room), list[int](), dict(placed)
    for block in blocks:
        for run in _runs(block, placed):
            left = [one for one in run if isinstance(one, Home)]
            chunks = [one for one in run if not isinstance(one, Home)]
            nbytes = sum(one.nbytes for one in left) + sum(free[number] for number in chunks)
            for one in left:
                del unknown[one.name]
            for number in chunks:
                free[number] = 0
            if chunks:
                free[chunks[0]] = nbytes
            else:
                alone.append(nbytes)
    return *alone, *unknown.values(), *free


def padding(graph: Graph, costs: Costs, plan: Plan) -> int:
    """Bytes by which the chunks of variables that stay are larger than their values.

    Those of variables that are placed leave with them.
    """
    placed = {one.variable for one in plan.placements}
    found = 0
    for home in (one for block in costs.blocks for one in block if isinstance(one, Home)):
        if home.name in graph.by_name and home.name not in placed:
            found += home.nbytes - sum(map(costs.allocated, graph.by_name[home.name].nbytes))
    return found


def _runs(block: Block, placed: Collection[str]) -> Iterator[list[int | Home]]:
    """The parts of a block that are free then."""
    run = list[int | Home]()
    for one in block:
        if isinstance(one, Home) and one.name not in placed:
            if run:
                yield run
            run = []
        else:
            run.append(one)
    if run:
        yield run
