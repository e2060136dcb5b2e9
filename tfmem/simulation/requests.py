"""What a step, or a function within it, asks of the allocator, in order."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np

from tfmem.costs.types import SWITCH, Costs, Requests
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.program import Program


def requests(
    lifetimes: Lifetimes,
    workspace: Sequence[tuple[int, ...]],
    within: Mapping[int, Requests],
    *,
    held: Container[int] = (),
    kept: Container[int] = (),
) -> Requests:
    """What one step asks for.

    A node's workspace is asked for after its outputs, but what comes before a 0 among its buffers,
    and given back before its inputs. A node that runs functions has its outputs from them.

    Args:
      lifetimes: when each buffer begins and ends.
      workspace: bytes of the buffers that each node of the order holds while it runs.
      within: what functions ask for, by the position of the node that runs them.
      held: buffers that are there before the step.
      kept: buffers that stay after it.
    """
    sizes = lifetimes.nbytes.tolist()
    renewed = {after for before, after in lifetimes.variables if before != after}
    begins: list[list[int]] = [[] for _ in range(max(1, len(lifetimes.program.order)))]
    ends: list[list[int]] = [[] for _ in begins]
    inputs: list[int] = []
    for b in on_device(lifetimes):
        if b not in held:
            is_there = lifetimes.is_input(b) and b not in renewed
            (inputs if is_there else begins[lifetimes.start[b]]).append(b)
        if b not in kept:
            ends[lifetimes.end[b]].append(b)
    made, beyond = [(b, sizes[b]) for b in inputs], len(sizes)
    adopted = {
        after for before, after in lifetimes.variables if before != after and not sizes[before]
    }
    for position, (starting, ending) in enumerate(zip(begins, ends, strict=True)):
        made += [(beyond + number, nbytes) for number, nbytes in within.get(position, ())]
        scratch = workspace[position] if position < len(workspace) else ()
        if position in within or not scratch:
            scratch = (0,)
        held_there = [(beyond + number, nbytes) for number, nbytes in enumerate(scratch)]
        outputs_at = scratch.index(0) if 0 in scratch else 0
        made += held_there[:outputs_at]
        made += [(b, sizes[b]) for b in starting]
        made += [one for one in held_there[outputs_at:] if one[1]]
        made += [(number, 0) for number, nbytes in held_there if nbytes]
        made += [(b, SWITCH if b in adopted else 0) for b in ending]
    return tuple(made)


def on_device(lifetimes: Lifetimes) -> list[int]:
    """The buffers that the device's allocator sees."""
    found: list[int] = np.flatnonzero(~lifetimes.on_host & (lifetimes.nbytes > 0)).tolist()
    return found


def most_of(asked: Requests) -> int:
    """Most bytes in use at a time, without padding."""
    sizes: dict[int, int] = {}
    now = most = 0
    for number, nbytes in asked:
        now += nbytes if nbytes > 0 else -sizes[number]
        sizes[number] = nbytes
        most = max(most, now)
    return most


def scratch(steps: Program, costs: Costs) -> tuple[list[tuple[int, ...]], dict[int, Requests]]:
    """Buffers that each node of an order holds while it runs; what functions run by nodes ask for.

    The former in bytes, with a 0 where outputs are made; the latter by position.
    """
    names = [steps.graph.priced[node] for node in steps.order]
    asked = {i: costs.requests[name] for i, name in enumerate(names) if name in costs.requests}
    buffers = [costs.buffers.get(name) or (costs.workspace.get(name, 0),) for name in names]
    return [tuple(map(costs.allocated, one)) for one in buffers], asked
