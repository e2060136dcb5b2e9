"""Which arguments are in a device's memory at a step, and buffers in the place of the others.

A NumPy array gets there as a function is called with it. On a CPU a tensor made of one may lie in
NumPy's memory, in which TensorFlow leaves what happens to begin at a multiple of 64 bytes, and the
next batch may not: what would be free in some steps and not in others is held in all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfmem.bridge.capture import Captured
from tfmem.bridge.inputs import is_variable
from tfmem.errors import Error
from tfmem.functions.entry import Tenant
from tfmem.graph import device_names
from tfmem.graph.ir import Value
from tfmem.runtime import devices, heap, memory


def with_absent(captured: Captured, flat: Sequence[Any], given: Any) -> Captured:
    """The function with its arguments that are not in the memory of their devices yet.

    Args:
      captured: the function.
      flat: its arguments as it takes them.
      given: the same in the structure in which the caller passed and holds them.
    """
    own = {id(leaf) for leaf in _leaves(given)}
    nodes = {node.name: node for node in captured.graph.nodes if node.is_input}
    absent: dict[str, list[int]] = {}
    for item, tensor in zip(captured.inputs, flat, strict=False):  # captured variables follow
        nbytes = 0 if is_variable(item) else captured.graph.nbytes(Value(item.name))
        device = nodes[item.name].device
        if nbytes < heap.LEAST_CHUNK or (id(tensor) in own and heap.holds(device, tensor)):
            continue
        absent.setdefault(device, []).append(nbytes)
    return replace(captured, absent={name: tuple(sizes) for name, sizes in absent.items()})


@contextmanager
def stand_ins(captured: Captured, device: str) -> Iterator[None]:
    """Holds buffers of the size of each absent argument, if there is room for them.

    What is measured to be free within the scope is free beside the arguments of any step.
    """
    held = _held(device, captured.absent.get(device, ()))
    try:
        yield
    finally:
        held.clear()


@contextmanager
def in_their_places(
    tenants: Iterable[Tenant], args: Sequence[Any], kwargs: Mapping[str, Any], given: Any
) -> Iterator[None]:
    """Holds buffers of the size of each large tensor that lies in NumPy's memory.

    Each is as if the tensor had been made in the device's memory: not where the arguments of the
    step before lay, which were still there, and as long as the tensor is. No more is held than
    makes up for what is in use less than in steps before.

    Args:
      tenants: the step's plans; only CPUs adopt what is NumPy's.
      args, kwargs: of a step, arrays as tensors.
      given: the same as the caller passed and holds them.
    """
    own = [one for one in tenants if device_names.kind(one.device) == "CPU"]
    if not own or not tf.executing_eagerly():
        yield
        return
    held = {id(leaf) for leaf in _leaves(given)}
    leaves = [leaf for leaf in _leaves((args, kwargs)) if _nbytes(leaf) >= heap.LEAST_CHUNK]
    for tenant in own:
        _stand_in(tenant, leaves, held)
    try:
        yield
    finally:
        for tenant in own:
            tenant.in_use = max(tenant.in_use, memory.memory_info(tenant.device)[0])


def _stand_in(tenant: Tenant, leaves: Iterable[Any], held: Container[int]) -> None:
    """Makes what stands in for tensors of a device that are not in its memory, if it is missing."""
    missing, places = tenant.in_use - memory.memory_info(tenant.device)[0], []
    for leaf in leaves:
        nbytes, lying = _nbytes(leaf), leaf
        if devices.full_name(leaf.backing_device) != tenant.device:
            continue
        if id(leaf) in tenant.stand_ins:
            lying = tenant.stand_ins[id(leaf)]
        elif not heap.holds(tenant.device, leaf):
            lying = _kept(tenant, leaf) if nbytes < 2 * missing else None
            missing -= nbytes if lying is not None else 0
        if lying is not None and id(leaf) in held:
            begin = heap.address(lying)
            places.append(range(begin, begin + nbytes))
    tenant.places = places


def _kept(tenant: Tenant, leaf: Any) -> Any:
    """What stands in for a tensor from now on, as long as the tensor and the plan are there."""
    made = _beside(tenant, _nbytes(leaf))
    if made is not None:
        tenant.stand_ins[id(leaf)] = made
        weakref.finalize(leaf, _let_go, weakref.ref(tenant), id(leaf)).atexit = False
    return made


def _let_go(of: weakref.ref[Tenant], tensor: int) -> None:
    if (tenant := of()) is not None:
        tenant.stand_ins.pop(tensor, None)


def _beside(tenant: Tenant, nbytes: int) -> Any:
    """A buffer where none of the last arguments lay; None if there is no room.

    The smallest chunk that takes it is the one that takes what lay there as well.
    """
    device, aside = tenant.device, []
    try:
        for _ in range(len(tenant.places) + 1):
            if not _has_room(device, nbytes):
                return None
            made = heap.buffer(device, nbytes)
            begin = heap.address(made)
            ends = (
                one.stop for one in tenant.places if one.start < begin + nbytes and begin < one.stop
            )
            if not (end := max(ends, default=0)):
                return made
            del made
            aside.append(heap.buffer(device, end - begin))
        aside.clear()
        return heap.buffer(device, nbytes)
    except (Error, tf.errors.ResourceExhaustedError):
        return None  # what is free is scattered


def _leaves(structure: Any) -> list[Any]:
    found: list[Any] = tf.nest.flatten(structure, expand_composites=True)
    return found


def _nbytes(argument: Any) -> int:
    """Bytes of a tensor of numbers; 0 for anything else."""
    if not isinstance(argument, tf.Tensor) or argument.dtype in (tf.string, tf.variant):
        return 0
    return int(argument.shape.num_elements()) * int(argument.dtype.size)


def _held(device: str, sizes: Sequence[int]) -> list[Any]:
    """Buffers of these sizes, if there is room for all of them."""
    try:
        if sizes and _has_room(device, sum(sizes)):
            return [heap.buffer(device, nbytes) for nbytes in sizes]
    except (Error, tf.errors.ResourceExhaustedError):
        pass  # the device keeps no statistics, or what is free is scattered
    return []


def _has_room(device: str, nbytes: int) -> bool:
    limit = memory.device_limit(device)
    return limit is not None and memory.memory_info(device)[0] + nbytes <= limit
