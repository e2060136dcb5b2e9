"""Which chunk of a device's allocator a tensor lies in, if in any.

On a CPU a tensor made of a NumPy array may lie in NumPy's memory. TensorFlow tells of each output
of a traced step which chunk it lies in, and an output of a node that runs Python code is the tensor
that the code gives. On a CPU it does not tell that of tensors made of arrays, in the allocator's
memory or in NumPy's: there the address has to.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfmem.costs.types import GRAIN
from tfmem.graph import device_names
from tfmem.runtime import devices, heap, memory
from tfmem.runtime.regions import regions

_REFERENCES = (tf.string, tf.resource, tf.variant)
"""Types of tensors that are not of numbers or truths."""


@dataclass(frozen=True)
class Chunk:
    """Where a tensor lies.

    Attributes:
      begin: the address.
      nbytes: of the chunk.
      is_sure: whether that was told; else it is what was asked for, and may be more.
    """

    begin: int
    nbytes: int
    is_sure: bool

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.begin + self.nbytes


def holds(device: str, tensor: Any) -> bool:
    """Whether the buffer of an eager tensor comes from a device's allocator.

    On a CPU almost always right (`runtime.regions`).
    """
    place = getattr(tensor, "backing_device", None)  # arrays have none
    name = devices.full_name(device)
    if place is None or devices.full_name(place) != name:
        return False
    if device_names.kind(name) != "CPU" or memory.device_limit(name) is None:
        return True
    return place_of(name, tensor) is not None


def kind_of(tensor: Any) -> str:
    """Kind of the device that an eager tensor lies on; "" for arrays and tensors of graphs."""
    place = getattr(tensor, "backing_device", None)
    return device_names.kind(place) if place else ""


def nbytes_of(argument: Any) -> int:
    """Bytes of a tensor of numbers; 0 for anything else."""
    if not isinstance(argument, tf.Tensor) or argument.dtype in _REFERENCES:
        return 0
    return int(argument.shape.num_elements()) * int(argument.dtype.size)


def place_of(device: str, tensor: Any) -> range | None:
    """The addresses that an eager tensor takes in its allocator's memory.

    Args:
      device: its full name.
      tensor: of numbers or truths; nothing is known of others.

    Returns:
      None if it lies elsewhere, or nothing tells where.
    """
    if (place := _place(device, tensor)) is not None:
        return place
    told = _told(device, tensor)
    return range(told.begin, told.end) if told else None


def chunk_of(device: str, tensor: Any) -> Chunk | None:
    """The chunk in which an eager tensor lies; arguments and None as of `place_of`."""
    place, told = _place(device, tensor), _told(device, tensor)
    if told is not None or place is None:
        return told
    return Chunk(place.start, -(-len(place) // GRAIN) * GRAIN, is_sure=False)


def begin_of(device: str, tensor: Any) -> int | None:
    """Where the buffer of an eager tensor begins; None if nothing tells."""
    if tensor.dtype in _REFERENCES:
        return None
    if device_names.kind(device) == "CPU":
        return _address(tensor)
    told = _told(device, tensor)
    return told.begin if told else None


def _place(device: str, tensor: Any) -> range | None:
    """The addresses that a tensor takes on a CPU, if they say that they are its allocator's."""
    if device_names.kind(device) != "CPU" or tensor.dtype in _REFERENCES:
        return None
    begin, nbytes = _address(tensor), int(tensor.shape.num_elements()) * int(tensor.dtype.size)
    if not regions.is_known(device):
        regions.note(device, ())  # whatever comes of it, it is looked for once
        heap.measured(device)
    limit = memory.device_limit(device) or 0
    is_there = nbytes and regions.hold(device, begin, nbytes, limit)
    return range(begin, begin + nbytes) if is_there else None


def _told(device: str, tensor: Any) -> Chunk | None:
    """The chunk of a tensor if TensorFlow tells it."""
    if tensor.dtype in _REFERENCES:
        return None
    try:
        told = _seers.told_of(device, tensor)
    except tf.errors.OpError:  # logical devices that a session does not know
        return None
    if not told.allocated_bytes:
        return None
    if device_names.kind(device) == "CPU":
        regions.note_first(device, int(told.ptr))
    return Chunk(int(told.ptr), int(told.allocated_bytes), is_sure=True)


def _address(tensor: Any) -> int:
    """Where an eager tensor on a CPU begins."""
    with tf.init_scope():  # a bitcast has the same buffer, and a type that NumPy knows
        known = tensor if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
    return int(np.asarray(memoryview(known)).ctypes.data)


class _Seer:
    """A step whose output is whatever tensor of a type it is to look at."""

    def __init__(self, device: str, dtype: tf.DType) -> None:
        self._tensor: Any = None
        graph, config = tf.Graph(), None
        with graph.as_default(), tf.device(device):
            self._seen = tf.py_function(lambda: self._tensor, [], dtype).op
        if device_names.kind(device) == "CPU":
            config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=config)

    def told_of(self, tensor: Any) -> Any:
        told = tf.compat.v1.RunMetadata()
        traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
        self._tensor = tensor
        try:
            self._session.run(self._seen, options=traced, run_metadata=told)
        finally:
            self._tensor = None
        nodes = (node for device in told.step_stats.dev_stats for node in device.node_stats)
        (output,) = (output for node in nodes for output in node.output)
        return output.tensor_description.allocation_description


class _Seers:
    """One for each device and type, made once, for a session is costly; one at a time looks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tf.DType], _Seer] = {}
        self._lock = threading.Lock()

    def told_of(self, device: str, tensor: Any) -> Any:
        """TensorFlow's AllocationDescription of a tensor on a device."""
        key = device, tensor.dtype
        with self._lock, tf.init_scope():
            if key not in self._known:
                self._known[key] = _Seer(*key)
            return self._known[key].told_of(tensor)


_seers = _Seers()
