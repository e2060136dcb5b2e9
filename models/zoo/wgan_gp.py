"""A Wasserstein GAN with gradient penalty (Gulrajani et al., 2017; residual blocks) on digits.

A step trains the critic some times, each on a batch of its own, and the generator once. The penalty
is a gradient's norm, so the critic's own gradient is of the second order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras as keras

from models.bench import command
from models.data import images
from models.zoo.task import Task, count, recomputed, size
from models.zoo.transformer import Weights


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    width: int = size(16, "Channels next to the picture; each block doubles them, up to 8 times.")
    blocks: int = size(4, "Residual blocks; each doubles the side of a picture that begins as 4.")
    batch: int = size(16, "Pictures in a batch.")
    noise: int = size(128, "Random numbers from which a picture is made.")
    critic_steps: int = size(2, "Updates of the critic for each of the generator.")
    penalty: float = size(10.0, "Weight of the gradient penalty.")
    recompute_grad: int = size(0, "1 to recompute blocks by hand, but where the penalty is.")
    learning_rate: float = size(1e-4, "Adam's step size.")
    seed: int = size(0, "Seed of the weights, the noise and the batches.")

    @property
    def side(self) -> int:
        """Height and width of a picture."""
        return 4 * 2**self.blocks

    def channels(self, level: int) -> int:
        """Channels of features whose side is that of the picture halved `level` times."""
        return self.width * min(8, 2**level)


CONFIGS = {"small": Config(), "published": Config(width=64, batch=64, critic_steps=5)}

GROWTH = "width"

_CHANNELS = 3


class Convolution(tf.Module):
    """A convolution with bias that keeps the side."""

    def __init__(self, weights: Weights, name: str, side: int, before: int, after: int) -> None:
        super().__init__(name="convolution")
        self.kernel = weights(f"{name}/kernel", side, side, before, after, fan_in=side**2 * before)
        self.bias = weights.zeros(f"{name}/bias", after)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, self.kernel, 1, "SAME") + self.bias


class Norm(tf.Module):
    """Normalises over some axes, then scales and shifts each channel.

    Over the batch and the picture in the generator, over each picture and its channels in the
    critic, whose gradients must not mix pictures.
    """

    def __init__(self, weights: Weights, name: str, width: int, axes: Sequence[int]) -> None:
        super().__init__(name="norm")
        self.scale = weights.ones(f"{name}/scale", width)
        self.shift = weights.zeros(f"{name}/shift", width)
        self.axes = tuple(axes)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, self.axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5) * self.scale + self.shift


class Block(tf.Module):
    """Two normalised convolutions beside a 1 x 1 one; the side is doubled first, or halved last."""

    def __init__(self, weights: Weights, name: str, before: int, after: int, is_up: bool) -> None:
        super().__init__(name="block")
        self.is_up = is_up
        middle, axes = (after, (0, 1, 2)) if is_up else (before, (1, 2, 3))
        self.norms = [
            Norm(weights, f"{name}/norm{i}", width, axes)
            for i, width in enumerate((before, middle))
        ]
        self.convolutions = [
            Convolution(weights, f"{name}/convolution0", 3, before, middle),
            Convolution(weights, f"{name}/convolution1", 3, middle, after),
        ]
        self.shortcut = Convolution(weights, f"{name}/shortcut", 1, before, after)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(self.norms[0](x))
        if self.is_up:
            x, y = doubled(x), doubled(y)
        y = tf.nn.relu(self.norms[1](self.convolutions[0](y)))
        y = self.convolutions[1](y)
        if not self.is_up:
            x, y = halved(x), halved(y)
        return self.shortcut(x) + y


def doubled(x: tf.Tensor) -> tf.Tensor:
    """Each dot four times."""
    batch, height, width, channels = x.shape
    x = tf.reshape(x, (batch, height, 1, width, 1, channels))
    x = tf.tile(x, (1, 1, 2, 1, 2, 1))
    return tf.reshape(x, (batch, 2 * height, 2 * width, channels))


def halved(x: tf.Tensor) -> tf.Tensor:
    """The mean of each four dots."""
    batch, height, width, channels = x.shape
    x = tf.reshape(x, (batch, height // 2, 2, width // 2, 2, channels))
    return tf.reduce_mean(x, (2, 4))


class Generator(tf.Module):
    """Makes pictures, (batch, side, side, 3) from -1 to 1, of noise, (batch, noise)."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="generator")
        c = self.config = config
        self.weights = w = Weights(c.seed)
        first = c.channels(c.blocks)
        self.project = w("project", c.noise, 16 * first)
        self.blocks = [
            Block(w, f"block{level}", c.channels(level), c.channels(level - 1), is_up=True)
            for level in range(c.blocks, 0, -1)
        ]
        self.norm = Norm(w, "norm", c.channels(0), (0, 1, 2))
        self.last = Convolution(w, "last", 3, c.channels(0), _CHANNELS)

    def __call__(self, noise: tf.Tensor) -> tf.Tensor:
        x = tf.reshape(tf.matmul(noise, self.project), (noise.shape[0], 4, 4, -1))
        for block in self.blocks:
            x = recomputed(block, self.config.recompute_grad)(x)
        return tf.tanh(self.last(tf.nn.relu(self.norm(x))))


class Critic(tf.Module):
    """Rates pictures: (batch, side, side, 3) to (batch,)."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="critic")
        c = config
        self.weights = w = Weights(c.seed + 1)
        self.first = Convolution(w, "first", 3, _CHANNELS, c.channels(0))
        self.blocks = [
            Block(w, f"block{level}", c.channels(level - 1), c.channels(level), is_up=False)
            for level in range(1, c.blocks + 1)
        ]
        self.rate = w("rate", 16 * c.channels(c.blocks), 1)

    def __call__(self, x: tf.Tensor, is_recomputed: bool = False) -> tf.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = recomputed(block, is_recomputed)(x)
        return tf.reshape(tf.matmul(tf.reshape(x, (x.shape[0], -1)), self.rate), (-1,))


def drawn(
    number: tf.Variable, seed: int, kind: int, shape: tuple[int, ...], maker: Callable[..., Any]
) -> tf.Tensor:
    """Numbers of a shape, others in each step and of each kind."""
    return maker(shape, tf.stack([number, tf.constant(seed * 1000 + kind, tf.int64)]))


def excess_of_slope(critic: Critic, pictures: tf.Tensor) -> tf.Tensor:
    """How far the critic's gradient at each picture is from the norm of one, squared: (batch,)."""
    with tf.GradientTape() as tape:
        tape.watch(pictures)
        rating = critic(pictures)
    slope = tf.reduce_sum(tf.square(tape.gradient(rating, pictures)), (1, 2, 3))
    return tf.square(tf.sqrt(slope + 1e-12) - 1.0)


def build(config: Config) -> Task:
    """Both networks' variables and the step, which takes one batch of pictures for each update.

    The step returns the critic's loss, which is near the penalty's weight at first.
    """
    generator, critic = Generator(config), Critic(config)
    networks = [tuple(network.weights.made) for network in (generator, critic)]
    optimizers = [keras.optimizers.Adam(config.learning_rate, 0.0, 0.9) for _ in networks]
    for optimizer, weights in zip(optimizers, networks, strict=True):
        optimizer.build(weights)
    number = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    random = functools.partial(drawn, number, config.seed)

    def fakes(kind: int) -> tf.Tensor:
        noise = (config.batch, config.noise)
        return generator(random(kind, noise, tf.random.stateless_normal))

    def rate(pictures: tf.Tensor) -> tf.Tensor:
        return critic(pictures, bool(config.recompute_grad))

    def critic_loss(real: tf.Tensor, kind: int) -> tf.Tensor:
        fake = fakes(2 * kind)
        share = random(2 * kind + 1, (config.batch, 1, 1, 1), tf.random.stateless_uniform)
        mixed = real + share * (fake - real)
        excess = excess_of_slope(critic, mixed)
        distance = tf.reduce_mean(rate(real)) - tf.reduce_mean(rate(fake))
        return config.penalty * tf.reduce_mean(excess) - distance

    def update(which: int, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        weights = networks[which]
        gradients = tape.gradient(loss, weights)
        optimizers[which].apply_gradients(zip(gradients, weights, strict=True))

    def step(*pictures: tf.Tensor) -> tf.Tensor:
        number.assign_add(1)
        for kind, real in enumerate(pictures):
            with tf.GradientTape() as tape:
                loss = critic_loss(real, kind)
            update(1, tape, loss)
        with tf.GradientTape() as tape:
            disliked = -tf.reduce_mean(rate(fakes(2 * len(pictures))))
        update(0, tape, disliked)
        return loss

    one = images.coloured(config.batch, config.side, config.seed)
    return Task(
        step=step,
        batches=one.batch(config.critic_steps).map(
            lambda batches: tuple(batches[i] for i in range(config.critic_steps))
        ),
        variables=(
            *networks[0],
            *networks[1],
            *(v for o in optimizers for v in o.variables),
            number,
        ),
        parameters=sum(map(count, networks)),
        tokens=config.batch * config.critic_steps,
    )


if __name__ == "__main__":
    command.main("wgan_gp")
