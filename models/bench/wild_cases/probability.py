"""TensorFlow Probability and GPflow: sampling, inference, processes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, images, integers, normals

_TFP = "tensorflow-probability"


def _descending(loss_of: Any, variables_of: Any, draws: Any, rate: float = 1e-3) -> Work:
    """A step of tf-keras' Adam down a loss of the batch."""
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(rate)

    @tf.function
    def step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        variables = variables_of()
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(*draws))


@case(_TFP, legacy_keras=True)
def variational_autoencoder() -> Work:
    """Layers that return distributions."""
    import tensorflow_probability as tfp
    import tf_keras as keras

    layers, tfd, tfpl = keras.layers, tfp.distributions, tfp.layers
    prior = tfd.Independent(tfd.Normal(tf.zeros(16), 1.0), 1)
    encoder = keras.Sequential(
        [
            layers.Conv2D(32, 5, 2, "same", activation=tf.nn.leaky_relu, input_shape=(32, 32, 1)),
            layers.Conv2D(64, 5, 2, "same", activation=tf.nn.leaky_relu),
            layers.Flatten(),
            layers.Dense(tfpl.MultivariateNormalTriL.params_size(16)),
            tfpl.MultivariateNormalTriL(
                16, activity_regularizer=tfpl.KLDivergenceRegularizer(prior)
            ),
        ]
    )
    decoder = keras.Sequential(
        [
            layers.Dense(8 * 8 * 32, input_shape=(16,)),
            layers.Reshape((8, 8, 32)),
            layers.Conv2DTranspose(64, 5, 2, "same", activation=tf.nn.leaky_relu),
            layers.Conv2DTranspose(32, 5, 2, "same", activation=tf.nn.leaky_relu),
            layers.Conv2D(1, 5, 1, "same"),
            layers.Flatten(),
            tfpl.IndependentBernoulli((32, 32, 1)),
        ]
    )

    def loss_of(x):
        likelihood = decoder(encoder(x))
        return tf.add_n(encoder.losses) - tf.reduce_mean(likelihood.log_prob(x))

    def variables_of():
        return encoder.trainable_variables + decoder.trainable_variables

    return _descending(loss_of, variables_of, [images(128, 32, 1)])


@case(_TFP, legacy_keras=True)
def flipout() -> Work:
    """A network of layers with uncertain weights."""
    import tensorflow_probability as tfp
    import tf_keras as keras

    model = keras.Sequential(
        [
            tfp.layers.Convolution2DFlipout(24, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            tfp.layers.Convolution2DFlipout(48, 3, activation="relu"),
            keras.layers.Flatten(),
            tfp.layers.DenseFlipout(10),
        ]
    )
    model.build((256, 28, 28, 1))

    def loss_of(x, y):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
        return tf.reduce_mean(losses) + tf.add_n(model.losses) / 1e4

    drawn = [images(256, 28, 1), integers(256, below=10)]
    return _descending(loss_of, lambda: model.trainable_variables, drawn)


@case(_TFP, legacy_keras=True)
def autoregressive_flow() -> Work:
    """A density by masked autoregressive flows."""
    import tensorflow_probability as tfp

    tfb, tfd = tfp.bijectors, tfp.distributions
    networks = [
        tfb.AutoregressiveNetwork(2, hidden_units=[256, 256], activation="relu") for _ in range(4)
    ]
    chain = []
    for network in networks:
        chain += [tfb.MaskedAutoregressiveFlow(network), tfb.Permute(list(range(31, -1, -1)))]
    density = tfd.TransformedDistribution(
        tfd.MultivariateNormalDiag(tf.zeros(32)), tfb.Chain(chain[:-1])
    )
    density.log_prob(tf.zeros([1, 32]))

    def loss_of(x):
        return -tf.reduce_mean(density.log_prob(x))

    return _descending(loss_of, lambda: density.trainable_variables, [normals(4096, 32)])


@case(_TFP, legacy_keras=True)
def hamiltonian_monte_carlo() -> Work:
    """A chain of samples of a regression's weights: loops without a tape of ours."""
    import tensorflow_probability as tfp

    tfd = tfp.distributions
    start = tf.Variable(tf.zeros([64, 32]))

    @tf.function
    def step(x, y):
        def log_prob(weights):
            prior = tfd.Normal(0.0, 1.0).log_prob(weights)
            given = tfd.Normal(tf.matmul(weights, x, transpose_b=True), 1.0).log_prob(y)
            return tf.reduce_sum(prior, -1) + tf.reduce_sum(given, -1)

        kernel = tfp.mcmc.HamiltonianMonteCarlo(log_prob, step_size=1e-3, num_leapfrog_steps=4)
        chain = tfp.mcmc.sample_chain(
            8, start, kernel=kernel, trace_fn=None, num_burnin_steps=0, seed=3
        )
        start.assign(chain[-1])
        return tf.reduce_mean(log_prob(chain[-1]))

    return Work(step, batches(normals(32768, 32), normals(32768)))


@case(_TFP, legacy_keras=True)
def state_space_model() -> Work:
    """Kalman filters in a scan, differentiated."""
    import tensorflow_probability as tfp

    tfd = tfp.distributions
    drift = tf.Variable(tf.eye(8) * 0.9)
    noise = tf.Variable(tf.zeros(8))

    def loss_of(series):
        model = tfd.LinearGaussianStateSpaceModel(
            num_timesteps=48,
            transition_matrix=drift,
            transition_noise=tfd.MultivariateNormalDiag(tf.zeros(8), tf.nn.softplus(noise) + 0.1),
            observation_matrix=tf.ones([1, 8]) / 8,
            observation_noise=tfd.MultivariateNormalDiag(tf.zeros(1), tf.ones(1)),
            initial_state_prior=tfd.MultivariateNormalDiag(tf.zeros(8), tf.ones(8)),
        )
        return -tf.reduce_mean(model.log_prob(series))

    return _descending(loss_of, lambda: [drift, noise], [normals(8192, 48, 1)])


@case(_TFP, legacy_keras=True)
def mixture_density() -> Work:
    """A network whose output is a mixture."""
    import tensorflow_probability as tfp
    import tf_keras as keras

    size = tfp.layers.MixtureNormal.params_size(32, [8])
    model = keras.Sequential(
        [
            *(keras.layers.Dense(256, "elu") for _ in range(3)),
            keras.layers.Dense(size),
            tfp.layers.MixtureNormal(32, [8]),
        ]
    )
    model.build((4096, 16))

    def loss_of(x, y):
        return -tf.reduce_mean(model(x).log_prob(y))

    drawn = [normals(4096, 16), normals(4096, 8)]
    return _descending(loss_of, lambda: model.trainable_variables, drawn)


@case("gpflow", legacy_keras=True)
def sparse_gaussian_process() -> Work:
    """A stochastic variational process in float64, with triangular solves."""
    import gpflow

    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0] * 8),
        gpflow.likelihoods.Gaussian(),
        tf.random.stateless_normal([200, 8], [1, 2], dtype=tf.float64),
        num_data=100_000,
    )

    def loss_of(x, y):
        return model.training_loss((x, y))

    drawn = [normals(8192, 8, dtype="float64"), normals(8192, 1, dtype="float64")]
    return _descending(loss_of, lambda: model.trainable_variables, drawn, 1e-2)


@case("gpflow", legacy_keras=True)
def classified_by_a_process() -> Work:
    """Natural gradients for the process, Adam for its kernel."""
    import gpflow
    import tf_keras as keras

    model = gpflow.models.SVGP(
        gpflow.kernels.Matern52(),
        gpflow.likelihoods.Bernoulli(),
        tf.random.stateless_normal([128, 4], [1, 2], dtype=tf.float64),
        num_data=50_000,
    )
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    natural, adam = gpflow.optimizers.NaturalGradient(0.1), keras.optimizers.Adam(1e-2)

    @tf.function
    def step(x, y):
        def loss_of():
            return model.training_loss((x, y))

        natural.minimize(loss_of, [(model.q_mu, model.q_sqrt)])
        with tf.GradientTape() as tape:
            loss = loss_of()
        variables = model.trainable_variables
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def labels(random):
        return random.integers(0, 2, [4096, 1]).astype("float64")

    return Work(step, batches(normals(4096, 4, dtype="float64"), labels))


@case("gpflow", legacy_keras=True)
def exact_gaussian_process() -> Work:
    """A Cholesky factor of the whole kernel matrix."""
    import gpflow

    inputs = tf.Variable(tf.zeros([800, 4], tf.float64))
    targets = tf.Variable(tf.zeros([800, 1], tf.float64))
    model = gpflow.models.GPR((inputs, targets), gpflow.kernels.RBF(lengthscales=[1.0] * 4))

    def loss_of(x, y):
        inputs.assign(x)
        targets.assign(y)
        return model.training_loss()

    drawn = [normals(800, 4, dtype="float64"), normals(800, 1, dtype="float64")]
    return _descending(loss_of, lambda: model.trainable_variables, drawn, 1e-2)
