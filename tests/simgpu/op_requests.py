"""What each kernel asks a GPU's allocator for: rows as in `tests/bridge/h200_requests.jsonl`.

    python -m tests.simgpu.op_requests FILE [OP ...]

A row is a call as `tfmem.bridge.shapes.Call` has it, with the bytes of its kernel's requests, which
of them it returned, and the most that it held at once. Only those are kept that asked for more than
their outputs. On a machine with a GPU of which not much is known.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tests.simgpu import op_layers
from tests.simgpu.op_cases import CASES, Case, Draw
from tests.simgpu.op_runner import NO_KERNEL, moved, passed
from tfmem.bridge.shapes import Call
from tfmem.costs.types import GRAIN
from tfmem.runtime import devices, heap, memory

assert op_layers  # its cases are among `CASES`

SIZES = (12, 40)
BEYOND = 512
"""Bytes beside outputs from which on a row is kept."""

ATTRS = ("data_format", "padding", "strides", "dilations", "equation")


def recorded(op: str, case: Case, dtype: tf.DType, n: int, device: str) -> dict[str, Any]:
    """A row of an op that a device runs on its own."""
    with tf.device("CPU:0"):
        inputs, attributes = case.make(Draw(op, dtype, n))
    function = getattr(tf.raw_ops, op)
    named = dict(zip(inspect.signature(function).parameters, inputs, strict=False))
    with tf.device(device):
        given = {name: moved(value) for name, value in named.items()}
        arguments = {name: passed(value) for name, value in given.items()} | attributes
        function(**arguments)  # which tries algorithms
        before = memory.memory_info(device)[0]
        memory.reset_peak(device)
        with heap.traced(device) as events:
            made = tf.nest.flatten(function(**arguments))
        most = memory.memory_info(device)[1] - before
    freed = {event.address for event in events if not event.is_request}
    own = [event for event in events if event.is_request and event.node == op]
    returned = [one for one in made if one is not None]  # as updates of variables give
    tensors = [one for one in tf.nest.flatten(list(given.values())) if hasattr(one, "shape")]
    return {
        "op": op,
        "dtype": dtype.name,
        "inputs": [one.shape.as_list() for one in tensors],
        "outputs": [one.shape.as_list() for one in returned if hasattr(one, "shape")],
        "itemsize": (returned[0].dtype if returned else dtype).size,
        "attrs": _attrs(op) | {key: attributes[key] for key in ATTRS if key in attributes},
        "constants": {
            str(i): one.numpy().ravel().tolist()
            for i, one in enumerate(tensors)
            if one.dtype == tf.int32 and one.shape.num_elements() <= 8
        },
        "requests": [-(-event.requested // GRAIN) * GRAIN for event in own],
        "stays": [event.address not in freed for event in own],
        "most": most,
    }


def _attrs(op: str) -> dict[str, Any]:
    """What is taken where nothing is said."""
    found = {}
    for attr in op_def_registry.get(op).attr:
        if attr.name in ATTRS and attr.HasField("default_value"):
            value = attr.default_value
            found[attr.name] = value.s.decode() if value.s else list(value.list.i)
    return found


def call_of(row: dict[str, Any]) -> Call:
    """What a row says of a call."""
    shapes = {name: [tuple(shape) for shape in row[name]] for name in ("inputs", "outputs")}
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in row["attrs"].items()}
    constants = {int(index): tuple(found) for index, found in row["constants"].items()}
    return Call(row["op"], **shapes, itemsize=row["itemsize"], attrs=attrs, constants=constants,
                dtype=row["dtype"])  # fmt: skip


def main(path: str, *names: str) -> None:
    """Writes the rows of these ops, or of all that there are cases of."""
    device = devices.full_name("GPU:0")
    tf.config.set_soft_device_placement(False)
    with Path(path).open("w", encoding="utf-8") as file:
        for op in names or sorted(CASES):
            for dtype in CASES[op].dtypes:
                for n in SIZES:
                    try:
                        row = recorded(op, CASES[op], dtype, n, device)
                    except Exception as error:
                        if not any(text in str(error) for text in NO_KERNEL):
                            sys.stderr.write(f"{op} of {dtype.name}: {error}\n")
                        continue
                    asked = zip(row["requests"], row["stays"], strict=True)
                    if sum(nbytes for nbytes, stays in asked if not stays) >= BEYOND:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
