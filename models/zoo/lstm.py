"""An LSTM that predicts the next byte of text, unrolled over time when it is traced; Adam."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tf_keras as keras

from models.bench import command
from models.data import text
from models.zoo.task import Task, count, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    length: int = size(64, "Steps of time, all unrolled.")
    width: int = size(256, "Width of the embedding and of the LSTM's state.")
    batch: int = size(32, "Sequences in a batch.")
    learning_rate: float = size(3e-3, "Adam's step size.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {
    "small": Config(),
    "published": Config(length=400, width=2048, batch=128, learning_rate=1e-3),
}

GROWTH = "length"


class Network(tf.Module):
    """Embedding, LSTM and output layer; a call is (tokens, targets) -> loss."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="lstm")
        c = self.config = config
        random = keras.initializers.GlorotUniform(config.seed)
        self.embedding = tf.Variable(random((text.VOCABULARY, c.width)), name="embedding")
        self.kernel = tf.Variable(random((2 * c.width, 4 * c.width)), name="kernel")
        self.bias = tf.Variable(tf.zeros(4 * c.width), name="bias")
        self.out = tf.Variable(random((c.width, text.VOCABULARY)), name="out")

    def __call__(self, tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        inputs = tf.unstack(tf.gather(tf.convert_to_tensor(self.embedding), tokens), axis=1)
        kernel = tf.convert_to_tensor(self.kernel)
        memory = state = tf.zeros((self.config.batch, self.config.width))

        losses = []
        for moment, x in enumerate(inputs):
            memory, state = cell(x, memory, state, kernel, self.bias)
            logits = tf.matmul(state, self.out)
            losses.append(
                tf.nn.sparse_softmax_cross_entropy_with_logits(targets[:, moment], logits)
            )
        return tf.reduce_mean(tf.stack(losses))


def cell(
    x: tf.Tensor, memory: tf.Tensor, state: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """One moment of an LSTM: its memory and its state, each (batch, width)."""
    gates = tf.matmul(tf.concat([x, state], axis=1), kernel) + bias
    new, keep, take, show = tf.split(gates, 4, axis=1)
    memory = memory * tf.sigmoid(keep + 1.0) + tf.tanh(new) * tf.sigmoid(take)
    return memory, tf.tanh(memory) * tf.sigmoid(show)


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (tokens, targets)."""
    network = Network(config)
    weights = tuple(network.trainable_variables)
    optimizer = keras.optimizers.Adam(config.learning_rate)
    optimizer.build(weights)

    def step(tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = network(tokens, targets)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return Task(
        step=step,
        batches=text.batches(config.batch, config.length, config.seed),
        variables=(*weights, *optimizer.variables),
        parameters=count(weights),
        tokens=config.batch * config.length,
    )


if __name__ == "__main__":
    command.main("lstm")
