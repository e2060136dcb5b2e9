"""Recommenders: embeddings with sparse gradients, under every optimizer of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, dataset, integers, normals

_PEOPLE, _THINGS, _WIDTH, _BATCH = 20_000, 30_000, 32, 4096

KERAS3 = (
    *("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"),
    *("Lion", "Lamb", "Adafactor"),
)
TF_KERAS = ("SGD", "Adam", "Adagrad", "RMSprop", "Ftrl", "Lion")


def _factors(keras: Any, optimizer: Any) -> Work:
    """People, things and their contexts as vectors, and an MLP that says how well they go."""
    layers = keras.layers
    people, things = layers.Embedding(_PEOPLE, _WIDTH), layers.Embedding(_THINGS, _WIDTH)
    layers_above = [layers.Dense(256, "relu"), layers.Dense(128, "relu"), layers.Dense(1)]
    score = keras.Sequential(layers_above)

    @tf.function
    def step(person, basket, rating):
        with tf.GradientTape() as tape:
            bought = tf.reshape(things(basket), [_BATCH, -1])
            given = score(tf.concat([people(person), bought], 1))
            loss = tf.reduce_mean((given - rating) ** 2)
        networks = (people, things, score)
        variables = [v for one in networks for v in one.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    drawn = integers(_BATCH, below=_PEOPLE), integers(_BATCH, 16, below=_THINGS)
    return Work(step, batches(*drawn, normals(_BATCH, 1)))


def _under(library: str, name: str) -> Callable[[], Work]:
    def build() -> Work:
        if library == "tf-keras":
            import tf_keras as keras
        else:
            import keras
        return _factors(keras, getattr(keras.optimizers, name)(1e-2))

    return build


for _name in KERAS3:
    case("keras", name=f"keras3.{_name.lower()}")(_under("keras", _name))
for _name in TF_KERAS:
    case("tf-keras", legacy_keras=True, name=f"tf_keras.{_name.lower()}")(_under("tf-keras", _name))


@case("tensorflow-recommenders", legacy_keras=True)
def retrieval() -> Work:
    """Two towers, and negatives from the batch."""
    import tensorflow_recommenders as tfrs
    import tf_keras as keras

    def tower(count: int) -> Any:
        layers = keras.layers
        return keras.Sequential([layers.Embedding(count, 64), layers.Dense(64, "relu")])

    class Towers(tfrs.Model):
        def __init__(self) -> None:
            super().__init__()
            self.people, self.things = tower(_PEOPLE), tower(_THINGS)
            self.task = tfrs.tasks.Retrieval()

        def compute_loss(self, inputs, training=False):
            person, thing = inputs
            return self.task(self.people(person), self.things(thing), compute_metrics=False)

    model = Towers()
    model.compile(keras.optimizers.Adagrad(0.1))
    step = tf.function(lambda *batch: model.train_step(batch)["loss"])
    drawn = integers(2048, below=_PEOPLE), integers(2048, below=_THINGS)
    return Work(step, iter(dataset(*drawn)))


@case("tensorflow-recommenders", legacy_keras=True)
def deep_and_cross() -> Work:
    """Crossed features of many columns."""
    import tensorflow_recommenders as tfrs
    import tf_keras as keras

    layers = keras.layers
    columns = [layers.Embedding(2000, 16) for _ in range(20)]
    crosses = [tfrs.layers.dcn.Cross(projection_dim=64) for _ in range(3)]
    deep = keras.Sequential([layers.Dense(256, "relu"), layers.Dense(1)])
    optimizer = keras.optimizers.legacy.Adam(1e-3)

    @tf.function
    def step(ids, clicked):
        with tf.GradientTape() as tape:
            parts = [one(ids[:, place]) for place, one in enumerate(columns)]
            x = start = tf.concat(parts, 1)
            for cross in crosses:
                x = cross(start, x)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(clicked, deep(x))
            loss = tf.reduce_mean(losses)
        variables = [v for one in (*columns, *crosses, deep) for v in one.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def clicks(random):
        return random.integers(0, 2, [_BATCH, 1]).astype("float32")

    return Work(step, batches(integers(_BATCH, 20, below=2000), clicks))


@case("deepctr", legacy_keras=True)
def deepfm() -> Work:
    """DeepFM by deepctr: a model made of feature columns."""
    import tf_keras as keras
    from deepctr.feature_column import DenseFeat, SparseFeat
    from deepctr.models import DeepFM

    names = [f"column{place}" for place in range(12)]
    columns = [SparseFeat(name, 2000, embedding_dim=16) for name in names]
    columns.append(DenseFeat("numbers", 13))
    model = DeepFM(columns, columns, dnn_hidden_units=(256, 128), task="binary")
    optimizer = keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.BinaryCrossentropy()

    @tf.function
    def step(ids, numbers, clicked):
        inputs = {name: ids[:, place : place + 1] for place, name in enumerate(names)}
        with tf.GradientTape() as tape:
            given = model(inputs | {"numbers": numbers}, training=True)
            loss = loss_of(clicked, given) + tf.add_n(model.losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    drawn = (
        integers(2 * _BATCH, 12, below=2000),
        normals(2 * _BATCH, 13),
        integers(2 * _BATCH, 1, below=2),
    )
    return Work(step, batches(*drawn))
