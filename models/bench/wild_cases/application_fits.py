"""keras.applications: a small member of each family, by both Kerases, trained by `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.bench.wild_cases import Fit, case
from models.bench.wild_cases.data import dataset, images, integers
from models.bench.wild_cases.keras_models import FAMILIES, Family

_CLASSES = 10
_SIDE, _BATCH = 75, 16
"""The least side that InceptionV3 takes, and the most images."""

_OF_TF_KERAS = ("resnet_rs", "regnet")


def _fitted(keras: Any, family: Family) -> Fit:
    made, side = getattr(keras.applications, family.model), max(family.size, _SIDE)
    below = made(include_top=False, pooling="avg", weights=None, input_shape=(side, side, 3))
    model = keras.Model(below.input, keras.layers.Dense(_CLASSES)(below.output))
    optimizer = getattr(keras.optimizers, family.optimizer)(1e-3, **dict(family.settings))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    batch = min(family.batch, _BATCH)
    return Fit(model, dataset(images(batch, side), integers(batch, below=_CLASSES)))


def _family(library: str, family: Family) -> Callable[[], Fit]:
    def build() -> Fit:
        if library == "tf-keras":
            import tf_keras as keras
        else:
            import keras
        return _fitted(keras, family)

    return build


for _name, _one in FAMILIES.items():
    if _name not in _OF_TF_KERAS:
        case("keras", name=f"keras3.{_name}")(_family("keras", _one))
for _name, _one in FAMILIES.items():
    case("tf-keras", legacy_keras=True, name=f"tf_keras.{_name}")(_family("tf-keras", _one))
