"""A residual convolutional network with batch normalisation (tf-keras layers) on drawn digits.

ResNet with bottleneck blocks (He et al., 2015) at a small size: momentum 0.9, weight decay 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass

import tf_keras as keras

from models.bench import command
from models.zoo import vision
from models.zoo.resnet import bottleneck
from models.zoo.task import Task, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    blocks: int = size(2, "Residual blocks in each of the three stages.")
    width: int = size(16, "Channels of the first stage; each stage doubles them.")
    side: int = size(32, "Height and width of a picture.")
    batch: int = size(32, "Pictures in a batch.")
    learning_rate: float = size(0.02, "Step size of SGD with momentum 0.9.")
    weight_decay: float = size(1e-4, "Weight of the L2 norm of the convolutions.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {
    "small": Config(),
    "published": Config(blocks=12, width=64, side=224, learning_rate=0.1),
}

GROWTH = "blocks"


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (images, labels)."""
    keras.utils.set_random_seed(config.seed)
    inputs = vision.pictures(config)
    x = vision.normalised(vision.convolution(config.width, 3)(inputs))
    for stage in range(3):
        for block in range(config.blocks):
            x = bottleneck(x, config.width * 2**stage, strides=2 if stage and not block else 1)
    return vision.task(config, vision.classifier(inputs, x))


if __name__ == "__main__":
    command.main("convnet")
