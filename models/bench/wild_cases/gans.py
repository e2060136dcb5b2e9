"""Adversarial and contrastive training: several networks, several optimizers."""

from __future__ import annotations

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import dataset, images


def _dcgan_networks():
    import tf_keras as keras

    layers = keras.layers
    generator = keras.Sequential(
        [
            layers.Dense(8 * 8 * 128, use_bias=False, input_shape=(100,)),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Reshape((8, 8, 128)),
            layers.Conv2DTranspose(64, 5, 2, "same", use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Conv2DTranspose(32, 5, 2, "same", use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Conv2DTranspose(3, 5, 2, "same", activation="tanh"),
        ]
    )
    discriminator = keras.Sequential(
        [
            layers.Conv2D(32, 5, 2, "same", input_shape=(64, 64, 3)),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Conv2D(64, 5, 2, "same"),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    return generator, discriminator


@case("tf-keras", legacy_keras=True)
def dcgan() -> Work:
    """TensorFlow's tutorial: two tapes, two Adams, one function."""
    import tf_keras as keras

    generator, discriminator = _dcgan_networks()
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    of_generator, of_discriminator = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)

    @tf.function
    def step(real):
        noise = tf.random.normal([tf.shape(real)[0], 100])
        with tf.GradientTape() as one, tf.GradientTape() as other:
            made = generator(noise, training=True)
            says_real = discriminator(real, training=True)
            says_made = discriminator(made, training=True)
            fooled = cross_entropy(tf.ones_like(says_made), says_made)
            caught = cross_entropy(tf.ones_like(says_real), says_real)
            caught += cross_entropy(tf.zeros_like(says_made), says_made)
        gradients = one.gradient(fooled, generator.trainable_variables)
        of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
        gradients = other.gradient(caught, discriminator.trainable_variables)
        of_discriminator.apply_gradients(
            zip(gradients, discriminator.trainable_variables, strict=True)
        )
        return fooled, caught

    return Work(step, ((one,) for (one,) in dataset(images(64, 64))))


@case("keras")
def simclr() -> Work:
    """Two views of each image, pulled together and pushed from all others."""
    import keras

    layers = keras.layers
    views = keras.Sequential(
        [
            layers.RandomFlip("horizontal"),
            layers.RandomTranslation(0.1, 0.1),
            layers.RandomZoom(0.2),
        ]
    )
    encoder = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            *(layers.Conv2D(width, 3, 2, activation="relu") for width in (32, 64, 64, 128)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(encoder.trainable_variables)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            one, other = (encoder(views(x, training=True), training=True) for _ in range(2))
            one, other = tf.math.l2_normalize(one, 1), tf.math.l2_normalize(other, 1)
            similar = tf.matmul(one, other, transpose_b=True) / 0.1
            labels = tf.range(tf.shape(x)[0])
            losses = [
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                for logits in (similar, tf.transpose(similar))
            ]
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, encoder.trainable_variables)
        optimizer.apply_gradients(zip(gradients, encoder.trainable_variables, strict=True))
        return loss

    return Work(step, ((one,) for (one,) in dataset(images(128, 64))))
