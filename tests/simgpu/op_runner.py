"""Runs ops on the CPU and on the simulated GPU, and compares what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.simgpu import op_layers
from tests.simgpu.op_cases import CASES, Case, Draw

assert op_layers  # its cases are among `CASES`

SIZES = (2, 5)

TOLERANCES = {tf.float16: 4e-3, tf.bfloat16: 3e-2}
"""Relative to the largest number, of what kernels round another way where memory is aligned
otherwise; of all others 1e-5."""

NO_KERNEL = (
    "Could not satisfy device specification",
    "Could not satisfy explicit device specification",
    "Could not find device for node",
    "No OpKernel was registered",
    "No WhereOp available",
    "is not in the list of allowed values",
    "the simulated GPU has no kernel for",
)
"""What TensorFlow says where one of the devices has no kernel of a type."""


def compared(names: Sequence[str] = ()) -> dict[str, Any]:
    """Compares ops, of each all types and sizes.

    Args:
      names: default: all that there are cases of.

    Returns:
      "types": by op the types for which both devices returned the same; "wrong": what did not.
    """
    tf.config.set_soft_device_placement(False)
    types: dict[str, list[str]] = {}
    wrong: list[str] = []
    for op in names or sorted(CASES):
        for dtype in CASES[op].dtypes:
            try:
                for n in SIZES:
                    _compare(op, CASES[op], dtype, n)
            except Exception as error:
                if not any(text in str(error) for text in NO_KERNEL):
                    said = f"{type(error).__name__}: {str(error)[:500]}"
                    wrong.append(f"{op} of {dtype.name}: {said}")
            else:
                types.setdefault(op, []).append(dtype.name)
    return {"types": types, "wrong": wrong}


def _compare(op: str, case: Case, dtype: tf.DType, n: int) -> None:
    found = [_run(op, case, dtype, n, device) for device in ("CPU:0", "GPU:0")]
    expected, returned = found
    assert len(expected) == len(returned)
    for one, other in zip(expected, returned, strict=True):
        assert one.dtype == other.dtype
        tolerance = TOLERANCES.get(tf.as_dtype(one.dtype), 1e-5)
        if one.dtype.kind not in "biuO":
            one, other = (_wide(x) for x in (one, other))
        largest = np.max(np.abs(one[np.isfinite(one)]), initial=0) if one.dtype.kind in "fc" else 0
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance * largest)


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _run(op: str, case: Case, dtype: tf.DType, n: int, device: str) -> list[np.ndarray]:
    """What an op returns on a device, and leaves in the variables that it is called with."""
    with tf.device("CPU:0"):
        inputs, attributes = case.make(Draw(op, dtype, n))
    function: Callable[..., Any] = getattr(tf.raw_ops, op)
    named = dict(zip(inspect.signature(function).parameters, inputs, strict=False))
    with tf.device(device):
        given = {name: moved(value) for name, value in named.items()}
        changed = [one for one in given.values() if isinstance(one, tf.Variable)]
        arguments = {name: passed(value) for name, value in given.items()}
        returned = tf.nest.flatten(function(**arguments, **attributes))
        values = [*returned, *(variable.read_value() for variable in changed)]
    return [value.numpy() for value in values if value is not None and hasattr(value, "numpy")]


def moved(value: Any) -> Any:
    """An argument of an op, on the device that is asked for."""
    if isinstance(value, tf.Variable):
        return tf.Variable(value)
    if isinstance(value, list):
        return [moved(one) for one in value]
    return tf.identity(value) if isinstance(value, tf.Tensor) and _moves(value) else value


def _moves(value: tf.Tensor) -> bool:
    """Small integers are shapes and the like, which stay in the host's memory."""
    return not (value.dtype == tf.int32 and value.shape.num_elements() <= 8)


def passed(value: Any) -> Any:
    """What an op is given of an argument: of a variable its handle."""
    return value.handle if isinstance(value, tf.Variable) else value
