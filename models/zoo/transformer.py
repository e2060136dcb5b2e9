"""An encoder-decoder transformer (Vaswani et al., 2017) that continues plain text, with Adafactor.

The model of the published tables (see `published`), layer-normalised before each part. The encoder
sees a window of text, the decoder continues it byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from models.bench import command
from models.bench.cluster import Spread
from models.data import text
from models.zoo.adafactor import Adafactor
from models.zoo.task import Task, count, recomputed, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    layers: int = size(6, "Layers of the encoder, and as many of the decoder.")
    d_model: int = size(128, "Width of the model.")
    hidden: int = size(512, "Hidden width of the feed-forward layers.")
    heads: int = size(4, "Attention heads.")
    d_head: int = size(32, "Width of a head's keys and values.")
    batch: int = size(8, "Sequences in a batch.")
    length: int = size(128, "Tokens of the encoder's window, and as many of the decoder's.")
    vocabulary: int = size(text.VOCABULARY, "Rows of the embedding; text uses the first 256.")
    dropout: float = size(0.1, "Share of activations dropped after each layer.")
    smoothing: float = size(0.1, "Label smoothing.")
    machines: int = size(0, "Machines of a cluster over which the model is spread; 0 for none.")
    on_hosts: int = size(0, "1 to hold variables on the machines' hosts.")
    recompute_grad: int = size(0, "1 to recompute each part by hand with tf.recompute_grad.")
    learning_rate: float = size(0.0, "Adafactor's step size; 0 for its relative step.")
    seed: int = size(0, "Seed of the weights, the dropout and the batches.")


CONFIGS = {
    "small": Config(),
    "published": Config(
        d_model=256, hidden=1024, heads=8, d_head=128, batch=32, length=256, vocabulary=33792
    ),
}

GROWTH = "layers"


class Transformer(tf.Module):
    """The weights; a call is (source, inputs, targets) -> (loss, what is added to it)."""

    def __init__(self, config: Any, feed_forward: Callable[..., tf.Module]) -> None:
        """
        Args:
          config: a `Config`, or another with its fields.
          feed_forward: makes the last part of each layer of (config, weights, name); a call of that
            takes x and returns what is added to it, and a loss of its own.
        """
        super().__init__(name="transformer")
        c = self.config = config
        self.weights = Weights(config.seed)
        self.spread = Spread(c.machines, bool(c.on_hosts))
        with self.spread.holding(0):
            self.embedding = self.weights("embedding", c.vocabulary, c.d_model, fan_in=c.d_model)
            self.positions = self.weights("positions", c.length, c.d_model, fan_in=c.d_model)
        self.encoder = [self._layer("encoder", i, ["self"], feed_forward) for i in range(c.layers)]
        self.decoder = [
            self._layer("decoder", i, ["self", "encoder"], feed_forward) for i in range(c.layers)
        ]
        with self.spread.holding(0):
            self.encoder_norm = self.weights.ones("encoder/norm", c.d_model)
            self.decoder_norm = self.weights.ones("decoder/norm", c.d_model)
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def _layer(
        self, kind: str, number: int, attentions: list[str], feed_forward: Callable[..., tf.Module]
    ) -> list[tf.Module]:
        name = f"{kind}{number}"
        with self.spread.holding(number):
            parts: list[tf.Module] = [
                Attention(self.config, self.weights, f"{name}/{part}") for part in attentions
            ]
            return [*parts, feed_forward(self.config, self.weights, name)]

    def __call__(
        self, source: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        c = self.config
        drop = Dropout(c.dropout, c.seed, self.step.assign_add(1))
        table = tf.convert_to_tensor(self.embedding)
        causal = tf.linalg.band_part(tf.ones((c.length, c.length)), -1, 0)
        losses = []

        x = drop(self._embed(table, source))
        for i, (attention, feed_forward) in enumerate(self.encoder):
            with self.spread.computing(i):
                x += drop(self._part(lambda y, part=attention: part(y, y, None), x))
                y, loss = self._part(feed_forward, x)
                x += drop(y)
            losses.append(loss)
        memory = normalise(x, self.encoder_norm)

        x = drop(self._embed(table, inputs))
        for i, (attention, reading, feed_forward) in enumerate(self.decoder):
            with self.spread.computing(i):
                x += drop(self._part(lambda y, part=attention: part(y, y, causal), x))
                x += drop(self._part(lambda y, read, part=reading: part(y, read, None), x, memory))
                y, loss = self._part(feed_forward, x)
                x += drop(y)
            losses.append(loss)
        x = normalise(x, self.decoder_norm)

        logits = tf.matmul(tf.reshape(x, (-1, c.d_model)), table, transpose_b=True)
        return self._cross_entropy(logits, targets), tf.add_n(losses)

    def _part(self, part: Callable[..., Any], *inputs: tf.Tensor) -> Any:
        """A part of a layer, recomputed by hand if the configuration says so."""
        return recomputed(part, self.config.recompute_grad)(*inputs)

    def _embed(self, table: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, tokens) * self.config.d_model**0.5 + self.positions

    def _cross_entropy(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Mean cross entropy against the targets, smoothed over the vocabulary."""
        c = self.config
        rest = c.smoothing / c.vocabulary
        labels = tf.one_hot(tf.reshape(targets, (-1,)), c.vocabulary, 1 - c.smoothing + rest, rest)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits))


class Attention(tf.Module):
    """Multi-head attention on layer-normalised queries."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        super().__init__(name="attention")
        self.config = config
        d, width = config.d_model, config.heads * config.d_head
        self.norm = weights.ones(f"{name}/norm", d)
        self.query, self.key, self.value = (
            weights(f"{name}/{part}", d, width) for part in ("query", "key", "value")
        )
        self.out = weights(f"{name}/out", width, d)

    def __call__(self, x: tf.Tensor, memory: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Reads `memory` (of its own sequence: `x`, normalised too); (batch, length, d_model)."""
        is_self = memory is x
        x = normalise(x, self.norm)
        memory = x if is_self else memory
        query = self._split(x, self.query)
        key, value = self._split(memory, self.key), self._split(memory, self.value)

        scores = tf.matmul(query, key, transpose_b=True) * self.config.d_head**-0.5
        if mask is not None:
            scores += (mask - 1.0) * 1e9
        read = tf.matmul(tf.nn.softmax(scores), value)
        read = tf.reshape(tf.transpose(read, (0, 2, 1, 3)), (-1, self.out.shape[0]))
        return tf.reshape(tf.matmul(read, self.out), x.shape)

    def _split(self, x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
        """Projects and splits into heads: (batch, heads, length, d_head)."""
        c = self.config
        projected = tf.matmul(tf.reshape(x, (-1, c.d_model)), weight)
        return tf.transpose(tf.reshape(projected, (-1, c.length, c.heads, c.d_head)), (0, 2, 1, 3))


class FeedForward(tf.Module):
    """Two dense layers with a ReLU between them, on normalised activations."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        super().__init__(name="feed_forward")
        d = config.d_model
        self.norm = weights.ones(f"{name}/feed_forward/norm", d)
        self.inner = weights(f"{name}/feed_forward/inner", d, config.hidden)
        self.outer = weights(f"{name}/feed_forward/outer", config.hidden, d)

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = tf.reshape(normalise(x, self.norm), (-1, x.shape[-1]))
        y = tf.matmul(tf.nn.relu(tf.matmul(y, self.inner)), self.outer)
        return tf.reshape(y, x.shape), tf.zeros(())


def normalise(x: tf.Tensor, scale: tf.Variable) -> tf.Tensor:
    """Layer normalisation with a scale and no bias."""
    mean, variance = tf.nn.moments(x, axes=-1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6) * scale


class Dropout:
    """Dropout from a seed, a count of steps and a count of calls: every run drops the same."""

    def __init__(self, rate: float, seed: int, step: tf.Tensor) -> None:
        self.rate, self.seed, self.step = rate, seed, step
        self.calls = 0

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        if not self.rate:
            return x
        self.calls += 1
        seed = tf.stack([self.step, tf.constant(self.seed * 1000 + self.calls, tf.int64)])
        return tf.nn.experimental.stateless_dropout(x, self.rate, seed)


class Weights:
    """Makes initial weights, each from a seed of its own, and keeps them in order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.made: list[tf.Variable] = []

    def __call__(self, name: str, *shape: int, fan_in: int | None = None) -> tf.Variable:
        """A weight of variance 1 / fan_in; the fan-in is the last but one axis if not given."""
        seed = (self.seed, len(self.made))
        scale = (fan_in or shape[-2]) ** -0.5
        return self._keep(
            name, shape, lambda: tf.random.stateless_normal(shape, seed, stddev=scale)
        )

    def ones(self, name: str, *shape: int) -> tf.Variable:
        """A weight that scales and starts with ones."""
        return self._keep(name, shape, lambda: tf.ones(shape))

    def zeros(self, name: str, *shape: int) -> tf.Variable:
        """A weight that shifts and starts with zeros."""
        return self._keep(name, shape, lambda: tf.zeros(shape))

    def _keep(
        self, name: str, shape: tuple[int, ...], initial: Callable[[], tf.Tensor]
    ) -> tf.Variable:
        """A variable whose initial value is computed where the variable is made."""
        self.made.append(tf.Variable(initial, shape=shape, dtype=tf.float32, name=name))
        return self.made[-1]


def build(config: Config) -> Task:
    """The model's variables and its training step, which takes (source, inputs, targets)."""
    return task(config, FeedForward)


def task(config: Any, feed_forward: Callable[..., tf.Module]) -> Task:
    """Trains a transformer with feed-forward parts of some kind."""
    model = Transformer(config, feed_forward)
    weights = tuple(model.weights.made)
    optimizer = Adafactor(weights, config.learning_rate or None)

    def step(source: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss, balance = model(source, inputs, targets)
            total = loss + balance
        optimizer.apply(tape.gradient(total, weights))
        return loss

    def spread_step(source: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """The same, each gradient where its operation is, as only graphs can have it."""
        with model.spread.computing(0):
            loss, balance = model(source, inputs, targets)
            gradients = tf.compat.v1.gradients(
                loss + balance, weights, colocate_gradients_with_ops=True
            )
            optimizer.apply(gradients)
            return loss

    return Task(
        step=spread_step if config.machines else step,
        batches=text.pairs(config.batch, config.length, config.length, config.seed),
        variables=(*weights, *optimizer.state, model.step),
        parameters=count(weights),
        tokens=config.batch * config.length,
    )


if __name__ == "__main__":
    command.main("transformer")
