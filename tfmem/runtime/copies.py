"""Copies, in files, of the variables that live in the host process.

    step ends -> the host process writes what was updated -> the files before are deleted

A process that is killed takes its memory with it; files stay, also those in shared memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfmem.bridge import handles
from tfmem.errors import Error, HostMemoryError


@dataclass(frozen=True)
class _Copy:
    """A variable, and the files with its value: what their names begin with."""

    variable: weakref.ref[Any]
    files: str


class Copies:
    """The copies that one host process keeps.

    Attributes:
      folder: their own.
    """

    def __init__(self, folder: str, device: str) -> None:
        """Begins with none.

        Args:
          folder: where their folder is made; it must exist.
          device: full name of the host process's.

        Raises:
          tfmem.Error: it cannot be written.
        """
        try:
            self.folder = tempfile.mkdtemp(prefix="tfmem-host-", dir=folder)
        except OSError as error:
            raise Error(
                f"copies={folder!r}: {error.strerror}; name a folder that is there and can be "
                "written, such as /dev/shm"
            ) from error
        self._device = device
        self._copies: dict[str, _Copy] = {}
        self._writers: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def keep(self, variables: Sequence[Any], resources: Sequence[Any]) -> None:
        """Writes the values of variables, all in the place of those before, or none.

        Args:
          variables: plain `tf.Variable`s.
          resources: the handles that have their values; those elsewhere are left out.

        Raises:
          HostMemoryError: there is no room for them.
        """
        pairs = zip(variables, resources, strict=True)
        here = [pair for pair in pairs if pair[1].device == self._device]
        if here:
            with self._lock:  # another's files are not needed yet while it writes them
                self._keep(here)

    def _keep(self, here: Sequence[tuple[Any, Any]]) -> None:
        import tensorflow as tf

        files = os.path.join(self.folder, str(next(self._numbers)))
        names = [handles.identity(variable) for variable, _ in here]
        write = self._writer(tuple(variable.dtype for variable, _ in here))
        try:
            write(tf.constant(files), tf.constant(names), *(handle for _, handle in here)).numpy()
        except tf.errors.OpError as error:
            if self.folder not in error.message:
                raise
            raise HostMemoryError(
                f"{len(here)} variables on the host could not be copied to {self.folder} "
                f"({error.message.splitlines()[0]}); they are there, and the last copy is older. "
                "Make room, or name another folder: host_process(copies=...)"
            ) from error
        else:
            for name, (variable, _) in zip(names, here, strict=True):
                self._copies[name] = _Copy(weakref.ref(variable), files)
        finally:
            self._tidy()

    def variables(self) -> list[Any]:
        """Those that live in the host process and have a copy."""
        found = (copy.variable() for copy in self._copies.values())
        return [one for one in found if one is not None and one.device == self._device]

    def fill(self, twin: Any, variable: Any) -> None:
        """Gives a new variable in the host process the value that was copied of another."""
        import tensorflow as tf

        name = handles.identity(variable)
        with tf.device(self._device):
            (value,) = tf.raw_ops.RestoreV2(
                prefix=self._copies[name].files,
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[variable.dtype],
            )
            twin.assign(value, read_value=False)
            tf.raw_ops.VarIsInitializedOp(resource=twin.handle).numpy()  # waits for it

    def remove(self) -> None:
        """Deletes all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tidy(self) -> None:
        """Deletes the files that no variable needs."""
        alive = {name: one for name, one in self._copies.items() if one.variable() is not None}
        self._copies = alive
        needed = {os.path.basename(one.files) for one in alive.values()}
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name.partition(".")[0] not in needed:
                    os.unlink(os.path.join(self.folder, name))

    def _writer(self, dtypes: tuple[Any, ...]) -> Callable[..., Any]:
        """A function that writes variables of some types.

        It is given handles, for it would keep those that it captured alive. It returns something
        that is made when they are written: a function in another process is not waited for.
        """
        import tensorflow as tf

        def write(files: Any, names: Any, *resources: Any) -> Any:
            with tf.device(self._device):
                pairs = zip(resources, dtypes, strict=True)
                values = [tf.raw_ops.ReadVariableOp(resource=one, dtype=d) for one, d in pairs]
                whole = [""] * len(dtypes)
                written = tf.raw_ops.SaveV2(
                    prefix=files, tensor_names=names, shape_and_slices=whole, tensors=values
                )
                with tf.control_dependencies([written]):
                    return tf.identity(files)

        if dtypes not in self._writers:
            text = tf.TensorSpec([], tf.string), tf.TensorSpec([len(dtypes)], tf.string)
            resources = [tf.TensorSpec([], tf.resource)] * len(dtypes)
            function = tf.function(write, autograph=False)
            self._writers[dtypes] = function.get_concrete_function(*text, *resources)
        return self._writers[dtypes]
