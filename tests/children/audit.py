"""A traced step of a small model, beside what is foreseen of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.audit import LARGE, audit
from tests.children.recompute import built


def audited(model: str) -> dict[str, Any]:
    """What a step under 0.6 of the original's peak asked for."""
    task = built(model)
    found = audit(tf.function(task.step), iter(task.batches), None)
    count, unforeseen, absent = found.aligned(LARGE)
    return {
        "count": count,
        "unforeseen": [one.op for one in unforeseen],
        "absent": [one.op for one in absent],
        "stays": [one.op for one in unforeseen if one.stays],
        "predicted": found.predicted,
        "measured": found.measured,
        "text": found.text(),
    }
