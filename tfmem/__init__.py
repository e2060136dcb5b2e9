"""tfmem: train TensorFlow models in less memory, with one line changed.

``step = tfmem.optimize(step, budget="6GiB")`` rewrites the graph of a train step so that its peak
memory on the device is predicted to stay under the budget. Importing tfmem loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfmem.errors import (
    BudgetError,
    Error,
    HostMemoryError,
    OutOfMemoryError,
    RewriteError,
    UnsupportedFunctionError,
)
from tfmem.plan import Plan

if TYPE_CHECKING:
    from tfmem import keras
    from tfmem.api import Optimized, explain, optimize
    from tfmem.planning.published.tensorflowmem import TensorFlowMem
    from tfmem.report.report import Report
    from tfmem.runtime.creation import host_variables
    from tfmem.runtime.host import host_process

__version__ = "0.1.0"

_HOMES = {
    "explain": "tfmem.api",
    "optimize": "tfmem.api",
    "Optimized": "tfmem.api",
    "Report": "tfmem.report.report",
    "TensorFlowMem": "tfmem.planning.published.tensorflowmem",
    "host_process": "tfmem.runtime.host",
    "host_variables": "tfmem.runtime.creation",
}

__all__ = [
    "BudgetError",
    "Error",
    "HostMemoryError",
    "Optimized",
    "OutOfMemoryError",
    "Plan",
    "Report",
    "RewriteError",
    "TensorFlowMem",
    "UnsupportedFunctionError",
    "explain",
    "host_process",
    "host_variables",
    "keras",
    "optimize",
]


def __getattr__(name: str) -> Any:
    if name == "keras":
        return importlib.import_module("tfmem.keras")
    if name not in _HOMES:
        raise AttributeError(f"module 'tfmem' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
