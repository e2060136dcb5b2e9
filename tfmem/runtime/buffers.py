"""Buffers of variables: each gets its own before the first step, and keeps it in all steps."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfmem.bridge import handles
from tfmem.errors import Error
from tfmem.graph import device_names
from tfmem.runtime import chunks, heap, memory


def unshare(variables: Iterable[Any], device: str) -> None:
    """Gives each variable on a device a buffer of its own, of its allocator; values stay.

    Reads share it from then on: what another function accesses by rows was set to copy-on-read.

    Variables that begin alike, such as the slots of an optimizer, may share one buffer, of which
    TensorFlow makes a copy at the first update of each. That is in the middle of a step, so the
    copies lie scattered for good and tensors no longer pack between them: six dense layers of
    Keras 3 with Adam took 50.1 MiB a step where 44.8 do. Those made of NumPy arrays may lie in
    NumPy's memory, where nothing counts them.

    No copy is made where the allocator keeps no statistics, nor of a variable that is not
    initialised, of a type that the device does not copy, or so large that there is no room for a
    second one: TensorFlow looks for it for ten seconds, for each variable anew.
    """
    here = [one for one in variables if one.device == device]
    for variable in here:
        _share_reads(variable)
    try:
        in_use, _ = memory.memory_info(device)
    except Error:
        return
    limit = memory.device_limit(device)
    if limit is not None and in_use + 2 * sum(map(handles.nbytes, here)) > limit:
        here = _with_room(_sharing_first(here, device), device)
    for variable in here:
        in_use, _ = memory.memory_info(device)
        is_done = _copy_buffer(variable)
        if is_done and memory.memory_info(device)[0] - in_use < handles.nbytes(variable):
            _copy_buffer(variable)  # it had its own, whose place is free now


def _sharing_first(variables: Iterable[Any], device: str) -> list[Any]:
    """Variables whose buffers others before them have, then the others.

    Those have to have a copy at their first update in any case, in the middle of a step.
    """
    seen, sharing, others = set[int](), list[Any](), list[Any]()
    for variable in variables:
        begin = _begin(variable, device)
        (sharing if begin in seen else others).append(variable)
        if begin is not None:
            seen.add(begin)
    return sharing + others


def _begin(variable: Any, device: str) -> int | None:
    """The address of a variable's buffer; None where that is not told."""
    import tensorflow as tf

    with tf.init_scope(), tf.device(device), contextlib.suppress(tf.errors.OpError):
        return chunks.begin_of(device, variable.read_value_no_copy())
    return None


def _with_room(variables: Iterable[Any], device: str) -> list[Any]:
    """Those for each of which there is a free chunk beside the others', the first ones first."""
    found = heap.measured(device)
    if found is None:
        return []
    free, chosen = sorted((*found.free, found.unclaimed)), []
    for variable in variables:
        nbytes = handles.nbytes(variable)
        if (place := bisect_left(free, max(1, nbytes))) < len(free):
            chunk = free.pop(place)
            insort(free, chunk - nbytes if chunk >= 2 * nbytes else 0)
            chosen.append(variable)
    return chosen


@dataclass(frozen=True)
class Unsettled:
    """What `unshare` will do to variables.

    Attributes:
      missing: bytes of each buffer that it makes for those that have none of their own.
      copied: the chunk and the bytes of each of those that have, in order; not of small ones, for
        which small chunks are free is not known.
      homes: the chunks of these, by the `id` of the variable.
    """

    missing: tuple[int, ...] = ()
    copied: tuple[tuple[chunks.Chunk, int], ...] = ()
    homes: Mapping[int, chunks.Chunk] = field(default_factory=dict)


def unsettled(variables: Iterable[Any], device: str) -> Unsettled:
    """What `unshare` will do to variables on a device.

    Variables that are accessed by rows tell nothing: their reads are copies. Nor does one that is
    so large that a copy might have no room.
    """
    import tensorflow as tf

    seen, limit = set[int](), memory.device_limit(device)
    missing, copied = list[int](), list[tuple[chunks.Chunk, int]]()
    found = dict[int, chunks.Chunk]()
    for variable in (one for one in variables if one.device == device and one.is_initialized()):
        if limit is None or memory.memory_info(device)[0] + handles.nbytes(variable) > limit:
            continue
        with tf.init_scope(), tf.device(device), contextlib.suppress(tf.errors.OpError):
            value = variable.read_value_no_copy()
            begin = chunks.begin_of(device, value)
            if begin is None:
                continue
            nbytes = handles.nbytes(variable)
            if begin in seen or not chunks.holds(device, value):
                missing.append(nbytes)
            elif nbytes >= heap.LEAST_CHUNK and (chunk := chunks.chunk_of(device, value)):
                copied.append((chunk, nbytes))
                found[id(variable)] = chunk
            seen.add(begin)
    return Unsettled(tuple(missing), tuple(copied), found)


def homes(variables: Iterable[Any], device: str) -> dict[int, chunks.Chunk]:
    """The chunks of variables on a device that are not small, by `id`, as far as that is told.

    Of several that share one it is the first.
    """
    import tensorflow as tf

    found, seen = dict[int, chunks.Chunk](), set[int]()
    for variable in (one for one in variables if one.device == device and one.is_initialized()):
        if handles.nbytes(variable) < heap.LEAST_CHUNK:
            continue
        with tf.init_scope(), tf.device(device), contextlib.suppress(tf.errors.OpError):
            value = variable.read_value_no_copy()
            chunk = chunks.chunk_of(device, value)
            if chunk is not None and chunk.begin not in seen:
                seen.add(chunk.begin)
                found[id(variable)] = chunk
    return found


def copy_reads(variables: Iterable[Any], device: str) -> None:
    """Sets variables on a device to copy-on-read, as the first access by rows does; values stay.

    Whole reads of such a variable are copies from then on. A first step in which it is read before
    it is accessed by rows would do without them, so everything would lie elsewhere than in all
    later steps, for which the plan was made (Keras 3 embeddings with SGD were out of memory in
    their first step).
    """
    import tensorflow as tf

    for variable in (one for one in variables if one.device == device and one.shape.rank):
        _bring_in(variable)
        with tf.init_scope(), tf.device(device), contextlib.suppress(tf.errors.OpError):
            tf.raw_ops.ResourceGather(
                resource=variable.handle, indices=tf.zeros([0], tf.int32), dtype=variable.dtype
            )


def _bring_in(variable: Any) -> None:
    """Gives a variable of a CPU a buffer of its allocator, if it lies in NumPy's memory."""
    import tensorflow as tf

    device, nbytes = variable.device, handles.nbytes(variable)
    limit = memory.device_limit(device) if device_names.kind(device) == "CPU" else None
    if limit is None or memory.memory_info(device)[0] + 2 * nbytes > limit:
        return
    with tf.init_scope(), contextlib.suppress(tf.errors.OpError):
        is_in = chunks.holds(device, variable.read_value_no_copy())
        if not is_in:
            _copy_buffer(variable)


def _share_reads(variable: Any) -> None:
    """Lets reads of a variable share its buffer."""
    import tensorflow as tf

    with tf.init_scope(), contextlib.suppress(tf.errors.OpError):  # it may have no value
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


def _copy_buffer(variable: Any) -> bool:
    """Gives a variable a copy of its buffer; whether it could be made."""
    import tensorflow as tf

    with tf.init_scope(), tf.device(variable.device), contextlib.suppress(tf.errors.OpError):
        shared = variable.read_value_no_copy()
        own = tf.raw_ops.DeepCopy(x=shared)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=own)
        return True
    return False
