"""Values of variables as they were at some moment, kept where no device's allocator counts them.

A variable of this process is copied to NumPy's memory. One that lives in another process, such as
those that a plan has placed on a host process, is copied there: brought here it would take room on
the very device that is scarce. One that steps access by rows is copied some rows at a time: a read
of all of it would first be copied on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from tfmem.bridge import elements, handles, kernels
from tfmem.errors import Error, HostMemoryError, OutOfMemoryError
from tfmem.graph import device_names
from tfmem.runtime import host as host_module
from tfmem.runtime.limited import is_out_of_memory
from tfmem.units import format_bytes

_PIECE = 2**26
"""Bytes compared at a time: a comparison makes an array of as many truth values."""

_PART, _LEAST, _MOST = 1 / 16, 2**18, 2**24
"""Of a variable that is accessed by rows, the part that is copied at a time, and its least and most
bytes: each takes a call, and as much of the device."""


class Snapshot:
    """The values that variables had when this was made.

    Attributes:
      nbytes: what they take.
    """

    def __init__(self, variables: Iterable[Any], by_rows: Collection[Any] = ()) -> None:
        """Copies the values of some `tf.Variable`s.

        Args:
          variables: to be copied.
          by_rows: those of them, by `id`, that steps access by rows.

        Raises:
          HostMemoryError: a host has no room for them.
          tfmem.Error: one cannot be read: it has no value yet, or the device has no room to read it
            (one that other functions access by rows is copied there first).
        """
        import tensorflow as tf

        self._variables = list(variables)
        self._by_rows = frozenset(by_rows)
        self.nbytes = _check_room(self._variables)
        try:
            self._values = [self._value(variable) for variable in self._variables]
        except MemoryError as error:
            raise HostMemoryError(
                f"the host has no room for a copy of {format_bytes(self.nbytes)} of variables"
            ) from error
        except tf.errors.OpError as error:
            raise Error(f"a variable cannot be read ({type(error).__name__})") from error

    def restore(self) -> list[str]:
        """Gives the variables their values back; the names of those that had others.

        A variable that still has its value is not touched, nor is the place where it lies, unless
        it is in another process, or was then.

        Raises:
          tfmem.OutOfMemoryError: a device has no room for some; the others have theirs back.
        """
        changed, lost = [], []
        for variable, value in zip(self._variables, self._values, strict=True):
            if _is_same(self._copy(variable), value):
                continue
            changed.append(str(variable.name))
            try:
                self._assign(variable, value)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                lost.append(f"{variable.name} on {variable.device}")
        if lost:
            raise OutOfMemoryError(
                f"there was no room to give {', '.join(lost)} their values back after a step that "
                "was out of memory, because others took what it let go of; load them from a "
                "checkpoint"
            )
        return changed

    def _value(self, variable: Any) -> Any:
        """A copy; raises tfmem.Error if there is nothing to be copied."""
        value = self._copy(variable)
        if not variable.shape.is_compatible_with(value.shape):  # a read of none: an empty tensor
            raise Error(f"variable {variable.name!r} has no value yet")
        return value

    def _copy(self, variable: Any) -> Any:
        return _copy_of_rows(variable) if self._has_rows(variable) else _copy(variable)

    def _assign(self, variable: Any, value: Any) -> None:
        (_assign_rows if self._has_rows(variable) else _assign)(variable, value)

    def _has_rows(self, variable: Any) -> bool:
        """Whether it is accessed by rows, is here, has any, and its device copies them."""
        is_here = id(variable) in self._by_rows and device_names.is_local(variable.device)
        shape = variable.shape
        has_any = shape.is_fully_defined() and shape.rank > 0 and shape[0] > 1
        return is_here and has_any and _copies_rows(variable)


def _check_room(variables: Iterable[Any]) -> int:
    """Bytes that copies take; raises HostMemoryError if a process has too few."""
    needed: dict[str, int] = {}
    for variable in variables:
        place = device_names.cpu_of(variable.device)
        needed[place] = needed.get(place, 0) + handles.nbytes(variable)
    for place, nbytes in needed.items():
        free = host_module.free_bytes(place)
        if free is not None and nbytes > free:
            raise HostMemoryError(
                f"a copy of variables takes {format_bytes(nbytes)} on {place}, where "
                f"{format_bytes(free)} are free"
            )
    return sum(needed.values())


def _copy(variable: Any) -> Any:
    """The value in NumPy's memory, or in the process that the variable lives in."""
    import tensorflow as tf

    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        if not device_names.is_local(variable.device):
            return tf.raw_ops.DeepCopy(x=value)
    found = value.numpy()  # a scalar is no array
    return found if isinstance(found, np.ndarray) else np.array(found, dtype=_numpy(variable))


def _rows(variable: Any) -> Iterator[slice]:
    """Which rows are copied at a time."""
    count, nbytes = int(variable.shape[0]), handles.nbytes(variable)
    most = min(max(_PART * nbytes, _LEAST), _MOST)
    some = max(1, int(count * most / max(1, nbytes)))
    return (slice(first, min(first + some, count)) for first in range(0, count, some))


def _copies_rows(variable: Any) -> bool:
    """Whether its device has kernels that read and write some of its rows."""
    import tensorflow as tf

    kind = device_names.kind(variable.device)
    return all(
        kernels.has_kernel(op, kind, dtype=variable.dtype, Tindices=tf.int32)
        for op in ("ResourceGather", "ResourceScatterUpdate")
    )


def _indices(rows: slice) -> Any:
    """Of int32, for which a GPU has kernels of more types."""
    return np.arange(rows.start, rows.stop, dtype=np.int32)


def _copy_of_rows(variable: Any) -> Any:
    """The value in NumPy's memory, of a variable that is accessed by rows and is here."""
    import tensorflow as tf

    found = np.empty(variable.shape, _numpy(variable))
    with tf.device(variable.device):
        for rows in _rows(variable):
            found[rows] = tf.raw_ops.ResourceGather(
                resource=variable.handle,
                indices=_indices(rows),
                dtype=variable.dtype,
            ).numpy()
    return found


def _assign_rows(variable: Any, value: Any) -> None:
    import tensorflow as tf

    with tf.device(variable.device):
        for rows in _rows(variable):
            tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle,
                indices=_indices(rows),
                updates=value[rows],
            )


def _numpy(variable: Any) -> Any:
    return variable.dtype.as_numpy_dtype


def _is_same(one: Any, other: Any) -> bool:
    """Whether two are arrays, not tensors in other processes, and the same bit for bit."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    if one.dtype.hasobject:
        return bool(np.array_equal(one, other))
    first, second = (array.reshape(-1).view(np.uint8) for array in (one, other))
    return first.size == second.size and all(
        np.array_equal(first[begin : begin + _PIECE], second[begin : begin + _PIECE])
        for begin in range(0, first.size, _PIECE)
    )


def _assign(variable: Any, value: Any) -> None:
    """Gives a variable a value, without a moment at which the device holds two.

    Its buffer is given up first. If the device has then no room for another, which can only be
    because somebody else took it, the value stays in NumPy's memory until the next update.
    """
    import tensorflow as tf

    handle = variable.handle
    with tf.device(variable.device):
        if not isinstance(value, np.ndarray):
            copied = tf.raw_ops.DeepCopy(x=value)
            tf.raw_ops.AssignVariableOp(resource=handle, value=copied)
            tf.raw_ops.VarIsInitializedOp(resource=handle).numpy()  # waits until it is done
            return
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], variable.dtype))
        try:
            made = tf.constant(value)
        except tf.errors.ResourceExhaustedError:  # on a CPU, which takes NumPy's memory
            made = elements.tensor_of(value)
        tf.raw_ops.AssignVariableOp(resource=handle, value=made)
