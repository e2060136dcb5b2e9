"""DeepSpeech (version 0.5.1): dense layers, an LSTM unrolled when it is traced, CTC; Adam."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tf_keras as keras

from models.bench import command
from models.data import speech
from models.zoo.lstm import cell
from models.zoo.task import Task, count, recomputed, size
from models.zoo.transformer import Weights


@dataclass(frozen=True)
class Config:
    """Sizes and rates of the model; each is a flag."""

    length: int = size(64, "Frames of sound, 20 ms each, over which the LSTM is unrolled.")
    width: int = size(256, "Width of the dense layers and of the LSTM's state.")
    batch: int = size(16, "Clips in a batch.")
    clip: float = size(20.0, "Where the ReLU of the dense layers is cut off.")
    recompute_grad: int = size(0, "Moments that tf.recompute_grad recomputes together; 0: none.")
    learning_rate: float = size(1e-3, "Adam's step size.")
    seed: int = size(0, "Seed of the weights and the batches.")


CONFIGS = {"small": Config(), "published": Config(length=400, width=2048, batch=128)}

GROWTH = "length"

_BLANK = speech.CLASSES - 1


class Network(tf.Module):
    """The weights; a call is frames, (batch, length, 494), to logits, (length, batch, 29)."""

    def __init__(self, config: Config) -> None:
        super().__init__(name="deepspeech")
        c = self.config = config
        self.weights = w = Weights(c.seed)
        self.before = [
            (w(f"dense{i}", width, c.width), w.zeros(f"bias{i}", c.width))
            for i, width in enumerate((speech.INPUTS, c.width, c.width))
        ]
        self.kernel = w("kernel", 2 * c.width, 4 * c.width)
        self.bias = w.zeros("bias", 4 * c.width)
        self.after = w("dense3", c.width, c.width), w.zeros("bias3", c.width)
        self.out = w("out", c.width, speech.CLASSES), w.zeros("out_bias", speech.CLASSES)

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        c = self.config
        x = tf.reshape(tf.transpose(frames, (1, 0, 2)), (-1, speech.INPUTS))
        for layer in self.before:
            x = self._dense(x, layer)

        memory = state = tf.zeros((c.batch, c.width))
        states, together = [], c.recompute_grad or c.length
        for start in range(0, c.length, together):
            moments = x[start * c.batch : (start + together) * c.batch]
            run = recomputed(self._moments, c.recompute_grad)
            made, memory, state = run(moments, memory, state)
            states.append(made)

        x = self._dense(tf.concat(states, axis=0), self.after)
        weight, bias = self.out
        return tf.reshape(tf.matmul(x, weight) + bias, (c.length, c.batch, speech.CLASSES))

    def _moments(
        self, x: tf.Tensor, memory: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The LSTM over some moments: its states one after the other, its last memory and state."""
        kernel, states = tf.convert_to_tensor(self.kernel), []
        for moment in tf.split(x, x.shape[0] // self.config.batch):
            memory, state = cell(moment, memory, state, kernel, self.bias)
            states.append(state)
        return tf.concat(states, axis=0), memory, state

    def _dense(self, x: tf.Tensor, layer: tuple[tf.Variable, tf.Variable]) -> tf.Tensor:
        weight, bias = layer
        return tf.minimum(tf.nn.relu(tf.matmul(x, weight) + bias), self.config.clip)


def build(config: Config) -> Task:
    """The network's variables and its training step, which takes (frames, letters, count)."""
    print(f"  deepspeech hears {speech.source()}")
    network = Network(config)
    weights = tuple(network.weights.made)
    optimizer = keras.optimizers.Adam(config.learning_rate)
    optimizer.build(weights)
    lengths = tf.fill((config.batch,), config.length)

    def step(frames: tf.Tensor, letters: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network(frames)
            loss = tf.reduce_mean(_ctc(logits, letters, counts, lengths))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return Task(
        step=step,
        batches=speech.batches(config.batch, config.length, config.seed),
        variables=(*weights, *optimizer.variables),
        parameters=count(weights),
        tokens=config.batch * config.length,
    )


def _ctc(logits: tf.Tensor, letters: tf.Tensor, counts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Negative log likelihood of each clip's letters, (batch,)."""
    places = tf.where(tf.sequence_mask(counts, letters.shape[1]))
    shape = tf.cast(tf.shape(letters), tf.int64)
    labels = tf.SparseTensor(places, tf.gather_nd(letters, places), shape)
    return tf.nn.ctc_loss(labels, logits, None, lengths, blank_index=_BLANK)


if __name__ == "__main__":
    command.main("deepspeech")
