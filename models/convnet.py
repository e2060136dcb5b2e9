"""A residual convolutional network with batch normalisation (tf-keras layers) on drawn digits.

ResNet with bottleneck blocks (He et al., 2015) at a small size: momentum 0.9, weight decay 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tf_keras as keras

from models import images, train
from models.task import Task, count, size


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
    model = _network(config)
    weights = tuple(model.trainable_variables)
    kernels = [weight for weight in weights if len(weight.shape) == 4]
    optimizer = keras.optimizers.SGD(config.learning_rate, momentum=0.9)
    optimizer.build(weights)

    def step(pictures: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(pictures, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
            decay = config.weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
            total = loss + decay
        optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        return loss

    return Task(
        step=step,
        batches=images.digits(config.batch, config.side, config.seed),
        variables=(*model.variables, *optimizer.variables),
        parameters=count(weights),
        tokens=config.batch,
    )


def _network(config: Config) -> keras.Model:
    inputs = keras.Input((config.side, config.side, 1), batch_size=config.batch)
    x = _normalised(_convolution(config.width, 3)(inputs))
    for stage in range(3):
        for block in range(config.blocks):
            x = _bottleneck(x, config.width * 2**stage, strides=2 if stage and not block else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(images.CLASSES)(x))


def _bottleneck(x: tf.Tensor, width: int, strides: int) -> tf.Tensor:
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside the identity, or a projection to the new shape."""
    shortcut = x
    if strides > 1 or x.shape[-1] != 4 * width:
        shortcut = keras.layers.BatchNormalization()(_convolution(4 * width, 1, strides)(x))
    y = _normalised(_convolution(width, 1)(x))
    y = _normalised(_convolution(width, 3, strides)(y))
    y = keras.layers.BatchNormalization()(_convolution(4 * width, 1)(y))
    return tf.nn.relu(y + shortcut)


def _convolution(width: int, side: int, strides: int = 1) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        width, side, strides, padding="same", use_bias=False, kernel_initializer="he_normal"
    )


def _normalised(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(keras.layers.BatchNormalization()(x))


if __name__ == "__main__":
    train.main("convnet")
