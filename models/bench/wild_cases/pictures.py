"""Networks for pictures as tutorials write them: adversarial, contrastive, dense, by fit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Fit, Work, case
from models.bench.wild_cases.data import batches, dataset, images, integers


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


@case("keras")
def wgan_gp() -> Work:
    """A critic that learns three times a step, with a penalty on its gradient."""
    import keras

    layers = keras.layers
    critic = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            *(layers.Conv2D(width, 5, 2, "same", activation="leaky_relu") for width in (32, 64)),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    generator = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(8 * 8 * 64, use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Reshape((8, 8, 64)),
            layers.UpSampling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.UpSampling2D(),
            layers.Conv2D(3, 3, padding="same", activation="tanh"),
        ]
    )
    of_critic = keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9)
    of_generator = keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9)
    of_critic.build(critic.trainable_variables)
    of_generator.build(generator.trainable_variables)

    def penalty(real, made):
        part = tf.random.uniform([tf.shape(real)[0], 1, 1, 1])
        between = real + part * (made - real)
        with tf.GradientTape() as inner:
            inner.watch(between)
            said = critic(between, training=True)
        slope = inner.gradient(said, between)
        norm = tf.sqrt(tf.reduce_sum(slope**2, [1, 2, 3]) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    @tf.function
    def step(real):
        for _ in range(3):
            noise = tf.random.normal([tf.shape(real)[0], 64])
            with tf.GradientTape() as tape:
                made = generator(noise, training=True)
                gap = tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(real))
                loss = gap + 10.0 * penalty(real, made)
            gradients = tape.gradient(loss, critic.trainable_variables)
            of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            made = generator(tf.random.normal([tf.shape(real)[0], 64]), training=True)
            fooled = -tf.reduce_mean(critic(made))
        gradients = tape.gradient(fooled, generator.trainable_variables)
        of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
        return loss, fooled

    return Work(step, batches(images(64, 32)))


@case("tf-keras", legacy_keras=True)
def two_steps_of_a_gan() -> Work:
    """Generator and discriminator are two functions that the loop calls in turn."""
    import tf_keras as keras

    generator, discriminator = _dcgan_networks()
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    of_generator, of_discriminator = keras.optimizers.Adam(1e-4), keras.optimizers.RMSprop(1e-4)

    @tf.function
    def teach_discriminator(real, noise):
        with tf.GradientTape() as tape:
            says_real = discriminator(real, training=True)
            says_made = discriminator(generator(noise, training=True), training=True)
            caught = cross_entropy(tf.ones_like(says_real), says_real)
            caught += cross_entropy(tf.zeros_like(says_made), says_made)
        variables = discriminator.trainable_variables
        of_discriminator.apply_gradients(
            zip(tape.gradient(caught, variables), variables, strict=True)
        )
        return caught

    @tf.function
    def teach_generator(noise):
        with tf.GradientTape() as tape:
            says_made = discriminator(generator(noise, training=True), training=True)
            fooled = cross_entropy(tf.ones_like(says_made), says_made)
        variables = generator.trainable_variables
        of_generator.apply_gradients(zip(tape.gradient(fooled, variables), variables, strict=True))
        return fooled

    def turn(functions, real):
        discriminates, generates = functions
        noise = tf.random.stateless_normal([64, 100], [int(of_generator.iterations), 1])
        return discriminates(real, noise), generates(noise)

    functions = teach_discriminator, teach_generator
    return Work(functions, ((one,) for (one,) in dataset(images(64, 64))), turn)


@case("keras")
def byol() -> Work:
    """A network learns what a moving average of itself says of another view."""
    import keras

    layers = keras.layers

    def encoder() -> Any:
        return keras.Sequential(
            [
                keras.Input((48, 48, 3)),
                *(layers.Conv2D(width, 3, 2, activation="relu") for width in (32, 64, 128)),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(128),
            ]
        )

    online, target = encoder(), encoder()
    target.set_weights(online.get_weights())
    says = keras.Sequential([keras.Input((128,)), layers.Dense(256, "relu"), layers.Dense(128)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)

    @tf.function
    def step(x):
        one = tf.image.random_flip_left_right(x, seed=1)
        other = tf.image.random_contrast(x, 0.5, 1.5, seed=2)
        with tf.GradientTape() as tape:
            aim = tf.math.l2_normalize(tf.stop_gradient(target(other, training=True)), 1)
            given = tf.math.l2_normalize(says(online(one, training=True)), 1)
            loss = 2.0 - 2.0 * tf.reduce_mean(tf.reduce_sum(aim * given, 1))
        variables = online.trainable_variables + says.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for slow, fast in zip(target.trainable_variables, online.trainable_variables, strict=True):
            slow.assign(0.99 * slow + 0.01 * fast)
        return loss

    return Work(step, batches(images(256, 48)))


def _u_net(keras: Any, size: int, channels: int, out: int) -> Any:
    layers = keras.layers
    inputs = x = keras.Input((size, size, channels))
    skips = []
    for width in (16, 32, 64):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("relu")(layers.BatchNormalization()(x))
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(width, 2, 2, "same")(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(out, 1)(x))


@case("keras")
def u_net_by_fit() -> Fit:
    """A class for each pixel, compiled and fit by Keras 3."""
    import keras

    model = _u_net(keras, 64, 3, 5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return Fit(model, dataset(images(16, 64), integers(16, 64, 64, below=5)))


@case("tf-keras", legacy_keras=True)
def classifier_by_fit() -> Fit:
    """A network with dropout and a regularizer, compiled and fit by tf-keras."""
    import tf_keras as keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu", input_shape=(64, 64, 3)),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu", kernel_regularizer="l2"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(128, "relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("rmsprop", loss, metrics=["accuracy"])
    return Fit(model, dataset(images(32, 64), integers(32, below=10)))


@case("keras")
def diffusion() -> Work:
    """A U-Net learns the noise, and an average of its weights is kept by the optimizer."""
    import keras

    model = _u_net(keras, 32, 4, 3)
    optimizer = keras.optimizers.AdamW(1e-3, use_ema=True, ema_momentum=0.99, clipnorm=1.0)

    @tf.function
    def step(x):
        part = tf.random.uniform([tf.shape(x)[0], 1, 1, 1])
        noise = tf.random.normal(tf.shape(x))
        noisy = tf.cos(part) * x + tf.sin(part) * noise
        told = tf.concat([noisy, tf.ones_like(x[..., :1]) * part], -1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(told, training=True) - noise) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(images(64, 32)))


@case("tf-keras", legacy_keras=True)
def distillation() -> Work:
    """A small network learns what a large one says; pictures are augmented in the step."""
    import tf_keras as keras

    settings = {"weights": None, "input_shape": (64, 64, 3), "classes": 10}
    settings["classifier_activation"] = None
    teacher = keras.applications.MobileNetV2(alpha=1.0, **settings)
    student = keras.applications.MobileNetV2(alpha=0.35, **settings)
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def step(x):
        x = tf.image.resize(tf.image.random_crop(x, [16, 56, 56, 3], seed=1), [64, 64])
        aim = tf.nn.softmax(teacher(x, training=False) / 4.0)
        with tf.GradientTape() as tape:
            logits = student(x, training=True) / 4.0
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(aim, logits))
        variables = student.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(images(16, 64)))


@case("keras")
def style_transfer() -> Work:
    """The picture is the variable: gradients through a fixed VGG to Gram matrices."""
    import keras

    vgg = keras.applications.VGG16(include_top=False, weights=None, input_shape=(96, 96, 3))
    names = ["block1_conv1", "block2_conv1", "block3_conv1", "block4_conv1"]
    features = keras.Model(vgg.inputs, [vgg.get_layer(name).output for name in names])
    picture = tf.Variable(tf.random.stateless_uniform([1, 96, 96, 3], [1, 2]))
    optimizer = keras.optimizers.Adam(0.02)

    def grams(x):
        for one in features(x):
            pixels = tf.cast(tf.shape(one)[1] * tf.shape(one)[2], tf.float32)
            yield tf.einsum("bhwc,bhwd->bcd", one, one) / pixels

    @tf.function
    def step(style):
        aims = list(grams(style))
        with tf.GradientTape() as tape:
            pairs = zip(aims, grams(picture), strict=True)
            loss = tf.add_n([tf.reduce_mean((a - b) ** 2) for a, b in pairs])
            loss += 1e-3 * tf.reduce_sum(tf.image.total_variation(picture))
        optimizer.apply_gradients([(tape.gradient(loss, picture), picture)])
        picture.assign(tf.clip_by_value(picture, 0.0, 1.0))
        return loss

    return Work(step, batches(images(1, 96)))
