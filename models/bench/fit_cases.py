"""Kinds of `fit` of Keras 3 and of tf-keras: what a model may be, and what may be asked of `fit`.

Every kind is a `Case`; each of its functions is given the library's module.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from models.bench.differences import relative_difference

ROWS, FEATURES, WIDTH, CLASSES = 7200, 32, 256, 5
BATCH = 2048
"""Not a divisor of `ROWS`: the last batch of an epoch is smaller."""

DATA_BYTES = 4 * ROWS * FEATURES
"""Of the features; on a CPU they stand beside the step, in as many copies as tf.data holds."""


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
      build: makes the model, compiled.
      fit: arguments of `fit`, for the library and a folder.
      data: x and y.
      epochs: the arguments of `fit` for each call of it.
      after: what else is asked of the model once it is trained, given the arguments of `fit`; its
        numbers belong to the history.
      options: of `MemoryBudget`.
      devices: over how many of the process's devices, which share its memory, it is spread.
      tolerance: how far, relatively, losses and weights may be from those without a budget.
    """

    build: Callable[[Any], Any]
    fit: Callable[[Any, Path], dict[str, Any]] = lambda keras, folder: {}
    data: Callable[[], tuple[Any, Any]] = lambda: (features(), labels())
    epochs: tuple[dict[str, int], ...] = ({"epochs": 2},)
    after: Callable[[Any, dict[str, Any]], dict[str, float]] = lambda model, arguments: {}
    options: dict[str, Any] = field(default_factory=dict)
    devices: int = 1
    tolerance: float = 1e-5


@dataclass(frozen=True)
class Fitted:
    """What came of a case: the model, its weights, and the numbers of all calls of `fit`."""

    model: Any
    weights: list[Any]
    history: dict[str, list[float]]


def fitted(
    keras: Any, case: Case, callback: Any = None, epochs: Sequence[dict[str, int]] = ()
) -> Fitted:
    """Trains a case from the beginning, with a callback or without.

    `epochs` stands for the case's own. The same case always begins with the same numbers.
    """
    keras.backend.clear_session()
    gc.collect()  # an error's frames hold the model and the data of the fit that it ended
    keras.utils.set_random_seed(3)
    model = case.build(keras)
    history: dict[str, list[float]] = {}
    x, y = case.data()
    with tempfile.TemporaryDirectory() as folder:
        for number in epochs or case.epochs:
            options = case.fit(keras, Path(folder))
            callbacks = [*([callback] if callback else []), *options.pop("callbacks", [])]
            given = {"x": x, "y": y, "batch_size": BATCH, "verbose": 0, "callbacks": callbacks}
            with contextlib.suppress(Interruption):
                done = model.fit(**given, shuffle=False, **options, **number)
                for name, values in done.history.items():
                    history.setdefault(name, []).extend(map(float, values))
    for name, value in case.after(model, given).items():
        history[name] = [float(value)]
    return Fitted(model, model.get_weights(), history)


def difference(first: Fitted, second: Fitted) -> float:
    """The largest relative difference of any number of the history and of any weight.

    Numbers that only the second has do not count.
    """
    pairs = [(values, second.history[name]) for name, values in first.history.items()]
    pairs += zip(first.weights, second.weights, strict=True)
    return max(relative_difference(a, b) for a, b in pairs)


# Data.


def features(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(ROWS, FEATURES)).astype("float32")


def labels() -> Any:
    return np.random.default_rng(9).integers(0, CLASSES, ROWS)


# Models.


def blocks(keras: Any, x: Any) -> Any:
    """Wide and deep enough that activations are most of the memory."""
    layers = keras.layers
    for _ in range(6):
        x = layers.Dense(WIDTH)(x)
        x = layers.Activation("gelu")(x)
        x = layers.BatchNormalization()(x)
    return layers.Dropout(0.1)(x)


def compiled(keras: Any, model: Any, **options: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"optimizer": keras.optimizers.Adam(1e-3), "loss": loss, "jit_compile": False}
    model.compile(**(arguments | {"metrics": ["accuracy"]} | options))
    return model


def functional(keras: Any, **options: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(blocks(keras, inputs)))
    return compiled(keras, model, **options)


def sequential(keras: Any, **options: Any) -> Any:
    layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(8)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
    return compiled(keras, model, **options)


def subclassed(keras: Any) -> Any:
    class Residual(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(WIDTH)
            self.inner = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(6)]
            self.noise = keras.layers.GaussianNoise(0.1)
            self.last = keras.layers.Dense(CLASSES)

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.noise(self.first(x), training=training)
            for layer in self.inner:
                x = x + layer(x)
            return self.last(x)

    return compiled(keras, Residual())


def custom_step(keras: Any) -> Any:
    class Custom(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y, tf.int32), logits)
                loss = tf.reduce_mean(each)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}

    inputs = keras.Input((FEATURES,))
    model = Custom(inputs, keras.layers.Dense(CLASSES)(blocks(keras, inputs)))
    model.compile(optimizer=keras.optimizers.Adam(1e-3), jit_compile=False)
    return model


def several_optimizers(keras: Any) -> Any:
    class Two(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            layers = keras.layers
            self.body = keras.Sequential(
                [
                    keras.Input((FEATURES,)),
                    *(layers.Dense(WIDTH, activation="gelu") for _ in range(6)),
                ]
            )
            self.head = layers.Dense(CLASSES)
            self.slow, self.fast = keras.optimizers.SGD(1e-3), keras.optimizers.Adam(1e-2)

        def call(self, x: Any) -> Any:
            return self.head(self.body(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y, tf.int32), self(x))
                loss = tf.reduce_mean(each)
            for optimizer, part in ((self.slow, self.body), (self.fast, self.head)):
                weights = part.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    model = Two()
    model.build((None, FEATURES))
    model.compile(jit_compile=False)
    return model


def several_inputs(keras: Any) -> Any:
    first, second = keras.Input((FEATURES,), name="first"), keras.Input((FEATURES,), name="second")
    x = keras.layers.Concatenate()([blocks(keras, first), blocks(keras, second)])
    return compiled(keras, keras.Model([first, second], keras.layers.Dense(CLASSES)(x)))


def mixed_precision(keras: Any) -> Any:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return functional(keras)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def mirrored(keras: Any) -> Any:
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    with tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"]).scope():
        return functional(keras)


# Arguments of `fit`.


class Interruption(Exception):
    """What ends a fit that another one takes up again."""


def beside(keras: Any, folder: Path) -> dict[str, Any]:
    callbacks = keras.callbacks
    saved = callbacks.ModelCheckpoint(str(folder / "model.weights.h5"), save_weights_only=True)
    backup = callbacks.BackupAndRestore(str(folder / "backup"))
    return {"callbacks": [saved, backup, callbacks.CSVLogger(str(folder / "log.csv"))]}


def interrupted(keras: Any, folder: Path) -> dict[str, Any]:
    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            flag = folder / "interrupted"
            if epoch == 1 and not flag.exists():
                flag.touch()
                raise Interruption

    return {"callbacks": [keras.callbacks.BackupAndRestore(str(folder / "backup")), Interrupt()]}


def stopped_early(keras: Any, folder: Path) -> dict[str, Any]:
    stop = keras.callbacks.EarlyStopping(
        "loss", min_delta=100, patience=1, restore_best_weights=True
    )
    return {"callbacks": [stop]}


def validated(keras: Any, folder: Path) -> dict[str, Any]:
    return {"validation_data": (features(1)[:300], labels()[:300])}


def weighted(keras: Any, folder: Path) -> dict[str, Any]:
    return {"sample_weight": np.linspace(0.5, 1.5, ROWS)}


def evaluated(model: Any, given: dict[str, Any]) -> dict[str, float]:
    """Numbers of `evaluate` and `predict`, which are given the callback too."""
    numbers = model.evaluate(**given, return_dict=True)
    del given["y"]
    outputs = model.predict(**given)
    return {f"evaluate {k}": v for k, v in numbers.items()} | {"predict": np.abs(outputs).sum()}


CASES = {
    "functional": Case(functional),
    "sequential": Case(sequential),
    "subclassed": Case(subclassed),
    "custom train_step": Case(custom_step),
    "steps_per_execution": Case(lambda keras: functional(keras, steps_per_execution=3)),
    "mixed precision": Case(mixed_precision),
    "class weights": Case(
        functional, lambda *_: {"class_weight": {0: 2.0, 1: 0.5, 2: 1.0, 3: 1.0, 4: 1.5}}
    ),
    "sample weights": Case(functional, weighted),
    "metrics": Case(
        lambda keras: functional(
            keras, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
        )
    ),
    "gradient clipping": Case(
        lambda keras: functional(keras, optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=0.1))
    ),
    "several optimizers": Case(several_optimizers),
    "several inputs": Case(
        several_inputs, data=lambda: ({"first": features(), "second": features(1)}, labels())
    ),
    "validation": Case(functional, validated),
    "planned validation": Case(functional, validated, options={"evaluate": True}),
    "evaluate and predict": Case(
        functional, after=evaluated, options={"evaluate": True, "predict": True}
    ),
    "second fit from an epoch": Case(
        functional, epochs=({"epochs": 1}, {"initial_epoch": 1, "epochs": 3})
    ),
    "restart from a backup": Case(functional, interrupted, epochs=({"epochs": 3}, {"epochs": 3})),
    "checkpoints beside it": Case(functional, beside),
    "early stop": Case(functional, stopped_early, epochs=({"epochs": 5},)),
    # XLA fuses, and makes other random numbers: none are made here.
    "jit_compile": Case(lambda keras: sequential(keras, jit_compile=True), tolerance=1e-4),
    "MirroredStrategy": Case(mirrored, devices=2),
}
