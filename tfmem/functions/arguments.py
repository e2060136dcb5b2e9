"""Which arguments are in a device's memory before a step, and buffers in the place of the others.

A NumPy array gets there as a function is called with it. On a CPU a tensor made of one may lie in
NumPy's memory, in which TensorFlow leaves what happens to begin at a multiple of 64 bytes, and the
next batch may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfmem.bridge.capture import Captured
from tfmem.bridge.inputs import is_variable
from tfmem.errors import Error
from tfmem.graph.ir import Value
from tfmem.runtime import heap, memory


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
    sizes = captured.absent.get(device, ())
    held = []
    try:
        limit, (current, _) = memory.device_limit(device), memory.memory_info(device)
        if limit is not None and current + sum(sizes) <= limit:
            held += [heap.buffer(device, nbytes) for nbytes in sizes]
    except (Error, tf.errors.ResourceExhaustedError):
        pass  # the device keeps no statistics, or what is free is scattered
    try:
        yield
    finally:
        held.clear()
