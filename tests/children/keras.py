"""`fit` with and without a budget a little above the least, in processes of their own."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import numpy as np

import tfmem
import tfmem.keras
from models.bench.fit_cases import (
    CASES,
    CLASSES,
    DATA_BYTES,
    WIDTH,
    Case,
    compiled,
    difference,
    fitted,
)
from models.bench.interrupted import interrupted
from models.bench.lying import lied
from tfmem.runtime import memory

EPOCH_LOGS = ("tfmem/peak_bytes", "tfmem/predicted_peak_bytes")

_ABOVE_LEAST = 1.5
"""The budget over the least reachable peak: still far below the original's, with room for what a
later `fit` has beside its step and the refused one had not."""

_TECHNIQUES = ("order", "recompute")


def compared(library: str, name: str) -> dict[str, Any]:
    """Trains a case with and without a budget a little above the least."""
    keras, case = importlib.import_module(library), CASES[name]
    plain = fitted(keras, case)
    budget = int(_ABOVE_LEAST * least(keras, case)) + 2 * DATA_BYTES
    callback = tfmem.keras.MemoryBudget(budget, techniques=_TECHNIQUES, **case.options)
    planned = fitted(keras, case, callback)
    return {
        "plain": plain.history,
        "planned": planned.history,
        "difference": difference(plain, planned),
        "is_planned": [not plan.is_noop for plan in callback.plans],
        "has_own_function": type(planned.model.train_function).__module__ != "tfmem.keras",
    }


def least(keras: Any, case: Case) -> int:
    """The least reachable peak, which a refused `fit` tells."""
    try:
        fitted(keras, case, tfmem.keras.MemoryBudget(1, techniques=_TECHNIQUES), [{"epochs": 1}])
    except tfmem.BudgetError as error:
        return error.least_bytes
    raise AssertionError("a budget of one byte was accepted")


def limited(library: str, is_planned: bool, share: float = 1.0) -> dict[str, Any]:
    """History and peak of a model whose activations are most of what it takes.

    `share` is the part of its sizes that tfmem is told.
    """
    import tensorflow as tf

    keras = importlib.import_module(library)
    keras.utils.set_random_seed(5)
    layers = keras.layers
    body = [
        layer
        for _ in range(10)
        for layer in (layers.Dense(256, activation="gelu"), layers.Dropout(0.1))
    ]
    model = keras.Sequential([keras.Input((WIDTH,)), *body, layers.Dense(CLASSES)])
    compiled(keras, model, optimizer=keras.optimizers.SGD(1e-2))
    x = np.random.default_rng(0).normal(size=(4500, WIDTH)).astype("float32")
    y = np.random.default_rng(9).integers(0, CLASSES, len(x))
    # On a CPU the buffers of tf.data, which fill as they like, live in the same memory.
    budget = int(0.9 * (memory.device_limit("CPU:0") or 0))
    callbacks = [tfmem.keras.MemoryBudget(budget)] if is_planned else []
    with lied(share) if share != 1 else contextlib.nullcontext():
        done = model.fit(x, y, batch_size=2048, epochs=2, verbose=0, callbacks=callbacks)
    history = {name: list(map(float, values)) for name, values in done.history.items()}
    return {
        "history": history,
        "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"],
        "events": [e for one in callbacks for report in one.reports() for e in report.events],
    }


def ended(library: str, times: int) -> dict[str, Any]:
    """As of `interrupted`, beside a host."""
    with tfmem.host_process():
        return interrupted(library, times)
