"""Networks for pictures of kecam, Larq, QKeras and keras-unet-collection, a step each by hand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Fit, Work, case
from models.bench.wild_cases.data import batches, dataset, images, integers

_KECAM = "keras-cv-attention-models"


def _learning(model: Any, batch: int, size: int, dense: bool = False, classes: int = 10) -> Work:
    """A step of Adam of tf-keras down a cross-entropy, for each image or each of its points."""
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.cast(model(x, training=True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) + tf.add_n([*model.losses, 0.0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    labels = integers(batch, size, size, below=classes) if dense else integers(batch, below=classes)
    return Work(step, batches(images(batch, size), labels))


_PLAIN = {"num_classes": 10, "classifier_activation": None, "pretrained": None}


@case(_KECAM, legacy_keras=True)
def swin_v2() -> Work:
    """Windows that shift, with biases that a small network makes."""
    from keras_cv_attention_models.swin_transformer_v2 import SwinTransformerV2

    model = SwinTransformerV2(
        [2, 2, 2], [2, 4, 8], 48, window_size=4, input_shape=(64, 64, 3), **_PLAIN
    )
    return _learning(model, 16, 64)


@case(_KECAM, legacy_keras=True)
def maxvit() -> Work:
    """Mobile convolutions, then attention in blocks and on a grid."""
    from keras_cv_attention_models.maxvit import MaxViT

    model = MaxViT([1, 1, 2, 1], [32, 64, 96, 128], 32, input_shape=(64, 64, 3), **_PLAIN)
    return _learning(model, 8, 64)


@case(_KECAM, legacy_keras=True)
def edgenext() -> Work:
    """Attention across channels, drop paths, convolutions of several sizes."""
    from keras_cv_attention_models.edgenext import EdgeNeXt

    model = EdgeNeXt(
        [2, 2, 4, 2], [24, 48, 88, 168], input_shape=(96, 96, 3), drop_connect_rate=0.1, **_PLAIN
    )
    return _learning(model, 16, 96)


@case(_KECAM, legacy_keras=True)
def halonet() -> Work:
    """Attention in blocks with halos, whose patches are extracted."""
    from keras_cv_attention_models.aotnet import AotNet

    halo = {"block_size": 4, "halo_size": 1, "num_heads": 4}
    model = AotNet(
        [1, 1, 2, 1],
        attn_types=[None, None, "halo", "halo"],
        attn_params=[None, None, halo, halo | {"block_size": 2}],
        input_shape=(64, 64, 3),
        out_channels=[64, 96, 128, 160],
        stem_width=32,
        **_PLAIN,
    )
    return _learning(model, 8, 64)


@case(_KECAM, legacy_keras=True)
def volo() -> Work:
    """Outlook attention, which folds patches back by a transposed convolution."""
    from keras_cv_attention_models.volo import VOLO

    model = VOLO(
        [2, 2],
        [64, 128],
        [2, 4],
        [3, 3],
        stem_hidden_dim=32,
        input_shape=(64, 64, 3),
        num_classes=10,
        classfiers=1,
        token_label_top=False,
        mean_classifier_top=True,
        pretrained=None,
    )
    return _learning(model, 16, 64)


@case(_KECAM, legacy_keras=True)
def norm_free() -> Work:
    """Weights that are standardised at each use, grouped convolutions without XLA."""
    from keras_cv_attention_models.nfnets import NormFreeNet

    model = NormFreeNet(
        [1, 2, 2, 1],
        stem_width=32,
        out_channels=[64, 96, 128, 160],
        group_size=16,
        input_shape=(64, 64, 3),
        **_PLAIN,
    )
    return _learning(model, 16, 64)


@case(_KECAM, legacy_keras=True)
def mlp_mixer() -> Work:
    """No attention and no convolution: layers across patches and channels."""
    from keras_cv_attention_models.mlp_family.mlp_mixer import MLPMixer

    model = MLPMixer(6, 8, 192, 128, 512, input_shape=(64, 64, 3), **_PLAIN)
    return _learning(model, 32, 64)


@case(_KECAM, legacy_keras=True)
def ghostnet() -> Work:
    """Cheap features made of others by depthwise convolutions."""
    from keras_cv_attention_models.ghostnet import GhostNet

    return _learning(GhostNet(input_shape=(64, 64, 3), **_PLAIN), 16, 64)


@case(_KECAM, legacy_keras=True)
def yolo_v8() -> Work:
    """A detector's backbone and pyramid; its raw outputs are drawn to zeros and ones."""
    import tf_keras as keras
    from keras_cv_attention_models.yolov8 import YOLOV8

    model = YOLOV8(
        csp_channels=[32, 64, 96, 128],
        input_shape=(96, 96, 3),
        num_classes=8,
        classifier_activation=None,
        pretrained=None,
    )
    optimizer = keras.optimizers.SGD(1e-2, momentum=0.9, nesterov=True)
    optimizer.build(model.trainable_variables)
    cells = int(model.output_shape[1])

    @tf.function
    def step(x, chosen):
        with tf.GradientTape() as tape:
            found = model(x, training=True)
            targets = tf.one_hot(chosen, found.shape[-1], axis=-1)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, found)
            weights = tf.stop_gradient(tf.sigmoid(losses)) ** 2
            loss = tf.reduce_mean(weights * losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 10.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, norm

    return Work(step, batches(images(8, 96), integers(8, cells, below=8)))


@case("larq", legacy_keras=True)
def binary_network() -> Work:
    """Weights and activations of one bit, with gradients straight through."""
    import larq
    import tf_keras as keras

    bits = {
        "input_quantizer": "ste_sign",
        "kernel_quantizer": "ste_sign",
        "kernel_constraint": "weight_clip",
        "use_bias": False,
    }
    layers = [keras.Input((48, 48, 3)), keras.layers.Conv2D(64, 3, use_bias=False)]
    for width in (64, 96, 128):
        layers += [
            keras.layers.BatchNormalization(scale=False),
            larq.layers.QuantConv2D(width, 3, padding="same", **bits),
            keras.layers.MaxPool2D(2, 2),
        ]
    layers += [
        keras.layers.BatchNormalization(scale=False),
        keras.layers.Flatten(),
        larq.layers.QuantDense(10, **bits),
    ]
    return _learning(keras.Sequential(layers), 64, 48)


@case("qkeras", legacy_keras=True)
def quantized_network() -> Work:
    """Weights and activations of four bits, whose scales are found at each step."""
    import qkeras
    import tf_keras as keras

    layers: list[Any] = [keras.Input((48, 48, 3))]
    for width in (32, 48, 64):
        layers += [
            qkeras.QConv2D(
                width,
                3,
                kernel_quantizer="quantized_bits(4,0,1)",
                bias_quantizer="quantized_bits(4)",
            ),
            qkeras.QActivation("quantized_relu(4)"),
        ]
    layers += [
        keras.layers.Flatten(),
        qkeras.QDense(
            10, kernel_quantizer="quantized_bits(4,0,1)", bias_quantizer="quantized_bits(4)"
        ),
    ]
    return _learning(keras.Sequential(layers), 32, 48)


@case("keras-unet-collection", legacy_keras=True)
def attention_u_net() -> Work:
    """Gates of attention on the skips."""
    from keras_unet_collection import models

    model = models.att_unet_2d(
        (96, 96, 3), [16, 32, 64, 96], 4, output_activation=None, batch_norm=True
    )
    return _learning(model, 8, 96, dense=True, classes=4)


@case("keras-unet-collection", legacy_keras=True)
def u_net_3_plus() -> Work:
    """Skips from all depths to all depths."""
    from keras_unet_collection import models

    model = models.unet_3plus_2d(
        (96, 96, 3), 4, [16, 32, 64], output_activation=None, batch_norm=True, unpool="bilinear"
    )
    return _learning(model, 8, 96, dense=True, classes=4)


@case("keras-unet-collection", legacy_keras=True)
def swin_u_net_by_fit() -> Fit:
    """Windows in a U, compiled and fit by tf-keras."""
    import tf_keras as keras
    from keras_unet_collection import models

    model = models.swin_unet_2d(
        (64, 64, 3),
        32,
        4,
        depth=3,
        stack_num_down=2,
        stack_num_up=2,
        patch_size=(2, 2),
        num_heads=[2, 4, 4],
        window_size=[4, 4, 4],
        num_mlp=128,
    )
    model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy")
    return Fit(model, dataset(images(8, 64), integers(8, 64, 64, below=4)))
