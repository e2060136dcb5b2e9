"""Which arguments are in a device's memory at a step, and buffers in the place of the others.

A NumPy array gets there as a function is called with it. On a CPU a tensor made of one may lie in
NumPy's memory, in which TensorFlow leaves what happens to begin at a multiple of 64 bytes, and the
next batch may not: what would be free in some steps and not in others is held in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    own = {id(leaf) for leaf in tf.nest.flatten(given, expand_composites=True)}
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
    tenants: Iterable[Tenant], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Holds buffers of the size of each large tensor that lies in NumPy's memory.

    No more is held than makes up for what is in use less than in steps before.

    Args:
      tenants: the step's plans; only CPUs adopt what is NumPy's.
      args, kwargs: of a step, arrays as tensors.
    """
    own = [one for one in tenants if device_names.kind(one.device) == "CPU"]
    if not own or not tf.executing_eagerly():
        yield
        return
    leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
    held = [one for tenant in own for one in _held(tenant.device, _adopted(tenant, leaves))]
    try:
        yield
    finally:
        for tenant in own:
            tenant.in_use = max(tenant.in_use, memory.memory_info(tenant.device)[0])
        held.clear()


def _adopted(tenant: Tenant, leaves: Sequence[Any]) -> list[int]:
    """Bytes of each large tensor of a device that lies in NumPy's memory, if so much is missing."""
    missing, sizes = tenant.in_use - memory.memory_info(tenant.device)[0], []
    for leaf in leaves:
        nbytes = _nbytes(leaf)
        if not heap.LEAST_CHUNK <= nbytes < 2 * missing:
            continue
        is_here = devices.full_name(leaf.backing_device) == tenant.device
        if is_here and not heap.holds(tenant.device, leaf):
            sizes.append(nbytes)
            missing -= nbytes
    return sizes


def _nbytes(argument: Any) -> int:
    """Bytes of a tensor of numbers; 0 for anything else."""
    if not isinstance(argument, tf.Tensor) or argument.dtype in (tf.string, tf.variant):
        return 0
    return int(argument.shape.num_elements()) * int(argument.dtype.size)


def _held(device: str, sizes: Sequence[int]) -> list[Any]:
    """Buffers of these sizes, if there is room for all of them."""
    try:
        limit, (current, _) = memory.device_limit(device), memory.memory_info(device)
        if sizes and limit is not None and current + sum(sizes) <= limit:
            return [heap.buffer(device, nbytes) for nbytes in sizes]
    except (Error, tf.errors.ResourceExhaustedError):
        pass  # the device keeps no statistics, or what is free is scattered
    return []
