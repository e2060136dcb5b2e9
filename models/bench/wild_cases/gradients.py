"""Gradients of gradients, of people's own, and in numbers of other kinds."""

from __future__ import annotations

import itertools

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, images, normals
from models.bench.wild_cases.styles import descend, layers, mlp, stepping

_WIDTH = 256

# Gradients.


@case("tensorflow")
def meta_learning() -> Work:
    """MAML: the gradient of a loss after two steps of an inner loop."""
    weights = layers(4)

    def loss_of(x, y):
        fast = [w.read_value() for w in weights]
        for _ in range(2):
            with tf.GradientTape() as inner:
                inner.watch(fast)
                loss = tf.reduce_mean((mlp(x, fast) - y) ** 2)
            slopes = inner.gradient(loss, fast)
            fast = [w - 0.05 * slope for w, slope in zip(fast, slopes, strict=True)]
        return tf.reduce_mean((mlp(x, fast) - y) ** 2)

    return stepping(loss_of, weights, normals(1024, _WIDTH), normals(1024, _WIDTH))


@case("tensorflow")
def jacobian_penalty() -> Work:
    """The norm of a batch jacobian in the loss."""
    weights = layers(3, 64)

    def loss_of(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = mlp(x, weights)[:, :8]
        slopes = inner.batch_jacobian(y, x)
        return tf.reduce_mean(y**2) + 0.1 * tf.reduce_mean(slopes**2)

    return stepping(loss_of, weights, normals(2048, 64))


@case("tensorflow")
def hessian_vector_product() -> Work:
    """Forward over backward, for a step along the curvature."""
    weights = layers(6)

    @tf.function
    def step(x):
        with tf.autodiff.ForwardAccumulator(weights, [tf.ones_like(w) for w in weights]) as ahead:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(mlp(x, weights) ** 2)
            gradients = tape.gradient(loss, weights)
        products = [ahead.jvp(one) for one in gradients]
        pairs = zip(gradients, products, strict=True)
        descend(weights, [g / (1.0 + tf.abs(product)) for g, product in pairs])
        return loss

    return Work(step, batches(normals(2048, _WIDTH)))


@case("tensorflow")
def persistent_tape() -> Work:
    """Two losses, one tape, gradients that are projected onto each other."""
    weights = layers(8)

    @tf.function
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            y = mlp(x, weights)
            one, other = tf.reduce_mean(y**2), tf.reduce_mean(tf.abs(y - 1.0))
        pairs = zip(tape.gradient(one, weights), tape.gradient(other, weights), strict=True)
        joined = []
        for a, b in pairs:
            along = tf.minimum(tf.reduce_sum(a * b), 0.0) / (tf.reduce_sum(b * b) + 1e-12)
            joined.append(a - along * b + b)
        joined, norm = tf.clip_by_global_norm(joined, 1.0)
        descend(weights, joined)
        return one, other, norm

    return Work(step, batches(normals(4096, _WIDTH)))


@case("tensorflow")
def own_recompute_grad() -> Work:
    """tf.recompute_grad around pairs of layers."""
    weights = layers(12)

    def pair(one, other):
        @tf.recompute_grad
        def forward(x):
            return tf.nn.gelu(tf.nn.gelu(x @ one) @ other)

        return forward

    blocks = list(itertools.starmap(pair, zip(weights[::2], weights[1::2], strict=True)))

    def loss_of(x):
        for block in blocks:
            x = block(x)
        return tf.reduce_mean(x**2)

    return stepping(loss_of, weights, normals(8192, _WIDTH))


@case("tensorflow")
def custom_gradient() -> Work:
    """Rounding that lets gradients pass, and a clipped one, by tf.custom_gradient."""
    weights = layers(10)

    @tf.custom_gradient
    def rounded(x):
        return tf.round(x * 8) / 8, lambda slope: tf.where(tf.abs(x) < 4, slope, 0.0)

    def loss_of(x):
        for w in weights:
            x = rounded(tf.nn.relu(x @ w))
        return tf.reduce_mean(x**2)

    return stepping(loss_of, weights, normals(4096, _WIDTH))


# Numbers of other kinds.


@case("tensorflow")
def spectra() -> Work:
    """Filters in the frequency domain: FFT of images and back."""
    filters = [tf.Variable(tf.ones([16, 64, 33]) * 0.5) for _ in range(3)]
    mix = tf.Variable(tf.random.stateless_normal([16, 16], [1, 2]) / 4)

    def loss_of(x):
        for one in filters:
            seen = tf.signal.rfft2d(x)
            x = tf.nn.relu(tf.signal.irfft2d(seen * tf.cast(one, tf.complex64)))
            x = tf.einsum("bchw,cd->bdhw", x, mix)
        return tf.reduce_mean((x - 1.0) ** 2)

    return stepping(loss_of, [*filters, mix], normals(16, 16, 64, 64))


@case("tensorflow")
def half_precision() -> Work:
    """float16 convolutions, the loss scaled by hand and skipped where it overflows."""
    kernels = [
        tf.Variable(tf.random.stateless_normal([3, 3, 3 if not i else 32, 32], [i, 1]) * 0.1)
        for i in range(4)
    ]
    scale, good = tf.Variable(1024.0), tf.Variable(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = tf.cast(x, tf.float16)
            for kernel in kernels:
                y = tf.nn.relu(tf.nn.conv2d(y, tf.cast(kernel, tf.float16), 1, "SAME"))
            loss = tf.reduce_mean(tf.cast(y, tf.float32) ** 2)
            scaled = loss * scale
        gradients = [one / scale for one in tape.gradient(scaled, kernels)]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in gradients])
        if finite:
            descend(kernels, gradients)
            good.assign_add(1)
        else:
            scale.assign(scale / 2)
        return loss

    return Work(step, batches(images(16, 48)))


@case("keras")
def mixed_precision() -> Work:
    """Keras 3's mixed_float16 with its LossScaleOptimizer."""
    import keras

    policy = keras.mixed_precision.Policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((512,)),
            *(keras.layers.Dense(512, "relu", dtype=policy) for _ in range(6)),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return loss

    return Work(step, batches(normals(8192, 512), normals(8192, 1)))


@case("tensorflow")
def bfloat16() -> Work:
    """Layers in bfloat16, sums in float32."""
    weights = layers(10)

    def loss_of(x):
        y = tf.cast(x, tf.bfloat16)
        for w in weights:
            y = tf.nn.relu(y @ tf.cast(w, tf.bfloat16))
        return tf.reduce_mean(tf.cast(y, tf.float32) ** 2)

    return stepping(loss_of, weights, normals(4096, _WIDTH))


@case("tensorflow")
def gradients_per_example() -> Work:
    """A convolutional network's gradient for each example, clipped before they are summed."""
    kernels = [
        tf.Variable(tf.random.normal((3, 3, channels, 16), stddev=0.1, seed=channels))
        for channels in (3, 16)
    ]

    @tf.function
    def step(x):
        if tf.rank(x) == 3:
            x = x[..., tf.newaxis]
        with tf.GradientTape(persistent=True) as tape:
            y = x
            for kernel in kernels:
                y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(y, kernel, 1, "SAME")), 3, 2, "SAME")
            losses = tf.reduce_mean(y**2, [1, 2, 3])
        for kernel in kernels:
            gradients = tf.clip_by_norm(tape.jacobian(losses, kernel), 1.0, [1, 2, 3, 4])
            kernel.assign_sub(0.1 * tf.reduce_mean(gradients, 0))
        return tf.reduce_mean(losses)

    return Work(step, batches(images(16, 48)))
