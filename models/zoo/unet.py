"""A U-Net (Ronneberger et al., 2015) that finds the ink in noisy pictures of digits."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tf_keras as keras

from models.bench import command
from models.zoo import vision
from models.zoo.task import Task, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    levels: int = size(4, "Levels, each half as high and wide as the one above.")
    width: int = size(16, "Channels of the first level; each level doubles them.")
    side: int = size(64, "Height and width of a picture.")
    batch: int = size(16, "Pictures in a batch.")
    learning_rate: float = size(0.05, "Step size of SGD with momentum 0.9.")
    weight_decay: float = size(1e-5, "Weight of the L2 norm of the convolutions.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {"small": Config(), "published": Config(width=64, side=512)}

GROWTH = "side"


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (images, labels)."""
    keras.utils.set_random_seed(config.seed)
    inputs = x = vision.pictures(config)
    skips = []
    for level in range(config.levels):
        x = _twice(x, config.width * 2**level)
        skips.append(x)
        x = keras.layers.MaxPool2D()(x)
    x = _twice(x, config.width * 2**config.levels)
    for level in reversed(range(config.levels)):
        x = keras.layers.UpSampling2D()(x)
        x = tf.concat([x, skips[level]], axis=-1)
        x = _twice(x, config.width * 2**level)
    return vision.task(config, keras.Model(inputs, keras.layers.Conv2D(1, 1)(x)))


def _twice(x: tf.Tensor, width: int) -> tf.Tensor:
    for _ in range(2):
        x = vision.normalised(vision.convolution(width, 3)(x))
    return x


if __name__ == "__main__":
    command.main("unet")
