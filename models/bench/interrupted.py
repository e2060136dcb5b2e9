"""`fit` under a budget, ended by an exception of its data, of another callback, and by Ctrl-C.

    python -m models.bench.interrupted --library=keras --times=50

Plans place variables on the host. After each end the model is looked at: whether it has its own
train function, and its weights are where they were. Then it trains once more without tfmem.
"""

from __future__ import annotations

import importlib
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from absl import app, flags

import tfmem
from models.bench.table import table
from models.bench.train import limit_memory

WIDTH, LAYERS, BATCH = 512, 6, 128

flags.DEFINE_enum("library", "keras", ("keras", "tf_keras"), "Which Keras.")
flags.DEFINE_integer("times", 50, "How often Ctrl-C is pressed, at random moments.")


def interrupted(library: str, times: int, seed: int = 0) -> dict[str, Any]:
    """How often a model was not as it was, by what ended its `fit`.

    Args:
      library: "keras" or "tf_keras".
      times: how often Ctrl-C is pressed, within the seconds that a short `fit` takes.
      seed: of the moments.

    Returns:
      Of "data", "callback" and "keyboard" how many ends there were and after how many the model was
      not as it was; "placed", the variables that the plan moved; "losses" of the last `fit`.
    """
    keras = importlib.import_module(library)
    model = model_of(keras)
    x = np.random.default_rng(seed).normal(size=(4 * BATCH, WIDTH)).astype("float32")
    budget = tfmem.keras.MemoryBudget("22MB", techniques=("order", "place"))

    def data() -> Iterator[tuple[Any, Any]]:
        yield x[:BATCH], x[:BATCH, :1]
        raise ValueError("the data ends")

    class Ends(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise ValueError("another callback ends")

    def fit(*callbacks: Any, epochs: int = 1) -> Any:
        own = {"batch_size": BATCH, "epochs": epochs, "callbacks": callbacks}
        return model.fit(x, x[:, :1], verbose=0, **own)

    def pressed(seconds: float) -> None:
        press(seconds)
        fit(budget, epochs=10**6)

    endings: list[tuple[str, Callable[[], Any]]] = [
        ("data", lambda: model.fit(data(), verbose=0, callbacks=[budget])),
        ("callback", lambda: fit(budget, Ends())),
    ]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs ignore it
    sys.unraisablehook = press_again
    start = time.perf_counter()
    fit(budget)
    once, moments = time.perf_counter() - start, random.Random(seed)
    placed = len(budget.plans[0].placements)
    seconds = [moments.uniform(0, 1.5 * once) for _ in range(times)]
    endings += [("keyboard", partial(pressed, one)) for one in seconds]
    found: dict[str, Any] = {kind: [0, 0] for kind, _ in endings}
    for kind, end in endings:
        try:
            end()
        except (Exception, KeyboardInterrupt):
            found[kind][0] += 1
        found[kind][1] += not is_as_it_was(model)
    return found | {"placed": placed, "losses": fit().history["loss"]}


def press(seconds: float) -> None:
    """Presses Ctrl-C after some seconds."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def press_again(ignored: Any) -> None:
    """Does as users do where Python ignored Ctrl-C, as it does while an object is finalized."""
    sys.__unraisablehook__(ignored)
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        press(0.1)


def model_of(keras: Any) -> Any:
    """A deep model with Adam, whose slots Keras 3 makes while the first step is traced."""
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    return model


def is_as_it_was(model: Any) -> bool:
    """Whether a model has a function of Keras's, and its weights on this process's device."""
    plain = [getattr(weight, "_value", weight) for weight in model.weights]
    is_own = type(model.train_function).__module__ != "tfmem.keras"
    return is_own and all("/job:localhost/" in weight.device for weight in plain)


def main(_: list[str]) -> None:
    """Prints the table."""
    values = flags.FLAGS
    limit_memory(None)
    with tfmem.host_process():
        found = interrupted(values.library, values.times)
    kinds = ("data", "callback", "keyboard")
    print(table(["ended by", "times", "not as it was"], [[k, *map(str, found[k])] for k in kinds]))
    print(f"{found['placed']} variables were placed; trained on: {found['losses']}")
    assert all(math.isfinite(loss) for loss in found["losses"])


if __name__ == "__main__":
    app.run(main)
