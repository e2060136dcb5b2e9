"""A dense decoder-only transformer that predicts the next byte of text (GPT-2's blocks); Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf
import tf_keras as keras

from models.bench import command
from models.data import text
from models.zoo.task import Task, count, size
from models.zoo.transformer import Attention, Dropout, Weights, normalise


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    layers: int = size(12, "Blocks of attention and a feed-forward layer.")
    d_model: int = size(256, "Width of the model.")
    heads: int = size(4, "Attention heads.")
    d_head: int = size(64, "Width of a head's keys and values.")
    batch: int = size(4, "Sequences in a batch.")
    length: int = size(256, "Tokens of a sequence.")
    dropout: float = size(0.0, "Share of activations dropped after each layer.")
    recompute_grad: int = size(0, "1 to recompute each block by hand with tf.recompute_grad.")
    learning_rate: float = size(3e-4, "Adam's step size.")
    seed: int = size(0, "Seed of the weights, the dropout and the batches.")


CONFIGS = {
    "small": Config(),
    "published": Config(d_model=768, heads=12, batch=8, length=1024),
}

GROWTH = "layers"


class Block(tf.Module):
    """Attention and a feed-forward layer, each beside the identity, layer-normalised before."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        super().__init__(name="block")
        self.width = config.d_model
        self.attention = Attention(config, weights, f"{name}/attention")
        self.norm = weights.ones(f"{name}/norm", self.width)
        self.inner = weights(f"{name}/inner", self.width, 4 * self.width)
        self.outer = weights(f"{name}/outer", 4 * self.width, self.width)

    def __call__(
        self, x: tf.Tensor, mask: tf.Tensor, drop: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        x += drop(self.attention(x, x, mask))
        y = tf.reshape(normalise(x, self.norm), (-1, self.width))
        y = tf.matmul(tf.nn.gelu(tf.matmul(y, self.inner)), self.outer)
        return x + drop(tf.reshape(y, x.shape))


class Network(tf.Module):
    """The weights; a call is (tokens, targets) -> loss."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="gpt")
        c = self.config = config
        self.weights = Weights(c.seed)
        self.embedding = self.weights("embedding", text.VOCABULARY, c.d_model, fan_in=c.d_model)
        self.positions = self.weights("positions", c.length, c.d_model, fan_in=c.d_model)
        self.blocks = [Block(c, self.weights, f"block{i}") for i in range(c.layers)]
        self.norm = self.weights.ones("norm", c.d_model)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def __call__(self, tokens: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        c = self.config
        drop = Dropout(c.dropout, c.seed, self.step.assign_add(1))
        table = tf.convert_to_tensor(self.embedding)
        mask = tf.linalg.band_part(tf.ones((c.length, c.length)), -1, 0)
        x = tf.gather(table, tokens) * c.d_model**0.5 + self.positions
        for block in self.blocks:
            x = self._run(block, x, mask, drop)
        x = tf.reshape(normalise(x, self.norm), (-1, c.d_model))
        logits = tf.matmul(x, table, transpose_b=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(targets, (-1,)), logits)
        return tf.reduce_mean(losses)

    def _run(self, block: Block, x: tf.Tensor, mask: tf.Tensor, drop: Dropout) -> tf.Tensor:
        if not self.config.recompute_grad:
            return block(x, mask, drop)
        return tf.recompute_grad(lambda inputs: block(inputs, mask, drop))(x)


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (tokens, targets)."""
    network = Network(config)
    weights = tuple(network.weights.made)
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
        variables=(*weights, *optimizer.variables, network.step),
        parameters=count(weights),
        tokens=config.batch * config.length,
    )


if __name__ == "__main__":
    command.main("gpt")
