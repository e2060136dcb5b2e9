"""A ResNet of any depth 3n + 2 (He et al., 2015; bottleneck blocks) on drawn digits."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
import tf_keras

from models.bench import command
from models.zoo import vision
from models.zoo.task import Task, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    depth: int = size(50, "Layers, 3n + 2: 50, 101 and 152 are the published ones.")
    width: int = size(64, "Channels of the first stage; each stage doubles them.")
    side: int = size(64, "Height and width of a picture.")
    batch: int = size(32, "Pictures in a batch.")
    library: str = size("tf_keras", 'Whose layers: "tf_keras", "keras", or "remat" (RematScope).')
    recompute_grad: int = size(0, "1 to recompute blocks by hand; of tf_keras only.")
    learning_rate: float = size(0.003, "Step size of SGD with momentum 0.9.")
    weight_decay: float = size(1e-4, "Weight of the L2 norm of the convolutions.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {"small": Config(), "published": Config(depth=152, side=224, learning_rate=0.1)}

GROWTH = "depth"

_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (images, labels)."""
    layers = tf_keras if config.library == "tf_keras" else keras
    layers.utils.set_random_seed(config.seed)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20 * config.depth))  # Keras walks it so
    is_remat = config.library == "remat"
    with keras.RematScope("activations") if is_remat else contextlib.nullcontext():
        return vision.task(config, _network(config, layers), layers)


def _network(config: Config, keras: Any) -> Any:
    inputs = vision.pictures(config, keras)
    x = vision.normalised(vision.convolution(config.width, 7, 2, keras)(inputs), keras)
    x = keras.layers.MaxPool2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(stages(config.depth)):
        for number in range(blocks):
            strides = 2 if stage and not number else 1
            block = functools.partial(
                bottleneck, width=config.width * 2**stage, strides=strides, keras=keras
            )
            x = vision.recomputed(block, x) if config.recompute_grad else block(x)
    return vision.classifier(inputs, x, keras)


def stages(depth: int) -> tuple[int, int, int, int]:
    """Blocks of the four stages; depths that were not published lengthen the third stage.

    Raises:
      ValueError: the depth is not 3n + 2, or too small.
    """
    if depth in _STAGES:
        return _STAGES[depth]
    blocks, rest = divmod(depth - 2, 3)
    if rest or blocks < 4:
        raise ValueError(f"depth={depth}: choose 3n + 2 with n of at least 4, such as 14 or 50")
    first, second, last = (3, 8, 3) if blocks > 18 else (1, 1, 1)
    return first, second, blocks - first - second - last, last


def rounded(depth: int) -> int:
    """The next depth that there is, 3n + 2 and at least 14."""
    return max(14, 3 * round((depth - 2) / 3) + 2)


def bottleneck(x: tf.Tensor, width: int, strides: int, keras: Any = tf_keras) -> tf.Tensor:
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside the identity, or a projection to the new shape."""

    def normalise(x: tf.Tensor) -> tf.Tensor:
        return keras.layers.BatchNormalization()(x)

    shortcut = x
    if strides > 1 or x.shape[-1] != 4 * width:
        shortcut = normalise(vision.convolution(4 * width, 1, strides, keras)(x))
    y = vision.normalised(vision.convolution(width, 1, keras=keras)(x), keras)
    y = vision.normalised(vision.convolution(width, 3, strides, keras)(y), keras)
    y = normalise(vision.convolution(4 * width, 1, keras=keras)(y))
    return keras.layers.Activation("relu")(y + shortcut)


if __name__ == "__main__":
    command.main("resnet")
