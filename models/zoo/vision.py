"""What the convolutional models share: layers, and a training step on drawn digits.

Layers are those of tf-keras, or of the `keras` that is passed: both libraries call them the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tf_keras

from models.data import images
from models.zoo.task import Task, count


def convolution(width: int, side: int, strides: int = 1, keras: Any = tf_keras) -> Any:
    """A convolution without bias, for what is normalised after it."""
    return keras.layers.Conv2D(
        width, side, strides, padding="same", use_bias=False, kernel_initializer="he_normal"
    )


def normalised(x: tf.Tensor, keras: Any = tf_keras) -> tf.Tensor:
    """Batch normalisation and ReLU."""
    return keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))


def recomputed(block: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """A block of layers of tf-keras under `tf.recompute_grad`."""
    inputs = tf_keras.Input(x.shape[1:], batch_size=x.shape[0])
    return _Recomputed(tf_keras.Model(inputs, block(inputs)))(x)


class _Recomputed(tf_keras.layers.Layer):  # type: ignore[misc]
    """A network that is computed again for its gradient; as it trains, whatever is asked."""

    def __init__(self, network: tf_keras.Model) -> None:
        super().__init__()
        self.network = network

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.recompute_grad(lambda y: self.network(y, training=True))(x)


def pictures(config: Any, keras: Any = tf_keras) -> tf.Tensor:
    """The input of a network: (batch, side, side, 1)."""
    return keras.Input((config.side, config.side, 1), batch_size=config.batch)


def classifier(inputs: tf.Tensor, x: tf.Tensor, keras: Any = tf_keras) -> Any:
    """A network that tells the digits apart by the mean of its last features."""
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(images.CLASSES)(x))


def task(config: Any, model: Any, keras: Any = tf_keras) -> Task:
    """Trains a network on digits by SGD with momentum 0.9; its step takes (images, labels).

    The labels of a network whose output is a picture are the pixels that are ink.
    """
    trained = model.trainable_variables
    weights = _variables(trained)
    kernels = [weight for weight in weights if len(weight.shape) == 4]
    optimizer = keras.optimizers.SGD(config.learning_rate, momentum=0.9)
    optimizer.build(trained)

    def step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = _loss(model(inputs, training=True), inputs, labels)
            decay = config.weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
            total = loss + decay
        optimizer.apply_gradients(zip(tape.gradient(total, weights), trained, strict=True))
        return loss

    return Task(
        step=step,
        batches=images.digits(config.batch, config.side, config.seed),
        variables=_variables((*model.variables, *optimizer.variables)),
        parameters=count(weights),
        tokens=config.batch,
    )


def _variables(made: Iterable[Any]) -> tuple[tf.Variable, ...]:
    """The variables of TensorFlow, which those of Keras 3 hold."""
    return tuple(one if isinstance(one, tf.Variable) else one.value for one in made)


def _loss(outputs: tf.Tensor, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    if len(outputs.shape) == 4:
        ink = tf.cast(inputs > 0.5, tf.float32)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(ink, outputs))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
