"""An experiment run in a process of its own, under a hard limit of its device's memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from models.bench.experiment import Experiment, Row
from tfmem.runtime.limited import run_limited

_UNLIMITED = 2**36
"""Bytes of the limit that stands for none: TensorFlow's own default for the CPU."""

_GROWING = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def run_alone(
    experiment: Experiment,
    *,
    gpu: bool,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Row:
    """The row of an experiment, whatever becomes of the process.

    The allocator takes its whole limit at once, so that what fits does not depend on the regions in
    which it would have grown; where there is no limit it grows, to leave room for others on a GPU.

    Args:
      experiment: what to train.
      gpu: whether GPU:0 is limited, instead of CPU:0.
      timeout: seconds after which the process is ended.
      environment: variables to set for it besides this process's.
    """
    done = run_limited(
        "models.bench.train:train_alone",
        dataclasses.asdict(experiment),
        limit_bytes=experiment.own_limit or _UNLIMITED,
        timeout=timeout,
        reserve=experiment.own_limit is not None,
        gpu=gpu,
        environment=(_GROWING if experiment.own_limit is None else {}) | dict(environment or {}),
    )
    if done.status == "ok":
        return Row(**done.result)
    is_full = done.status == "out_of_memory" or "bfc_allocator" in done.output
    return Row(
        experiment.model,
        experiment.mode,
        experiment.limit,
        outcome="out of memory" if is_full else f"error: {done.status}: {done.error[:300]}",
        config=experiment.changes,
    )
