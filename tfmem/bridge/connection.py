"""The cluster that this process is connected to.

TensorFlow 2.21 goes on with the devices that it has only if the configuration that comes with a
cluster is, byte by byte, that which it began with. It makes new devices otherwise, whose resources
are others: lookup tables are gone, and what is assigned to a variable made before goes to another
of its name, which nobody reads. `tf.config.experimental_connect_to_cluster` never gives the same
bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager import context

_LOCAL = "localhost"

_SORTED = "_ZN6google8protobuf2io17CodedOutputStream36default_serialization_deterministic_E"
"""Whether protobuf writes the entries of a map in order, where TensorFlow's library keeps it."""


def reconnect(jobs: Mapping[str, Sequence[str]]) -> bool:
    """Puts other jobs in the place of those that this process is connected to.

    A new connection starts another server of this process's each time, and leaves the one before,
    with 89 threads (TensorFlow 2.21 on two cores): after some 180 blocks of `host_process` the
    system had no more threads, and TensorFlow aborted the process.

    Args:
      jobs: addresses of the tasks of each.

    Returns:
      Whether it was connected before, as `localhost`; nothing is done if not.
    """
    known = context.get_server_def()
    own = [job for job in known.cluster.job if job.name == _LOCAL] if known else []
    if not own:
        return False
    changed = deepcopy(known)
    del changed.cluster.job[:]
    changed.cluster.job.extend(own)
    for name, addresses in jobs.items():
        changed.cluster.job.add(name=name, tasks=dict(enumerate(addresses)))
    context.update_server_def(changed)
    return True


def connect(own: str, jobs: Mapping[str, Sequence[str]]) -> bool:
    """Makes `jobs` this process's cluster, with a new server of its own.

    Args:
      own: address of this process's server.
      jobs: addresses of the tasks of each other job.

    Returns:
      Whether the devices of this process, with the resources on them, are those that they were.
      New ones are made where options of TensorFlow's optimizer were set since it started, or where
      its library does not let maps be written in order.
    """
    cluster = tf.train.ClusterSpec({_LOCAL: [own], **jobs})
    config = context.context().config
    config.experimental.disable_optimize_for_static_graph = True  # as each context that begins
    server = tf.train.ServerDef(
        cluster=cluster.as_cluster_def(),
        job_name=_LOCAL,
        protocol="grpc",
        default_session_config=config,
    )
    with tf.init_scope(), tf.device("CPU:0"):
        probe = tf.Variable(False, trainable=False)
    with _maps_in_order():
        context.set_server_def(server)
    probe.assign(True)
    return bool(probe.numpy())


@contextlib.contextmanager
def _maps_in_order() -> Iterator[None]:
    """A scope in which two equal messages are written alike: maps have a random order else."""
    order = _order_of_maps()
    before, order.value = order.value, True
    try:
        yield
    finally:
        order.value = before


def _order_of_maps() -> Any:
    for library in Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework*"):
        with contextlib.suppress(OSError, ValueError):
            return ctypes.c_bool.in_dll(ctypes.CDLL(str(library)), _SORTED)
    return ctypes.c_bool()
