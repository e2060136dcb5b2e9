"""What is asked of the planner: devices found, limits filled in, what others hold on the device."""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfmem.bridge import handles
from tfmem.bridge.capture import Captured
from tfmem.costs.types import GRAIN, Block, Home, Lying
from tfmem.errors import Error, HostMemoryError
from tfmem.graph import device_names
from tfmem.options import Options
from tfmem.planning.request import Decision, Request
from tfmem.runtime import creation, devices, heap, memory
from tfmem.runtime import host as host_module
from tfmem.runtime.chunks import Chunk
from tfmem.runtime.heap import Heap
from tfmem.simulation.allocator import Bfc
from tfmem.simulation.replay import PIECE
from tfmem.units import format_bytes

_log = logging.getLogger("tfmem")

_UNTOLD = (
    "how its free memory is divided cannot be measured, for TensorFlow's profiler is in use or "
    "other threads allocate; it is taken for one chunk: if the first steps run out of memory, "
    "begin to profile after them"
)

_ROOM_FOR_VARIABLES = 0.8
"""Part of the budget that variables made while tracing, and those before them, may fill for the
planner to choose where they live. More lets it choose more often, and finds no room for the rest
of the step more often."""

_AMPLE = 4.0
"""How far a limit may be above the budget and still be kept to where the allocator grows: its
regions double, and what they leave unused is as much again. More claims memory that nothing needs,
less runs out of memory where the limit is near."""

_APART = 32 * PIECE
"""Bytes that chunks kept apart for small buffers may take beside a budget, where the allocator may
have more: most of them are not in use. Less refuses functions of some megabytes."""

_BITS_BESIDE = 4
"""Bytes of others are rounded up to so many leading bits, so that plans are found again on disk.
More waste less of the budget (an eighth of what others hold), fewer find plans more often."""


def polymorphic(function: Any) -> Any:
    """A callable as a tf.function.

    Raises:
      tfmem.Error: it is none, or one that is bound already.
    """
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
    return function if is_function else tf.function(function)


def requests_of(options: Options) -> tuple[Request, ...]:
    """What is asked for each scarce device: devices found, limits filled in.

    Raises:
      tfmem.Error: a device does not exist, or the host of one is a scarce device.
    """
    names = [devices.full_name(device or devices.scarce()) for device in options.devices]
    return tuple(
        _request(options, device, host, names)
        for device, host in zip(names, options.hosts, strict=True)
    )


def _request(options: Options, device: str, named: str | None, scarce: Sequence[str]) -> Request:
    host = devices.full_name(named) if named else creation.default_host(device)
    if host in scarce:
        raise Error(
            f"host={named!r} is a device whose memory is scarce ({host}): nothing would "
            "be freed by moving tensors there. Name a device with memory of its own: start "
            "tfmem.host_process() and pass the name that it yields"
        )
    most = memory.device_limit(device)
    budget = options.budget
    if budget is None and options.strategy is None:
        budget = most
    if budget is not None and most is not None and budget > most:
        _log.warning(
            "the budget of %s is above what %s has; its limit of %s holds",
            format_bytes(budget),
            device,
            format_bytes(most),
        )
        budget = most
    techniques = options.techniques if host else options.techniques - {"swap", "place"}
    if options.budget is not None and not techniques:
        why = (
            "all of them need a host, and there is none"
            if options.techniques
            else "none is allowed"
        )
        raise Error(
            f"techniques={sorted(options.techniques)}: {why}; allow order or recompute, or name a "
            "device in host=... (tfmem.host_process() lends the memory of a second process)"
        )
    return Request(
        device=device,
        host=host,
        budget=budget,
        techniques=techniques,
        max_slowdown=options.max_slowdown,
    )


def have_room(created: Sequence[tf.Variable], concrete: Any, request: Request) -> bool:
    """Whether variables that were just made on the host fit on the device beside the others.

    Then the planner may choose where each of them lives.
    """
    if request.budget is None:
        return True
    near = [one for one in concrete.graph.variables if one.device == request.device]
    nbytes = sum(map(handles.nbytes, (*near, *created)))
    return bool(nbytes <= _ROOM_FOR_VARIABLES * request.budget)


def check_host_memory(decision: Decision) -> None:
    """Raises HostMemoryError if the host has less free memory than the plan needs.

    What the original has there, too, is there already or its own affair.
    """
    plan, more = decision.plan, decision.after.host_bytes - decision.before.host_bytes
    free = host_module.free_bytes(plan.host) if plan.host else None
    if free is not None and more > free:
        raise HostMemoryError(
            f"the plan needs {format_bytes(more)} more on {plan.host}, where "
            f"{format_bytes(free)} are free; raise the budget, so that less leaves the device, or "
            "free memory on the host"
        )


def with_room(
    request: Request,
    where: Callable[[Heap], tuple[Lying, ...]],
    copied: Sequence[tuple[Chunk, int]] = (),
    homes: Mapping[str, Chunk] | None = None,
    spare: float = 1.0,
) -> Request:
    """The request with the chunks that its device's allocator has free, and arguments among them.

    What it may still take from the system it takes now, as one region, before probes and steps make
    several of it; where it grows and its limit does not matter, what the budget leaves. If nothing
    tells what is free, one chunk of what its limit leaves; none where that does not matter.

    Args:
      request: for the device.
      where: tells between which of the free chunks arguments lie.
      copied: chunks and bytes of variables that are copied before the first step.
      homes: the chunks of variables that may be placed.
      spare: times what the budget leaves that is to be free where the limit does not matter.
    """
    homes = homes or {}
    limit, region = memory.device_limit(request.device), memory.region_bytes(request.device)
    may_grow = limit is None or (region is None and _is_far(limit, request))
    request = replace(request, room=None, may_grow=may_grow, lying=(), blocks=())
    if limit is None:
        return request
    if may_grow:
        return _among_holes(request, where, homes, spare)
    heap.claim(request.device)
    found = heap.measured(request.device)
    if found is None:
        _log.warning("%s: %s", request.device, _UNTOLD)
        current, _ = memory.memory_info(request.device)
        return replace(request, room=(max(GRAIN, (region or limit) - current),))
    then, moved = _after_copies(found, copied)
    homes = {name: moved.get(chunk.begin, chunk) for name, chunk in homes.items()}
    room = *then.free, *([then.unclaimed] if then.unclaimed else [])
    beside = max(0, request.bytes_beside + then.in_use - found.in_use)
    blocks = _blocks(then, homes)
    return replace(request, room=room, lying=where(then), blocks=blocks, bytes_beside=beside)


def _blocks(found: Heap, homes: Mapping[str, Chunk]) -> tuple[Block, ...]:
    """What lies side by side with a variable, by address."""
    blocks = _neighbours(found, homes)
    return tuple(block for block in blocks if any(isinstance(one, Home) for one in block))


def _neighbours(found: Heap, homes: Mapping[str, Chunk]) -> Iterator[Block]:
    """What lies side by side, by address."""
    lying: list[tuple[int, int, int | Home]] = [
        (chunk.begin, chunk.nbytes, Home(name, chunk.nbytes)) for name, chunk in homes.items()
    ]
    lying += zip(found.begins, found.free, range(len(found.free)), strict=True)
    block, end = list[int | Home](), 0
    for begin, nbytes, one in sorted(lying, key=lambda item: item[:2]):
        if begin != end:
            yield tuple(block)
            block = []
        block.append(one)
        end = begin + nbytes
    yield tuple(block)


def _after_copies(
    found: Heap, copied: Sequence[tuple[Chunk, int]]
) -> tuple[Heap, dict[int, Chunk]]:
    """A heap after variables with buffers of their own were copied, and back into their places.

    As `buffers.unshare` does; what has grown together with a free neighbour is another place.

    Returns:
      It, and the chunks of those variables, by the addresses that they had before.
    """
    allocator, copied = Bfc(room=()), list(_still_in_use(found, copied))
    own = allocator.place(
        dict(zip(found.begins, found.free, strict=True)),
        {chunk.begin: chunk.nbytes for chunk, _ in copied},
    )
    before, moved = allocator.in_use, dict[int, Chunk]()
    for place, (chunk, nbytes) in zip(own, copied, strict=True):
        size = max(1, -(-nbytes // GRAIN)) * GRAIN
        for _ in range(2):
            if allocator.has(size):
                other = allocator.allocate(size)
                allocator.release(place)
                place = other
        moved[chunk.begin] = Chunk(place.begin, place.size, is_sure=True)
    free = dict(sorted((begin, size) for size, begin in allocator.free_places))
    in_use = found.in_use + allocator.in_use - before
    return Heap(in_use, tuple(free.values()), tuple(free), found.unclaimed), moved


def _still_in_use(found: Heap, copied: Sequence[tuple[Chunk, int]]) -> Iterator[tuple[Chunk, int]]:
    """Those that overlap neither what is free nor one another: threads may have let go of some."""
    taken = sorted(zip(found.begins, found.free, strict=True))
    for chunk, nbytes in copied:
        place = bisect(taken, (chunk.begin, 0))
        before = max((begin + size for begin, size in taken[place - 1 : place]), default=0)
        after = min((begin for begin, _ in taken[place : place + 1]), default=chunk.end)
        if before <= chunk.begin and chunk.end <= after:
            taken.insert(place, (chunk.begin, chunk.nbytes))
            yield chunk, nbytes


def _among_holes(
    request: Request,
    where: Callable[[Heap], tuple[Lying, ...]],
    homes: Mapping[str, Chunk],
    spare: float,
) -> Request:
    """As `with_room`, for a budget where the allocator may have any amount more.

    Where variables may leave the device there is room for what takes their place.
    """
    if request.budget is None:
        return request
    held, _ = memory.memory_info(request.device)
    if request.host and "place" in request.techniques:
        held = request.bytes_beside
    most = int(spare * max(0, request.budget - held)) + _APART
    is_cpu = device_names.kind(request.device) == "CPU"
    free = host_module.free_bytes(request.device) if is_cpu else None
    if free is None or most < free:
        heap.claim(request.device, most)
    found = heap.measured(request.device)
    if found is None or sum(found.free) < most:  # it would grow in a step
        return request
    blocks = _blocks(found, homes)
    return replace(request, room=found.free, lying=where(found), blocks=blocks)


def _is_far(limit: int, request: Request) -> bool:
    """Whether a limit is far above the budget, or above what a CPU has (so is its default)."""
    if limit > _AMPLE * (request.budget or 0):
        return True
    if device_names.kind(request.device) != "CPU":
        return False
    free = host_module.free_bytes(request.device)
    return free is not None and limit > free + memory.memory_info(request.device)[0]


def bytes_beside(captured: Captured, request: Request, leaving: int = 0) -> int:
    """Bytes in use on the device that are no part of the function, such as another model's.

    Those that leave with what is replaced do not count. 0 if there is no budget, or if the
    allocator keeps no statistics.
    """
    if not request.budget:
        return 0
    try:
        current, _ = memory.memory_info(request.device)
    except Error:
        return 0
    elsewhere = {name for name, one in captured.variables.items() if one.device != request.device}
    own = sum(
        sum(node.nbytes)
        for node in captured.graph.nodes
        if node.is_input and node.device in ("", request.device) and node.name not in elsewhere
    )
    spare = sum(one.spare for one in captured.passed if one.device == request.device)
    beside = max(0, current - (own - spare) - leaving)
    step = 1 << max(0, beside.bit_length() - _BITS_BESIDE)
    return -(-beside // step) * step
