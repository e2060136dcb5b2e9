"""An encoder-decoder transformer whose feed-forward layers are mixtures of experts.

The model of the published tables (see `published`), in TensorFlow alone: top-2 gating with a load
balancing loss as in GShard (arXiv 2006.16668) and Mesh TensorFlow, Adafactor, and a task on plain
text: the encoder sees a window of text, the decoder continues it byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from models import text, train
from models.adafactor import Adafactor
from models.task import Task, count, size


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    experts: int = size(4, "Experts in each of the mixture-of-experts layers.")
    layers: int = size(6, "Layers of the encoder, and as many of the decoder.")
    d_model: int = size(128, "Width of the model.")
    hidden: int = size(1024, "Hidden width of an expert.")
    heads: int = size(4, "Attention heads.")
    d_head: int = size(32, "Width of a head's keys and values.")
    batch: int = size(8, "Sequences in a batch.")
    length: int = size(128, "Tokens of the encoder's window, and as many of the decoder's.")
    vocabulary: int = size(text.VOCABULARY, "Rows of the embedding; text uses the first 256.")
    group: int = size(1024, "Tokens that compete for the experts' capacity; at most a batch.")
    capacity_factor: float = size(1.25, "Room of the experts over the tokens of a group.")
    balance: float = size(1e-2, "Weight of the load balancing loss.")
    dropout: float = size(0.1, "Share of activations dropped after each layer.")
    smoothing: float = size(0.1, "Label smoothing.")
    learning_rate: float = size(0.0, "Adafactor's step size; 0 for its relative step.")
    seed: int = size(0, "Seed of the weights, the dropout and the batches.")

    @property
    def tokens_per_group(self) -> int:
        """Tokens that are gated together."""
        return min(self.group, self.batch * self.length)

    @property
    def capacity(self) -> int:
        """Tokens that an expert takes from a group, at least 4 as in Mesh TensorFlow."""
        share = int(self.tokens_per_group * self.capacity_factor / self.experts)
        return min(self.tokens_per_group, max(4, share))


CONFIGS = {
    "small": Config(),
    "published": Config(
        experts=32,
        d_model=256,
        hidden=4096,
        heads=8,
        d_head=128,
        batch=16,
        length=256,
        vocabulary=33792,
    ),
}

GROWTH = "experts"


class Transformer(tf.Module):
    """The weights; a call is (source, inputs, targets) -> (loss, load balancing loss)."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="transformer")
        c = self.config = config
        self.weights = Weights(config.seed)
        self.embedding = self.weights("embedding", c.vocabulary, c.d_model, fan_in=c.d_model)
        self.positions = self.weights("positions", c.length, c.d_model, fan_in=c.d_model)
        self.encoder = [self._layer(f"encoder{i}", is_decoder=False) for i in range(c.layers)]
        self.decoder = [self._layer(f"decoder{i}", is_decoder=True) for i in range(c.layers)]
        self.encoder_norm = self.weights.ones("encoder/norm", c.d_model)
        self.decoder_norm = self.weights.ones("decoder/norm", c.d_model)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def _layer(self, name: str, is_decoder: bool) -> list[tf.Module]:
        attentions = ["self", "encoder"] if is_decoder else ["self"]
        parts: list[tf.Module] = [
            Attention(self.config, self.weights, f"{name}/{kind}") for kind in attentions
        ]
        return [*parts, Experts(self.config, self.weights, f"{name}/experts")]

    def __call__(
        self, source: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        c = self.config
        drop = Dropout(c.dropout, c.seed, self.step.assign_add(1))
        table = tf.convert_to_tensor(self.embedding)
        causal = tf.linalg.band_part(tf.ones((c.length, c.length)), -1, 0)
        balance = []

        x = drop(self._embed(table, source))
        for attention, experts in self.encoder:
            x += drop(attention(x, x, None))
            y, loss = experts(x)
            x += drop(y)
            balance.append(loss)
        memory = normalise(x, self.encoder_norm)

        x = drop(self._embed(table, inputs))
        for attention, reading, experts in self.decoder:
            x += drop(attention(x, x, causal))
            x += drop(reading(x, memory, None))
            y, loss = experts(x)
            x += drop(y)
            balance.append(loss)
        x = normalise(x, self.decoder_norm)

        logits = tf.matmul(tf.reshape(x, (-1, c.d_model)), table, transpose_b=True)
        return self._cross_entropy(logits, targets), tf.add_n(balance)

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


class Experts(tf.Module):
    """A mixture-of-experts layer: each token goes to its two best experts, as room permits."""

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        super().__init__(name="experts")
        c = self.config = config
        self.norm = weights.ones(f"{name}/norm", c.d_model)
        self.gate = weights(f"{name}/gate", c.d_model, c.experts)
        self.inner = weights(f"{name}/inner", c.experts, c.d_model, c.hidden)
        self.outer = weights(f"{name}/outer", c.experts, c.hidden, c.d_model)

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The layer's output, of the shape of `x`, and its load balancing loss."""
        c = self.config
        tokens = tf.reshape(normalise(x, self.norm), (-1, c.tokens_per_group, c.d_model))
        gates = tf.nn.softmax(tf.einsum("gsd,de->gse", tokens, self.gate))
        dispatch, combine, loss = route(gates, c.capacity)

        room = (-1, c.experts, c.capacity, c.d_model)
        sent = tf.reshape(tf.matmul(dispatch, tokens, transpose_a=True), room)
        sent = tf.reshape(tf.transpose(sent, (1, 0, 2, 3)), (c.experts, -1, c.d_model))
        done = tf.matmul(tf.nn.relu(tf.matmul(sent, self.inner)), self.outer)
        done = tf.transpose(tf.reshape(done, (c.experts, -1, c.capacity, c.d_model)), (1, 0, 2, 3))
        done = tf.reshape(done, (-1, c.experts * c.capacity, c.d_model))

        return tf.reshape(tf.matmul(combine, done), x.shape), c.balance * loss


def route(gates: tf.Tensor, capacity: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Top-2 gating with a capacity, as in Mesh TensorFlow (second policy "all").

    First choices are seated before second ones, each in the order of the tokens; a token that finds
    no seat is passed over.

    Args:
      gates: probabilities, (groups, tokens, experts).
      capacity: seats of an expert for each group.

    Returns:
      dispatch: (groups, tokens, experts * capacity), 1 where a token takes a seat.
      combine: the same places with the weights of the experts' answers.
      loss: the load balancing loss, 1 where the load is even.
    """
    experts = gates.shape[-1]
    first = tf.one_hot(tf.argmax(gates, axis=-1), experts)
    second = tf.one_hot(tf.argmax(gates * (1.0 - first), axis=-1), experts)
    density, proxy = tf.reduce_mean(first, axis=1), tf.reduce_mean(gates, axis=1)
    loss = tf.reduce_mean(density * proxy) * experts**2

    taken = tf.reduce_sum(first, axis=1, keepdims=True)
    seats = (
        _seat(first, tf.cumsum(first, axis=1, exclusive=True), capacity),
        _seat(second, tf.cumsum(second, axis=1, exclusive=True) + taken, capacity),
    )
    weights = [tf.reduce_sum(gates * choice, axis=-1, keepdims=True) for choice in (first, second)]
    total = weights[0] + weights[1] + 1e-9
    combine = seats[0] * (weights[0] / total) + seats[1] * (weights[1] / total)
    return seats[0] + seats[1], combine, loss


def _seat(choice: tf.Tensor, place: tf.Tensor, capacity: int) -> tf.Tensor:
    """One-hot seats of the chosen experts; all zero for a token whose place is past capacity."""
    expert = tf.argmax(choice, axis=-1, output_type=tf.int32)
    place = tf.cast(tf.reduce_sum(choice * place, axis=-1), tf.int32)
    seat = tf.where(place < capacity, expert * capacity + place, -1)
    return tf.one_hot(seat, choice.shape[-1] * capacity)


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

    def _keep(
        self, name: str, shape: tuple[int, ...], initial: Callable[[], tf.Tensor]
    ) -> tf.Variable:
        """A variable whose initial value is computed where the variable is made."""
        self.made.append(tf.Variable(initial, shape=shape, dtype=tf.float32, name=name))
        return self.made[-1]


def build(config: Config) -> Task:
    """The model's variables and its training step, which takes (source, inputs, targets)."""
    if config.batch * config.length % config.tokens_per_group:
        raise ValueError(
            f"batch * length = {config.batch * config.length} tokens do not make whole groups of "
            f"{config.tokens_per_group}; choose --group to divide them"
        )
    model = Transformer(config)
    weights = tuple(model.weights.made)
    optimizer = Adafactor(weights, config.learning_rate or None)

    def step(source: tf.Tensor, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss, balance = model(source, inputs, targets)
            total = loss + balance
        optimizer.apply(tape.gradient(total, weights))
        return loss

    return Task(
        step=step,
        batches=text.pairs(config.batch, config.length, config.length, config.seed),
        variables=(*weights, *optimizer.state, model.step),
        parameters=count(weights),
        tokens=config.batch * config.length,
    )


if __name__ == "__main__":
    train.main("moe_transformer")
