"""The cluster that this process is connected to, changed without a new server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.eager import context

_LOCAL = "localhost"


def reconnect(jobs: Mapping[str, Sequence[str]]) -> bool:
    """Puts other jobs in the place of those that this process is connected to.

    `tf.config.experimental_connect_to_cluster` starts another server of this process's each time,
    and leaves the one before, with 89 threads (TensorFlow 2.21 on two cores): after some 180 blocks
    of `host_process` the system had no more threads, and TensorFlow aborted the process.

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
