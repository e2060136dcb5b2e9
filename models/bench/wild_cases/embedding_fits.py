"""A recommender of embeddings, whose gradients are sparse, trained by `fit` with each optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.bench.wild_cases import Fit, case
from models.bench.wild_cases.data import dataset, integers, normals

_PEOPLE, _THINGS, _WIDTH, _BASKET, _BATCH = 10_000, 20_000, 32, 16, 4096

Make = Callable[[Any], Any]
"""Makes an optimizer, of the module of its library's optimizers."""

_ALL: dict[str, Make] = {
    "sgd": lambda optimizers: optimizers.SGD(1e-2),
    "momentum": lambda optimizers: optimizers.SGD(1e-2, momentum=0.9),
    "rmsprop": lambda optimizers: optimizers.RMSprop(1e-3),
    "adagrad": lambda optimizers: optimizers.Adagrad(1e-2),
    "adadelta": lambda optimizers: optimizers.Adadelta(1.0),
    "adam": lambda optimizers: optimizers.Adam(1e-3),
    "adamax": lambda optimizers: optimizers.Adamax(1e-3),
    "nadam": lambda optimizers: optimizers.Nadam(1e-3),
    "ftrl": lambda optimizers: optimizers.Ftrl(1e-2),
}
"""Those that tf-keras has twice, once as `legacy`."""

_NEWER: dict[str, Make] = {
    "adamw": lambda optimizers: optimizers.AdamW(1e-3),
    "lion": lambda optimizers: optimizers.Lion(1e-4),
    "adafactor": lambda optimizers: optimizers.Adafactor(1e-3),
}

_KERAS3: dict[str, Make] = {
    "lamb": lambda optimizers: optimizers.Lamb(1e-3),
    "muon": lambda optimizers: optimizers.Muon(1e-3),
    "schedule_free_adamw": lambda optimizers: optimizers.ScheduleFreeAdamW(1e-3),
    "loss_scale": lambda optimizers: optimizers.LossScaleOptimizer(optimizers.Adam(1e-3)),
    "nesterov": lambda optimizers: optimizers.SGD(1e-2, momentum=0.9, nesterov=True),
    "amsgrad": lambda optimizers: optimizers.Adam(1e-3, amsgrad=True),
    "clipped": lambda optimizers: optimizers.Adam(1e-3, global_clipnorm=0.1),
    "averaged": lambda optimizers: optimizers.SGD(1e-2, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda optimizers: optimizers.Adam(1e-3, gradient_accumulation_steps=2),
}
"""Those of Keras 3 alone, and others' options."""


def _fitted(keras: Any, optimizer: Any) -> Fit:
    """People and their baskets as vectors, and an MLP that says how well they go."""
    layers = keras.layers
    person = keras.Input((), dtype="int32", name="person")
    basket = keras.Input((_BASKET,), dtype="int32", name="basket")
    bought = layers.Flatten()(layers.Embedding(_THINGS, _WIDTH)(basket))
    x = layers.Concatenate()([layers.Embedding(_PEOPLE, _WIDTH)(person), bought])
    for units in (256, 128):
        x = layers.Dense(units, "relu")(x)
    model = keras.Model([person, basket], layers.Dense(1)(x))
    model.compile(optimizer, "mse", jit_compile=False)
    drawn = integers(_BATCH, below=_PEOPLE), integers(_BATCH, _BASKET, below=_THINGS)
    data = dataset(*drawn, normals(_BATCH, 1))
    return Fit(model, data.map(lambda person, basket, rating: ((person, basket), rating)))


def _under(library: str, make: Make) -> Callable[[], Fit]:
    def build() -> Fit:
        if library == "keras":
            import keras

            return _fitted(keras, make(keras.optimizers))
        import tf_keras

        optimizers = tf_keras.optimizers
        return _fitted(tf_keras, make(optimizers.legacy if library == "legacy" else optimizers))

    return build


def _scaled() -> Fit:
    """Under the wrapper that scales losses, as mixed precision asks for it."""
    import tf_keras

    adam = tf_keras.optimizers.Adam(1e-3)
    return _fitted(tf_keras, tf_keras.mixed_precision.LossScaleOptimizer(adam))


for _name, _make in (_ALL | _NEWER | _KERAS3).items():
    case("keras", name=f"keras3.{_name}")(_under("keras", _make))
for _name, _make in (_ALL | _NEWER).items():
    case("tf-keras", legacy_keras=True, name=f"tf_keras.{_name}")(_under("tf-keras", _make))
case("tf-keras", legacy_keras=True, name="tf_keras.loss_scale")(_scaled)
for _name, _make in _ALL.items():
    case("tf-keras", legacy_keras=True, name=f"legacy.{_name}")(_under("legacy", _make))
