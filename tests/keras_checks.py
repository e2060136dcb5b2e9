"""Models that Keras trains with and without `tfmem.keras.MemoryBudget`, in processes of their own.

Every case is a `Case`; `all_cases` runs each of them for one of the two libraries.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tfmem
import tfmem.keras

ROWS, WIDTH, CLASSES = 7200, 48, 5
EPOCH_LOGS = ("tfmem/peak_bytes", "tfmem/predicted_peak_bytes")
BATCH = 2048
"""Not a divisor of `ROWS`: the last batch of an epoch is smaller."""


_DATA_BYTES = 3 * 2**20
"""What a later `fit` has beside the step that the refused one had not: another copy of the data."""


@dataclass
class Case:
    """What is trained.

    Attributes:
      build: makes the model, compiled, from the library's module.
      fit: arguments of `fit`, from the library's module and a folder.
      data: x and y.
      epochs: the arguments of `fit` for each call of it.
      options: of `MemoryBudget`.
      room: the budget over the least peak that can be reached.
      tolerance: how far, relatively, losses and weights may be from those without a budget.
    """

    build: Callable[[Any], Any]
    fit: Callable[[Any, Path], dict[str, Any]] = lambda keras, folder: {}
    data: Callable[[], tuple[Any, Any]] = lambda: (features(), labels())
    epochs: tuple[dict[str, int], ...] = ({"epochs": 2},)
    options: dict[str, Any] = field(default_factory=dict)
    room: float = 1.15
    tolerance: float = 1e-5


def features(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype("float32")


def labels() -> Any:
    return np.random.default_rng(9).integers(0, CLASSES, ROWS)


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
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(blocks(keras, inputs)))
    return compiled(keras, model, **options)


def sequential(keras: Any, **options: Any) -> Any:
    layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(8)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)])
    return compiled(keras, model, **options)


def subclassed(keras: Any) -> Any:
    class Residual(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(6)]
            self.noise = keras.layers.GaussianNoise(0.1)
            self.last = keras.layers.Dense(CLASSES)

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.noise(x, training=training)
            for layer in self.inner:
                x = x + layer(x)
            return self.last(x)

    return compiled(keras, Residual())


def custom_step(keras: Any) -> Any:
    import tensorflow as tf

    class Custom(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y, tf.int32), logits)
                loss = tf.reduce_mean(each)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}

    inputs = keras.Input((WIDTH,))
    model = Custom(inputs, keras.layers.Dense(CLASSES)(blocks(keras, inputs)))
    model.compile(optimizer=keras.optimizers.Adam(1e-3), jit_compile=False)
    return model


def several_optimizers(keras: Any) -> Any:
    import tensorflow as tf

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            layers = keras.layers
            self.body = keras.Sequential(
                [keras.Input((WIDTH,)), *(layers.Dense(WIDTH, activation="gelu") for _ in range(6))]
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
    model.build((None, WIDTH))
    model.compile(jit_compile=False)
    return model


def two_inputs(keras: Any) -> Any:
    first, second = keras.Input((WIDTH,), name="first"), keras.Input((WIDTH,), name="second")
    x = keras.layers.Concatenate()([blocks(keras, first), blocks(keras, second)])
    return compiled(keras, keras.Model([first, second], keras.layers.Dense(CLASSES)(x)))


def mixed_precision(keras: Any) -> Any:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return functional(keras)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def mirrored(keras: Any) -> Any:
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return functional(keras)


def beside(keras: Any, folder: Path) -> dict[str, Any]:
    callbacks = keras.callbacks
    saved = callbacks.ModelCheckpoint(str(folder / "model.weights.h5"), save_weights_only=True)
    backup = callbacks.BackupAndRestore(str(folder / "backup"))
    return {"callbacks": [saved, backup, callbacks.CSVLogger(str(folder / "log.csv"))]}


def stopped_early(keras: Any, folder: Path) -> dict[str, Any]:
    stop = keras.callbacks.EarlyStopping(
        "loss", min_delta=100, patience=1, restore_best_weights=True
    )
    return {"callbacks": [stop]}


def validated(keras: Any, folder: Path) -> dict[str, Any]:
    return {"validation_data": (features(1)[:300], labels()[:300])}


def weighted(keras: Any, folder: Path) -> dict[str, Any]:
    return {"sample_weight": np.linspace(0.5, 1.5, ROWS)}


CASES = {
    "functional": Case(functional),
    "sequential": Case(sequential),
    "subclassed": Case(subclassed),
    "custom train_step": Case(custom_step),
    "steps_per_execution": Case(lambda keras: functional(keras, steps_per_execution=3)),
    "mixed precision": Case(mixed_precision),
    "class weights": Case(functional, lambda *_: {"class_weight": {0: 2.0, 1: 0.5}}),
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
        two_inputs, data=lambda: ({"first": features(), "second": features(1)}, labels())
    ),
    "validation": Case(functional, validated),
    "planned validation": Case(functional, validated, options={"evaluate": True}),
    "initial_epoch": Case(functional, epochs=({"epochs": 1}, {"initial_epoch": 1, "epochs": 3})),
    "checkpoints beside it": Case(functional, beside),
    "early stop": Case(functional, stopped_early, epochs=({"epochs": 5},)),
    # XLA fuses, and makes other random numbers: none are made here.
    "jit_compile": Case(lambda keras: sequential(keras, jit_compile=True), tolerance=1e-4),
    "MirroredStrategy": Case(mirrored, room=1.05),
}


def all_cases(library: str, chosen: list[str]) -> dict[str, Any]:
    """Facts of each case that is chosen; a text in the place of them if it went wrong."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras = importlib.import_module(library)
    facts: dict[str, Any] = {}
    for name in chosen:
        try:
            facts[name] = compare(keras, CASES[name])
        except Exception as error:
            facts[name] = f"{type(error).__name__}: {error}"
        gc.collect()
    return facts


def compare(keras: Any, case: Case) -> dict[str, Any]:
    """Trains a case with and without a budget a little above the least."""
    with tempfile.TemporaryDirectory() as folder:
        plain, weights, _, _ = trained(keras, case, Path(folder, "plain"), is_planned=False)
        planned, same, model, callback = trained(
            keras, case, Path(folder, "planned"), is_planned=True
        )
    differences = [
        float(np.abs(a - b).max(initial=0.0) / max(1e-6, np.abs(a).max(initial=0.0)))
        for a, b in zip(weights, same, strict=True)
    ]
    return {
        "plain": plain,
        "planned": planned,
        "difference": max(differences),
        "is_planned": [not plan.is_noop for plan in callback.plans],
        "has_own_function": type(model.train_function).__module__ != "tfmem.keras",
    }


def trained(
    keras: Any, case: Case, folder: Path, is_planned: bool
) -> tuple[dict[str, list[float]], list[Any], Any, Any]:
    """History, weights, the model, and the callback that kept the budget."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    folder.mkdir()
    model = case.build(keras)
    callback = planned(keras, case, folder, model) if is_planned else None
    history: dict[str, list[float]] = {}
    for epochs in case.epochs:
        for name, values in fitted(keras, case, folder, model, epochs, callback).items():
            history.setdefault(name, []).extend(map(float, values))
    return history, model.get_weights(), model, callback


def planned(keras: Any, case: Case, folder: Path, model: Any) -> Any:
    """The callback with a budget a little above the least, which a refused `fit` tells."""
    techniques = ("order", "recompute")
    refused = tfmem.keras.MemoryBudget(1, techniques=techniques)
    try:
        fitted(keras, case, folder, model, {"epochs": 1}, refused)
    except tfmem.BudgetError as error:
        budget = int(case.room * error.least_bytes) + _DATA_BYTES
    else:
        raise AssertionError("a budget of one byte was accepted")
    gc.collect()  # the error's frames hold the data of the fit that it ended
    return tfmem.keras.MemoryBudget(budget, techniques=techniques, **case.options)


def fitted(
    keras: Any, case: Case, folder: Path, model: Any, epochs: dict[str, int], callback: Any
) -> dict[str, list[float]]:
    """The history of one call of `fit`."""
    options = case.fit(keras, folder)
    callbacks = [*([callback] if callback else []), *options.pop("callbacks", [])]
    x, y = case.data()
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False, "callbacks": callbacks}
    return model.fit(x, y, **arguments, **options, **epochs).history


def limited(library: str, is_planned: bool) -> dict[str, Any]:
    """History and peak of a model whose activations are most of what it takes."""
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
    callbacks = [tfmem.keras.MemoryBudget()] if is_planned else []
    done = model.fit(x, y, batch_size=2048, epochs=2, verbose=0, callbacks=callbacks)
    history = {name: list(map(float, values)) for name, values in done.history.items()}
    return {"history": history, "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"]}
