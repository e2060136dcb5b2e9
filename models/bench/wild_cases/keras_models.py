"""keras.applications, each family by Keras 3 or tf-keras or both, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import dataset, images, integers

_CLASSES = 10


@dataclass(frozen=True)
class Family:
    """A model of keras.applications and how it is trained.

    Attributes:
      model: its name there.
      size: pixels of a side.
      batch: images.
      optimizer: of the Keras that it is of.
      settings: what the optimizer is given besides the learning rate.
      by: which Keras: `keras3`, `tf_keras`.
      has_top: whether it ends as its authors let it; if not, in a mean and one layer.
    """

    model: str
    size: int
    batch: int
    optimizer: str = "Adam"
    settings: tuple[tuple[str, Any], ...] = ()
    by: Sequence[str] = ("keras3", "tf_keras")
    has_top: bool = True


FAMILIES = {
    "vgg": Family("VGG16", 32, 32, "SGD", (), ["keras3"], has_top=False),
    "resnet": Family("ResNet50", 64, 8, "SGD", (), ["tf_keras"]),
    "resnet_v2": Family("ResNet50V2", 64, 8, "SGD", (), ["keras3"]),
    "resnet_rs": Family("ResNetRS50", 64, 8, "SGD", (), ["tf_keras"]),
    "inception": Family("InceptionV3", 75, 8, "RMSprop", (), ["tf_keras"]),
    "inception_resnet": Family("InceptionResNetV2", 75, 2, "SGD", (), ["keras3"]),
    "xception": Family("Xception", 71, 8, "SGD", (("nesterov", True),), ["keras3"]),
    "mobilenet": Family("MobileNet", 96, 16, "RMSprop", (), ["tf_keras"]),
    "mobilenet_v2": Family("MobileNetV2", 96, 16, "Nadam", (), ["keras3"]),
    "mobilenet_v3": Family("MobileNetV3Small", 96, 32),
    "densenet": Family("DenseNet121", 64, 8, "SGD"),
    "nasnet": Family("NASNetMobile", 64, 8, "Adam", (), ["keras3"]),
    "efficientnet": Family("EfficientNetB0", 96, 16),
    "efficientnet_v2": Family("EfficientNetV2B0", 64, 16, "Lion", (), ["tf_keras"]),
    "convnext": Family("ConvNeXtTiny", 32, 8, "Adafactor", (), ["keras3"]),
    "regnet": Family("RegNetX002", 64, 16, "SGD", (), ["tf_keras"]),
}
"""Sizes for which a step takes little more than its weights and gradients."""


def trained(keras: Any, model: Any, data: tf.data.Dataset, optimizer: Any) -> Work:
    """A step written by hand, as a tutorial's, with sparse cross entropy."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, iter(data))


def _family(family: Family, by: str) -> Callable[[], Work]:
    def build() -> Work:
        if by == "tf_keras":
            import tf_keras as keras
        else:
            import keras
        made = getattr(keras.applications, family.model)
        settings = {"weights": None, "input_shape": (family.size, family.size, 3)}
        if family.has_top:
            model = made(classes=_CLASSES, classifier_activation=None, **settings)
        else:
            below = made(include_top=False, pooling="avg", **settings)
            model = keras.Sequential([below, keras.layers.Dense(_CLASSES)])
        optimizer = getattr(keras.optimizers, family.optimizer)(1e-3, **dict(family.settings))
        drawn = images(family.batch, family.size), integers(family.batch, below=_CLASSES)
        return trained(keras, model, dataset(*drawn), optimizer)

    return build


for _name, _one in FAMILIES.items():
    for _by in _one.by:
        _library = "tf-keras" if _by == "tf_keras" else "keras"
        case(_library, legacy_keras=_by == "tf_keras", name=f"{_by}.{_name}")(_family(_one, _by))
