"""KerasHub and KerasCV: models trained by fit, and by a loop of the user's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Fit, Work, case
from models.bench.wild_cases.data import Draw, dataset, images, integers
from models.bench.wild_cases.hugging_face import tokens

_WORDS = 2000


def _labelled(inputs: dict[str, Draw], labels: Draw) -> tf.data.Dataset:
    """Batches as Keras takes them: inputs by their names, and labels."""
    data = dataset(*inputs.values(), labels)
    return data.map(lambda *parts: (dict(zip(inputs, parts, strict=False)), parts[-1]))


def _compiled(model: Any, optimizer: str = "adam") -> Any:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def _masked(batch: int, length: int) -> dict[str, Draw]:
    def ones(random):
        return random.integers(1, 2, [batch, length], "int32")

    return {"token_ids": tokens(batch, length), "padding_mask": ones}


@case("keras-hub")
def bert_classifier() -> Fit:
    """A classifier of texts, compiled and fit."""
    from keras_hub.models import BertBackbone, BertTextClassifier

    backbone = BertBackbone(_WORDS, 3, 4, 128, 512, max_sequence_length=96)
    model = _compiled(BertTextClassifier(backbone, 4))
    inputs = _masked(16, 96) | {"segment_ids": integers(16, 96, below=2)}
    return Fit(model, _labelled(inputs, integers(16, below=4)))


@case("keras-hub")
def gpt2_language_model() -> Fit:
    """A language model, compiled and fit."""
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    backbone = GPT2Backbone(_WORDS, 3, 4, 128, 512, max_sequence_length=96)
    model = _compiled(GPT2CausalLM(backbone))
    return Fit(model, _labelled(_masked(8, 96), tokens(8, 96)))


@case("keras-hub")
def llama_language_model() -> Work:
    """Rotary positions, grouped queries, gated layers; a loop of the user's."""
    import keras
    from keras_hub.models import LlamaBackbone

    backbone = LlamaBackbone(_WORDS, 3, 4, 128, 384, 2)
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(backbone.trainable_variables)

    @tf.function
    def step(ids, labels):
        inputs = {"token_ids": ids, "padding_mask": tf.ones_like(ids)}
        with tf.GradientTape() as tape:
            hidden = backbone(inputs, training=True)
            logits = backbone.token_embedding(hidden, reverse=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        variables = backbone.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, iter(dataset(tokens(8, 96), tokens(8, 96))))


@case("keras-hub")
def resnet_classifier() -> Fit:
    """A classifier of images, compiled and fit."""
    from keras_hub.models import ResNetBackbone, ResNetImageClassifier

    backbone = ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128],
        stackwise_num_blocks=[2, 2],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(96, 96, 3),
    )
    model = _compiled(ResNetImageClassifier(backbone, 10), "sgd")
    return Fit(model, dataset(images(32, 96), integers(32, below=10)))


@case("keras-hub")
def vit_classifier() -> Fit:
    """Images cut into patches, compiled and fit."""
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    backbone = ViTBackbone((64, 64, 3), (8, 8), 4, 4, 128, 512)
    model = _compiled(ViTImageClassifier(backbone, 10))
    return Fit(model, dataset(images(32, 64), integers(32, below=10)))


@case("keras-cv", legacy_keras=True)
def csp_darknet() -> Work:
    """A backbone of KerasCV on tf-keras, with augmentation in the step."""
    import keras_cv
    import tf_keras as keras

    backbone = keras_cv.models.CSPDarkNetBackbone(
        stackwise_channels=[32, 64, 128],
        stackwise_depth=[1, 2, 1],
        input_shape=(96, 96, 3),
        include_rescaling=False,
        use_depthwise=False,
    )
    model = keras.Sequential([backbone, keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(1e-3)

    @tf.function
    def step(x, y):
        x = tf.image.random_flip_left_right(x, seed=3)
        x = tf.image.random_brightness(x, 0.2, seed=4)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, iter(dataset(images(16, 96), integers(16, below=10))))
