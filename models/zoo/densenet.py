"""A densely connected network (Huang et al., 2016; bottlenecks, compression) on drawn digits."""

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

    layers: int = size(8, "Layers in each of the three blocks.")
    growth: int = size(16, "Channels that each layer adds.")
    side: int = size(32, "Height and width of a picture.")
    batch: int = size(32, "Pictures in a batch.")
    learning_rate: float = size(0.02, "Step size of SGD with momentum 0.9.")
    weight_decay: float = size(1e-4, "Weight of the L2 norm of the convolutions.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {"small": Config(), "published": Config(layers=16, growth=32, side=224)}

GROWTH = "layers"


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (images, labels)."""
    keras.utils.set_random_seed(config.seed)
    inputs = vision.pictures(config)
    x = vision.convolution(2 * config.growth, 3)(inputs)
    for block in range(3):
        if block:
            x = vision.convolution(x.shape[-1] // 2, 1)(vision.normalised(x))
            x = keras.layers.AveragePooling2D()(x)
        for _ in range(config.layers):
            y = vision.convolution(4 * config.growth, 1)(vision.normalised(x))
            y = vision.convolution(config.growth, 3)(vision.normalised(y))
            x = tf.concat([x, y], axis=-1)
    return vision.task(config, vision.classifier(inputs, vision.normalised(x)))


if __name__ == "__main__":
    command.main("densenet")
