"""What nodes really take, by steps that are traced."""

from __future__ import annotations

import logging
import os
import platform
import statistics
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from tfmem.bridge import traces
from tfmem.costs.history import Machine
from tfmem.costs.types import Measured

_log = logging.getLogger("tfmem")

_EVERY_OP = 3
"""Level of the host tracer at which cheap ops are reported too."""


class Profiler:
    """TensorFlow's profiler, and the folder that it writes to while this process has it run.

    TensorFlow has one for each process, so there is one of these.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> bool:
        """Starts it; False, and a warning, if it runs already for somebody else."""
        folder = tempfile.TemporaryDirectory(prefix="tfmem-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_EVERY_OP, python_tracer_level=0, device_tracer_level=1
        )
        try:
            tf.profiler.experimental.start(folder.name, options)
        except tf.errors.AlreadyExistsError:
            folder.cleanup()
            _log.warning(
                "TensorFlow's profiler is in use, so steps cannot be measured now: costs are from "
                "sizes"
            )
            return False
        self._folder = folder
        return True

    def stop(self, device: str, nodes: Collection[str]) -> Measured:
        """Stops it.

        Args:
          device: full name of the device whose memory is asked for.
          nodes: names of the nodes that are asked for.

        Returns:
          Seconds of each node that ran in this process since, and what it held on the device.
        """
        folder, self._folder = self._folder, None  # before another thread may start it
        assert folder is not None
        tf.test.experimental.sync_devices()
        tf.profiler.experimental.stop()
        with folder as name:
            return traces.read(Path(name), device, nodes)


PROFILER = Profiler()
"""That of this process."""


def machine() -> Machine:
    """This machine, as far as measured times depend on it."""
    gpus = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    parts = [platform.machine(), f"{os.cpu_count()} cores", *gpus, f"TensorFlow {tf.__version__}"]
    return Machine(", ".join(parts))


def usual(steps: Sequence[Measured]) -> Measured:
    """The median seconds of each node over the steps in which it ran, and the most it held."""
    workspace: dict[str, int] = {}
    for step in steps:
        for name, nbytes in (step.workspace or {}).items():
            workspace[name] = max(nbytes, workspace.get(name, 0))
    is_told = any(step.workspace is not None for step in steps)
    seconds = _medians(step.seconds for step in steps)
    host_seconds = _medians(step.host_seconds for step in steps)
    return Measured(seconds, workspace if is_told else None, host_seconds)


def _medians(steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    every: dict[str, list[float]] = {}
    for step in steps:
        for name, seconds in step.items():
            every.setdefault(name, []).append(seconds)
    return {name: statistics.median(seconds) for name, seconds in every.items()}
