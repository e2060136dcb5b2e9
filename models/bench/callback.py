"""What `tfmem.keras.MemoryBudget` adds to a step once planned: fits in turn, with and without.

python -m models.bench.callback --library=keras
"""

from __future__ import annotations

import importlib
import statistics
import time
from typing import Any

import numpy as np
from absl import app, flags

import tfmem.keras
from models.bench.table import show_seconds, table

flags.DEFINE_enum("library", "keras", ["keras", "tf_keras"], "Whose model.")
flags.DEFINE_integer("width", 512, "Of each of the eight layers.")
flags.DEFINE_integer("batch", 1024, "Rows of a batch.")
flags.DEFINE_integer("steps", 30, "Steps of a fit; the first five do not count.")
flags.DEFINE_integer("rounds", 9, "Fits of each kind, in turn.")

_WARM_UP = 5


def timer(keras: Any, seconds: list[float]) -> Any:
    """A callback that adds the seconds of each step, from batch to batch."""

    class Timer(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        last = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now = time.perf_counter()
            if batch >= _WARM_UP:
                seconds.append(now - self.last)
            self.last = now

    return Timer()


def network(keras: Any, width: int) -> Any:
    """A model whose step is computation for the most part."""
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def main(argv: list[str]) -> None:
    """Prints the median step of both, and the median of the rounds' ratios."""
    del argv
    values = flags.FLAGS
    keras = importlib.import_module(values.library)
    model = network(keras, values.width)
    x = np.ones((values.batch * values.steps, values.width), "float32")
    kinds: dict[str, Any] = {
        "without": list,
        "with, nothing to do": lambda: [tfmem.keras.MemoryBudget("100GB")],
        "with, ordered": lambda: [tfmem.keras.MemoryBudget(None, techniques=["order"])],
    }
    medians: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(values.rounds):
        for name, callbacks in kinds.items():
            seconds: list[float] = []
            asked = [*callbacks(), timer(keras, seconds)]
            model.fit(x, x[:, :1], batch_size=values.batch, verbose=0, callbacks=asked)
            medians[name].append(statistics.median(seconds))
    first = medians["without"]
    lines = [
        [
            name,
            show_seconds(statistics.median(found)),
            f"{statistics.median(a / b for a, b in zip(found, first, strict=True)):.4f}",
        ]
        for name, found in medians.items()
    ]
    print(table([values.library, "a step", "ratio"], lines))


if __name__ == "__main__":
    app.run(main)
