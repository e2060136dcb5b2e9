"""keras.applications, one of each family, by Keras 3 and by tf-keras, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import dataset, images, integers

_CLASSES = 10


def _trained(keras: Any, model: Any, size: int, batch: int, optimizer: Any) -> Work:
    """A step written by hand, as a tutorial's: sparse cross entropy, an optimizer of Keras."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, iter(dataset(images(batch, size), integers(batch, below=_CLASSES))))


FAMILIES = {
    "mobilenet_v3": ("MobileNetV3Small", 96, 32, "Adam"),
    "densenet": ("DenseNet121", 64, 8, "SGD"),
    "efficientnet": ("EfficientNetB0", 96, 16, "Adam"),
}
"""Of each family: name in keras.applications, pixels of a side, batch, optimizer."""


def _family(library: str, name: str, size: int, batch: int, optimizer: str) -> Callable[[], Work]:
    def build() -> Work:
        if library == "tf-keras":
            import tf_keras as keras
        else:
            import keras
        made = getattr(keras.applications, name)
        model = made(
            weights=None,
            input_shape=(size, size, 3),
            classes=_CLASSES,
            classifier_activation=None,
        )
        return _trained(keras, model, size, batch, getattr(keras.optimizers, optimizer)(1e-3))

    return build


for _library, _prefix in (("keras", "keras3"), ("tf-keras", "tf_keras")):
    for _name, _setting in FAMILIES.items():
        case(_library, legacy_keras=_library == "tf-keras", name=f"{_prefix}.{_name}")(
            _family(_library, *_setting)
        )
