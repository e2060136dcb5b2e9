"""The transformer with mixtures of experts for feed-forward layers.

The model of the published tables (see `published`): top-2 gating with a load balancing loss as in
GShard (arXiv 2006.16668) and Mesh TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from models.bench import command
from models.bench.cluster import Spread
from models.zoo import transformer
from models.zoo.task import Task, size
from models.zoo.transformer import Weights, normalise


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes and rates of the model; each is a flag."""

    hidden: int = size(1024, "Hidden width of an expert.")
    experts: int = size(4, "Experts in each of the mixture-of-experts layers.")
    group: int = size(1024, "Tokens that compete for the experts' capacity; at most a batch.")
    capacity_factor: float = size(1.25, "Room of the experts over the tokens of a group.")
    balance: float = size(1e-2, "Weight of the load balancing loss.")
    split: int = size(0, "Experts of a layer that are one variable; 0 for all of them.")
    gathered: int = size(0, "1 to gather each expert's tokens, without capacity and padding.")

    @property
    def tokens_per_group(self) -> int:
        """Tokens that are gated together."""
        return min(self.group, self.batch * self.length)

    @property
    def capacity(self) -> int:
        """Tokens that an expert takes from a group, at least 4 as in Mesh TensorFlow."""
        share = int(self.tokens_per_group * self.capacity_factor / self.experts)
        return min(self.tokens_per_group, max(4, share))

    @property
    def parts(self) -> list[int]:
        """Experts in each of the variables that hold a layer's; every machine gets some."""
        each = min(self.split or self.experts, -(-self.experts // max(1, self.machines)))
        whole, rest = divmod(self.experts, each)
        return [each] * whole + [rest] * bool(rest)


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


class Experts(tf.Module):
    """A mixture-of-experts layer: each token goes to its two best experts.

    Experts have a capacity, up to which they are padded; or their tokens are gathered, as many as
    there are.
    """

    def __init__(self, config: Config, weights: Weights, name: str) -> None:
        super().__init__(name="experts")
        c = self.config = config
        self.norm = weights.ones(f"{name}/experts/norm", c.d_model)
        self.gate = weights(f"{name}/experts/gate", c.d_model, c.experts)
        self.spread = Spread(c.machines, bool(c.on_hosts))
        self.parts = [self._part(weights, name, part) for part in range(len(c.parts))]

    def _part(self, weights: Weights, name: str, part: int) -> tuple[tf.Variable, tf.Variable]:
        c = self.config
        with self.spread.holding(part):
            return (
                weights(f"{name}/experts/inner{part}", c.parts[part], c.d_model, c.hidden),
                weights(f"{name}/experts/outer{part}", c.parts[part], c.hidden, c.d_model),
            )

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The layer's output, of the shape of `x`, and its load balancing loss."""
        c = self.config
        tokens = tf.reshape(normalise(x, self.norm), (-1, c.tokens_per_group, c.d_model))
        gates = tf.nn.softmax(tf.einsum("gsd,de->gse", tokens, self.gate))
        done, loss = (self._gathered if c.gathered else self._padded)(tokens, gates)
        return tf.reshape(done, x.shape), c.balance * loss

    def _padded(self, tokens: tf.Tensor, gates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """By the experts as room permits; a token without a seat gets nothing."""
        c = self.config
        dispatch, combine, loss = route(gates, c.capacity)
        room = (-1, c.experts, c.capacity, c.d_model)
        sent = tf.reshape(tf.matmul(dispatch, tokens, transpose_a=True), room)
        sent = tf.reshape(tf.transpose(sent, (1, 0, 2, 3)), (c.experts, -1, c.d_model))
        shares = tf.split(sent, c.parts) if len(c.parts) > 1 else [sent]
        answers = []
        for part, (share, (inner, outer)) in enumerate(zip(shares, self.parts, strict=True)):
            with self.spread.computing(part):
                answers.append(tf.matmul(tf.nn.relu(tf.matmul(share, inner)), outer))
        done = tf.concat(answers, axis=0) if len(c.parts) > 1 else answers[0]
        done = tf.transpose(tf.reshape(done, (c.experts, -1, c.capacity, c.d_model)), (1, 0, 2, 3))
        done = tf.reshape(done, (-1, c.experts * c.capacity, c.d_model))
        return tf.matmul(combine, done), loss

    def _gathered(self, tokens: tf.Tensor, gates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """By the experts without capacity: each takes the tokens that chose it, one by one."""
        c = self.config
        first, second, loss = choose(gates)
        tokens = tf.reshape(tokens, (-1, c.d_model))
        gates = tf.reshape(gates, (-1, c.experts)) * tf.reshape(first + second, (-1, c.experts))
        shares = gates / (tf.reduce_sum(gates, axis=-1, keepdims=True) + 1e-9)
        done = tf.zeros_like(tokens)
        experts = (pair for part in self.parts for pair in zip(*map(tf.unstack, part), strict=True))
        for share, (inner, outer) in zip(tf.unstack(shares, axis=1), experts, strict=True):
            rows = tf.where(share > 0.0)
            answer = tf.matmul(tf.nn.relu(tf.matmul(tf.gather_nd(tokens, rows), inner)), outer)
            weighted = answer * tf.gather_nd(share, rows)[:, tf.newaxis]
            done = tf.tensor_scatter_nd_add(done, rows, weighted)
        return done, loss


def choose(gates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The two best experts of each token, one-hot as `gates`, and the load balancing loss."""
    experts = gates.shape[-1]
    first = tf.one_hot(tf.argmax(gates, axis=-1), experts)
    second = tf.one_hot(tf.argmax(gates * (1.0 - first), axis=-1), experts)
    density, proxy = tf.reduce_mean(first, axis=1), tf.reduce_mean(gates, axis=1)
    return first, second, tf.reduce_mean(density * proxy) * experts**2


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
    first, second, loss = choose(gates)
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


def build(config: Config) -> Task:
    """The model's variables and its training step, which takes (source, inputs, targets)."""
    if config.batch * config.length % config.tokens_per_group:
        raise ValueError(
            f"batch * length = {config.batch * config.length} tokens do not make whole groups of "
            f"{config.tokens_per_group}; choose --group to divide them"
        )
    return transformer.task(config, Experts)


if __name__ == "__main__":
    command.main("moe_transformer")
