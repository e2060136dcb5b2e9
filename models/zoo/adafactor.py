"""Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235), without momentum.

The second moment of a matrix is kept as the means of its rows and its columns, so the optimizer's
state is small beside the weights; a tensor of more axes is a batch of matrices over its last two.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_EPSILON = 1e-30  # added to squared gradients, the paper's epsilon_1
_LEAST_SCALE = 1e-3  # least RMS of a weight that a relative step is scaled by, epsilon_2


class Adafactor(tf.Module):
    """Factored second moments, updates of an RMS of 1 at most, steps relative to the weights.

    Attributes:
      steps: how many updates were made, a variable.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        learning_rate: float | None = None,
        name: str = "adafactor",
    ) -> None:
        """Makes the slots of `variables`.

        Args:
          variables: what will be trained.
          learning_rate: size of a step; None for the paper's relative step, which is
            min(0.01, 1 / sqrt(steps)) times the RMS of the weight.
          name: prefix of the slots' names.
        """
        super().__init__(name)
        self.learning_rate = learning_rate
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps")
        self.weights = tuple(variables)
        self.slots = tuple(_make_slots(variable) for variable in variables)

    @property
    def state(self) -> tuple[tf.Variable, ...]:
        """The optimizer's own variables: its count of steps and its slots."""
        return (self.steps, *(slot for slots in self.slots for slot in slots))

    def apply(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> None:
        """Updates each variable by its gradient, given in the order of the variables."""
        step = tf.cast(self.steps.assign_add(1), tf.float32)
        decay = 1.0 - step**-0.8
        rate = tf.minimum(1e-2, step**-0.5) if self.learning_rate is None else self.learning_rate

        for weight, gradient, slots in zip(self.weights, gradients, self.slots, strict=True):
            with tf.device(gradient.device), tf.name_scope(weight.name.split(":")[0]):
                scale = rate
                if self.learning_rate is None:
                    scale = rate * tf.maximum(_LEAST_SCALE, _rms(weight))
                update = _normalise(tf.convert_to_tensor(gradient), slots, decay)
                weight.assign_sub(update * (scale / tf.maximum(1.0, _rms(update))))


def _make_slots(variable: tf.Variable) -> tuple[tf.Variable, ...]:
    shape = variable.shape.as_list()
    name = variable.name.split(":")[0]
    shapes = [("moment", shape)]
    if len(shape) >= 2:
        shapes = [("rows", shape[:-1]), ("columns", shape[:-2] + shape[-1:])]
    with tf.device(variable.device):
        return tuple(
            tf.Variable(tf.zeros(shape), trainable=False, name=f"{name}/{kind}")
            for kind, shape in shapes
        )


def _normalise(gradient: tf.Tensor, slots: tuple[tf.Variable, ...], decay: tf.Tensor) -> tf.Tensor:
    """The gradient divided by the root of its second moment, which it brings up to date."""
    square = tf.square(gradient)
    if len(slots) == 1:
        return gradient * tf.math.rsqrt(_blend(slots[0], square + _EPSILON, decay))

    row = _blend(slots[0], tf.reduce_mean(square, axis=-1) + _EPSILON, decay)
    column = _blend(slots[1], tf.reduce_mean(square, axis=-2) + _EPSILON, decay)
    whole = tf.reduce_mean(row, axis=-1, keepdims=True)
    update = gradient * tf.math.rsqrt(row / whole)[..., :, tf.newaxis]
    return update * tf.math.rsqrt(column)[..., tf.newaxis, :]


def _blend(slot: tf.Variable, value: tf.Tensor, decay: tf.Tensor) -> tf.Tensor:
    """Moves the running mean in `slot` towards `value`; what it is then."""
    mean = decay * slot + (1.0 - decay) * value
    slot.assign(mean)
    return mean


def _rms(tensor: tf.Tensor | tf.Variable) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(tensor)))
