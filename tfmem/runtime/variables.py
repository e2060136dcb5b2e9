"""Moving variables that exist from one device to another.

A TensorFlow variable is a Python object with a *handle*, a tensor that refers to a resource on one
device. Moving it means to fill a new resource elsewhere and to exchange the handle; the object, its
name and what else identifies it stay, so optimizers and checkpoints know it as before.

The handle counts references (TensorFlow 2.21: `DestroyResourceOp` does nothing to it), so a
function traced earlier would keep the old resource alive, read the old value, and write where
nobody looks. That is why a move also gives every live function the new handle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tfmem.bridge import handles
from tfmem.errors import Error
from tfmem.graph import device_names
from tfmem.runtime import devices
from tfmem.runtime import host as host_module
from tfmem.runtime.locks import SharedLock, uninterrupted

_CHUNK_BYTES = 2**25
"""Most bytes of a variable in flight to another process at a time."""

_PATIENCE = 60.0
"""Seconds that a move waits for the steps that are being made. A step that takes longer is not
disturbed, and the move is refused; to wait for ever would hang where a step waits for the move."""


class _Record:
    """What was done to variables: how many have moved, and which lie in pinned memory.

    One for each process: any function of it may hold the handle of a variable that moves.

    Attributes:
      moves: how many variables have moved so far.
      pinned: identities of the variables whose values were put into pinned memory.
      places: held alone by who moves variables, shared by steps that find them where they are.
    """

    def __init__(self) -> None:
        self.moves = 0
        self.pinned: set[str] = set()
        self.places = SharedLock()


_record = _Record()


def moves() -> int:
    """How many variables this process has moved so far."""
    return _record.moves


def stay() -> contextlib.AbstractContextManager[None]:
    """A scope in which no variable moves, other than by this thread."""
    return _record.places.shared()


def move_variable(variable: Any, device: str) -> None:
    """Moves one variable; see `move_variables`."""
    move_variables([variable], device)


def move_variables(variables: Sequence[Any], device: str) -> None:
    """Moves existing variables to another device: all of them, or on failure none.

    Values, names and Python identity stay; checkpoints save and restore them as before. The memory
    on the old device is freed. A function traced before the move uses them where they are now.
    What took a variable's handle otherwise finds it empty: data sets whose functions use it.
    Large variables cross to another process in pieces, so no second copy is made here. Steps of
    optimised functions in other threads are waited for, and wait meanwhile; what else updates a
    variable while it moves may be lost.

    Args:
      variables: `tf.Variable`s, or the variables of Keras or tf-keras that wrap one.
      device: full or short name of an existing device.

    Raises:
      HostMemoryError: the host has too little memory, or is gone; nothing has moved.
      tfmem.Error: the device does not exist or is full, a variable is of a kind that cannot be
        moved, or steps in other threads take more than a minute; nothing has moved.
    """
    move_groups({device: variables})


def move_groups(groups: Mapping[str, Sequence[Any]]) -> None:
    """Moves variables to the devices that they are grouped under: all of them, or on failure none.

    See `move_variables`, which raises the same; no variable may be in two groups.
    """
    away: dict[int, tuple[Any, str]] = {}
    for target, variables in ((devices.full_name(name), group) for name, group in groups.items()):
        for plain in map(handles.movable, variables):
            if devices.full_name(plain.device) != target:
                away[id(plain)] = plain, target
    if not away:
        return
    try:
        with _record.places.alone(_PATIENCE):
            pairs = list(away.values())
            twins = _twins(pairs)
            host_module.keep_copies([one for one, _ in pairs], [twin.handle for twin in twins])
            with uninterrupted():
                _exchange([variable for variable, _ in pairs], twins)
    except TimeoutError as error:
        raise Error(
            f"variables cannot be moved: steps of other threads have used them for {_PATIENCE:.0f} "
            "seconds; they are where they were: move them while no step is made"
        ) from error


def _twins(pairs: Sequence[tuple[Any, str]]) -> list[Any]:
    """New variables with the same values on other devices; raises as `move_variables`."""
    import tensorflow as tf

    twins: list[Any] = []  # not a comprehension: they must outlive an error until it is cleared
    try:
        for variable, target in pairs:
            twins.append(_twin(variable, target))
    except tf.errors.OpError as error:
        explained = host_module.explain_failure(error) or Error(
            f"cannot move variables to {target} ({type(error).__name__}: {error.message}); "
            "they are where they were: move fewer, or free memory there"
        )
        host_module.clear_errors()
        twins.clear()
        raise explained from error.with_traceback(None)  # its frames hold what was copied
    return twins


@dataclass(frozen=True)
class Recovered:
    """What became of the variables of a host process that has ended: how many, or their names."""

    copied: int
    lost: tuple[str, ...]


def abandon(lost: Sequence[Any]) -> None:
    """Leaves variables without a value, for their device is about to go: they have moved."""
    handles.abandon(lost)
    _record.moves += len(lost)


def recover() -> Recovered | None:
    """Starts a host process that has ended anew, with the variables that it kept copies of.

    Returns:
      None if none has ended that keeps copies, if a function is being traced, or if steps of other
      threads take more than a minute: the next one that finds it gone tries again.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        return None
    with contextlib.suppress(TimeoutError), _record.places.alone(_PATIENCE), uninterrupted():
        return _recovered()
    return None


def _recovered() -> Recovered | None:
    import tensorflow as tf

    process = host_module.ended()
    if process is None or process.copies is None:
        return None
    copied = process.copies.variables()
    known = set(map(handles.identity, copied))
    there = handles.living_on(process.device)
    lost = [one for one in there if handles.identity(one) not in known]
    abandon(lost)
    host_module.restart(process)
    with tf.device(process.device):
        twins = [handles.without_value(variable) for variable in copied]
    for twin, variable in zip(twins, copied, strict=True):
        process.copies.fill(twin, variable)
    handles.bind(copied, twins)
    return Recovered(len(copied), tuple(sorted(str(one.name) for one in lost)))


def _twin(variable: Any, device: str) -> Any:
    """A new variable of the same kind and value on `device`, known to be complete."""
    import tensorflow as tf

    with tf.device(device):
        twin = handles.without_value(variable)
    if variable.is_initialized():
        _copy(variable, twin, device)
    return twin


def _copy(variable: Any, twin: Any, device: str) -> None:
    """Fills `twin` with the value of `variable`, in pieces if it goes to another process."""
    import tensorflow as tf

    is_near = _process(variable.device) == _process(device)
    pieces = [] if is_near else list(_pieces(variable.shape, variable.dtype.size))
    if not pieces and device_names.copies(variable.device, device):
        with contextlib.suppress(tf.errors.ResourceExhaustedError):  # of pinned memory
            _carry(variable, twin)
            return
    with tf.device(variable.device):
        value = variable.read_value_no_copy()
    if not pieces:
        with tf.device(device):
            twin.assign(tf.identity(value), read_value=False)
        _await(twin, device)
        return
    with tf.device(device):
        twin.assign(tf.raw_ops.Empty(shape=variable.shape, dtype=variable.dtype), read_value=False)
    for outer, rows in pieces:
        piece = (*outer, slice(rows.start, rows.stop))
        with tf.device(variable.device):
            part = value[piece]
        with tf.device(device):
            _write(twin, outer, rows, part)
        del part
        _await(twin, device)
    tf.raw_ops.DisableCopyOnRead(resource=twin.handle)


def _write(variable: Any, outer: tuple[int, ...], rows: range, part: Any) -> None:
    """Writes a piece of a variable, whose reads are copies then; nothing of it is read.

    An assignment to `variable[piece]` reads all of it first: a copy, from the second piece on.
    """
    import tensorflow as tf

    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[*outer, rows.start],
        end=[*(index + 1 for index in outer), rows.stop],
        strides=[1] * (len(outer) + 1),
        value=part,
        shrink_axis_mask=2 ** len(outer) - 1,
    )


def pin(variables: Iterable[Any], gpu: str) -> None:
    """Puts variables of the host into pinned memory, from which a GPU copies while it computes.

    What was moved there from the GPU lies in such memory already; what was made on the host does
    not, and takes a turn over the GPU. A variable for which one of them has no room stays as it is.
    """
    import tensorflow as tf

    for variable in variables:
        if handles.identity(variable) not in _record.pinned:
            with tf.init_scope(), contextlib.suppress(tf.errors.OpError):
                _carry(variable, variable, gpu)


def _carry(variable: Any, target: Any, over: str = "") -> None:
    """Fills `target`, on the host, with a variable's value as it arrives from a GPU.

    A function does it, for its executor, which knows that the value comes from a GPU, receives it
    in pinned memory; an assignment takes that memory over.

    Args:
      variable: the one that is read.
      target: the one that is filled; it may be the same.
      over: a GPU by whose way the value goes; "" if the variable is on one.
    """
    import tensorflow as tf

    def carry() -> None:
        with tf.device(variable.device):
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        if over:
            with tf.device(over):
                value = tf.raw_ops.DeepCopy(x=value)
        with tf.device(target.device):
            tf.raw_ops.AssignVariableOp(resource=target.handle, value=value)

    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    tf.raw_ops.DisableCopyOnRead(resource=target.handle)  # an assignment would copy
    tf.function(carry)()
    _await(target, target.device)
    _record.pinned.add(handles.identity(variable))


def _await(twin: Any, device: str) -> None:
    """Waits until what was done to `twin` is done: ops on another process run asynchronously."""
    import tensorflow as tf

    with tf.device(device):
        tf.raw_ops.VarIsInitializedOp(resource=twin.handle).numpy()


def _pieces(shape: Any, itemsize: int) -> Iterator[tuple[tuple[int, ...], range]]:
    """Parts of an array of at most `_CHUNK_BYTES`, none if all of it is no larger.

    Each is a range of one dimension, at indices of those before it.
    """
    dimensions = shape.as_list() if shape.is_fully_defined() and itemsize else []
    most, axis, inner = _CHUNK_BYTES // max(1, itemsize), len(dimensions), 1
    while axis and inner * dimensions[axis - 1] <= most:
        axis -= 1
        inner *= dimensions[axis]
    if axis == 0:
        return
    length, step = dimensions[axis - 1], max(1, most // inner)
    for outer in product(*map(range, dimensions[: axis - 1])):
        for start in range(0, length, step):
            yield outer, range(start, min(start + step, length))


def _process(device: str) -> str:
    return device.rsplit("/device:", 1)[0]


def _exchange(variables: Sequence[Any], twins: Sequence[Any]) -> None:
    """Gives each variable its twin's resource, and ends the old ones."""
    old = handles.bind(variables, twins)
    _record.moves += len(old)
    for handle, variable in zip(old, variables, strict=True):
        _empty(handle, variable.dtype)


def _empty(handle: Any, dtype: Any) -> None:
    """Frees an old resource's memory, whoever still refers to it, such as a data set."""
    import tensorflow as tf

    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))
