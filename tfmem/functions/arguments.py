"""Which arguments are in a device's memory at a step, and buffers in the place of the others.

A NumPy array gets there as a function is called with it. So does a tensor of the host that a GPU is
to have, and nobody but the step holds the copy: it dies with its last reader. On a CPU a tensor
made of an array may lie in NumPy's memory, in which TensorFlow leaves what happens to begin at a
multiple of 64 bytes, and the next batch may not: what would be free in some steps and not in others
is held in all of them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfmem.bridge.capture import Captured
from tfmem.bridge.inputs import Passed, is_variable
from tfmem.costs.types import Lying
from tfmem.errors import Error
from tfmem.functions.entry import Tenant
from tfmem.graph import device_names
from tfmem.graph.ir import Graph, Value
from tfmem.runtime import chunks, devices, heap, memory
from tfmem.runtime.chunks import Chunk
from tfmem.runtime.heap import Heap
from tfmem.runtime.regions import around


def with_passed(captured: Captured, flat: Sequence[Any], given: Any) -> Captured:
    """The function with its large arguments, which may not be in the memory of their devices yet.

    Args:
      captured: the function.
      flat: its arguments as it takes them.
      given: the same in the structure in which the caller passed and holds them.
    """
    own = {id(leaf) for leaf in _leaves(given)}
    nodes = {node.name: node for node in captured.graph.nodes if node.is_input}
    passed, copied = [], dict[str, str]()
    for item, tensor in zip(captured.inputs, flat, strict=False):  # captured variables follow
        nbytes = 0 if is_variable(item) else captured.graph.nbytes(Value(item.name))
        device = nodes[item.name].device
        if nbytes < heap.LEAST_CHUNK:
            continue
        held = weakref.ref(tensor) if id(tensor) in own else None
        if held is not None and device_names.is_gpu(device) and chunks.kind_of(tensor) == "CPU":
            copied[item.name] = device_names.cpu_of(device)
            continue
        is_there = held is not None and chunks.holds(device, tensor)
        given_bytes = chunks.nbytes_of(tensor)
        passed.append(
            Passed(item.name, device, nbytes, held, is_there, nbytes - (given_bytes or nbytes))
        )
    moved = (replace(n, device=copied.get(n.name, n.device)) for n in captured.graph.nodes)
    graph = Graph(tuple(moved), captured.graph.outputs) if copied else captured.graph
    return replace(captured, graph=graph, passed=tuple(passed))


def lie_alike(captured: Captured, flat: Sequence[Any]) -> bool:
    """Whether arguments that a GPU gets copies of lie on the host in another call, too."""
    nodes = captured.graph.by_name
    return not any(
        chunks.kind_of(tensor) == "GPU" and not device_names.is_gpu(nodes[item.name].device)
        for item, tensor in zip(captured.inputs, flat, strict=False)
    )


@contextmanager
def stand_ins(
    captured: Captured, device: str, missing: Sequence[int] = ()
) -> Iterator[dict[str, Any]]:
    """Holds buffers of the size of each absent argument, if there is room for them.

    What is measured to be free within the scope is free beside the arguments of any step.

    Args:
      captured: the function.
      device: the device.
      missing: bytes of buffers that variables will get before the first step.

    Yields:
      The buffers, by the names of the arguments; those of variables by numbers.
    """
    absent = [one for one in captured.passed if one.device == device and not one.is_there]
    own = {str(number): nbytes for number, nbytes in enumerate(missing)}
    held = _held(device, own | {one.name: one.nbytes for one in absent})
    try:
        yield held
    finally:
        held.clear()


def lying(
    captured: Captured, device: str, held: Mapping[str, Any], found: Heap
) -> tuple[Lying, ...]:
    """Where the large arguments of a function lie, as far as that is told.

    Args:
      captured: the function.
      device: the device.
      held: what stands in for arguments, by their names.
      found: what is free now.
    """
    places = dict[int, tuple[str, Chunk]]()
    for one in captured.passed:
        tensor = held.get(one.name)
        if tensor is None and one.device == device and one.is_there and one.tensor is not None:
            tensor = one.tensor()
        if tensor is not None and (chunk := chunks.chunk_of(device, tensor)):
            places[chunk.begin] = one.name, chunk
    last = int(found.unclaimed > 0)  # what is not taken from the system yet comes last
    known_regions = map(around, places) if device_names.kind(device) == "CPU" else ()
    ends = (sum(region) for region in known_regions if region)
    following = dict(itertools.pairwise(sorted({*places, *found.begins, *ends})))
    known, end = [], 0
    for begin, (name, chunk) in sorted(places.items()):
        above = sum(other > begin for other in found.begins) + last
        gap = chunk.nbytes if chunk.is_sure else following.get(begin, begin) - begin
        most = gap if chunk.nbytes <= gap < 2 * chunk.nbytes else 0  # a chunk has less than twice
        known.append(Lying(name, above, chunk.nbytes, most, is_beside=begin == end))
        end = begin + most
    return tuple(known)


def keep(tenant: Tenant, captured: Captured, held: Mapping[str, Any]) -> None:
    """Lets buffers stand in for first arguments as long as the caller holds these."""
    for one in captured.passed:
        tensor = one.tensor and one.tensor()
        if tensor is not None and one.name in held:
            _stay(tenant, tensor, held[one.name])


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
    leaves = [
        leaf for leaf in _leaves((args, kwargs)) if chunks.nbytes_of(leaf) >= heap.LEAST_CHUNK
    ]
    for tenant in own:
        _stand_in(tenant, leaves, held)
    try:
        yield
    finally:
        for tenant in own:
            tenant.in_use = max(tenant.in_use, memory.memory_info(tenant.device)[0])


def _stand_in(tenant: Tenant, leaves: Sequence[Any], held: Container[int]) -> None:
    """Makes what stands in for tensors of a device that are not in its memory, if it is missing.

    The caller has let go of the last arguments before he makes the next if these lie where those
    did; otherwise none of the next ones lies there.
    """
    device, last = tenant.device, tenant.last
    missing = tenant.in_use - memory.memory_info(device)[0]
    here = [leaf for leaf in leaves if devices.full_name(leaf.backing_device) == device]
    places = [chunks.place_of(device, tenant.stand_ins.get(id(leaf), leaf)) for leaf in here]
    seen = {id(tensor) for one, _ in last if (tensor := one()) is not None}
    new = [
        place for leaf, place in zip(here, places, strict=True) if id(leaf) not in seen and place
    ]
    gone = [place for one, place in last if one() is None]
    if new and gone:
        tenant.is_let_go = any(_meet(place, other) for place in new for other in gone)
    beside = [] if tenant.is_let_go else [place for _, place in last]
    tenant.last = []
    for leaf, found in zip(here, places, strict=True):
        place, nbytes = found, chunks.nbytes_of(leaf)
        is_missing = place is None and nbytes < 2 * missing
        if is_missing and (made := _beside(device, beside, nbytes)) is not None:
            _stay(tenant, leaf, made)
            place = chunks.place_of(device, made)
            missing -= nbytes
        if place is not None and id(leaf) in held:
            tenant.last.append((weakref.ref(leaf), place))


def _stay(tenant: Tenant, tensor: Any, made: Any) -> None:
    tenant.stand_ins[id(tensor)] = made
    weakref.finalize(tensor, _let_go, weakref.ref(tenant), id(tensor)).atexit = False


def _let_go(of: weakref.ref[Tenant], tensor: int) -> None:
    if (tenant := of()) is not None:
        tenant.stand_ins.pop(tensor, None)


def _beside(device: str, places: Sequence[range], nbytes: int) -> Any:
    """A buffer of a device's allocator that lies at none of these places; None without room.

    The smallest chunk that takes it is the one that takes what lay there as well.
    """
    aside: list[Any] = []
    try:
        for _ in range(len(places) + 1):
            if not memory.has_room(device, nbytes):
                return None
            made = heap.buffer(device, nbytes)
            place = chunks.place_of(device, made)
            if place is None:
                return None
            there = [one for one in places if _meet(one, place)]
            if not there:
                return made
            del made
            aside.append(heap.buffer(device, max(one.stop for one in there) - place.start))
        aside.clear()
        return heap.buffer(device, nbytes)
    except (Error, tf.errors.ResourceExhaustedError):
        return None  # what is free is scattered


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _leaves(structure: Any) -> list[Any]:
    found: list[Any] = tf.nest.flatten(structure, expand_composites=True)
    return found


def _held(device: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Buffers of these sizes, if there is room for all of them."""
    try:
        if sizes and memory.has_room(device, sum(sizes.values())):
            return {name: heap.buffer(device, nbytes) for name, nbytes in sizes.items()}
    except (Error, tf.errors.ResourceExhaustedError):
        pass  # the device keeps no statistics, or what is free is scattered
    return {}
