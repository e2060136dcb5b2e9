"""Steps of sciences and of series: radio, equations, processes, graphs, sounds, forecasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from models.bench.wild_cases import Fit, Work, case
from models.bench.wild_cases.data import batches, dataset, integers, normals


@case("sionna")
def weighted_decoder() -> Work:
    """Belief propagation on a code's graph, whose messages have weights that are learned."""
    from sionna.phy.fec.ldpc import LDPCBPDecoder
    from sionna.phy.fec.ldpc.utils import WeightedBPCallback
    from sionna.phy.fec.utils import GaussianPriorSource, load_parity_check_examples

    checks, _, length, _ = load_parity_check_examples(1, verbose=False)
    weights = WeightedBPCallback(num_edges=int(checks.sum()))
    decoder = LDPCBPDecoder(
        checks, num_iter=5, hard_out=False, cn_update="boxplus", v2c_callbacks=[weights]
    )
    noise = GaussianPriorSource()

    @tf.function
    def step(sigma):
        with tf.GradientTape() as tape:
            found = decoder(noise([1000, length], tf.reduce_mean(sigma)))
            losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.zeros_like(found), found)
            loss = tf.reduce_mean(losses)
        weights.weights.assign_sub(1e-2 * tape.gradient(loss, weights.weights))
        return loss

    return Work(step, batches(lambda random: random.uniform(0.8, 1.2, [4]).astype(np.float32)))


@case("sionna")
def neural_receiver() -> Work:
    """A receiver of residual convolutions, trained through a modulated, noisy channel."""
    import keras
    from sionna.phy.channel import AWGN
    from sionna.phy.mapping import BinarySource, Mapper

    bits, mapper, channel = BinarySource(), Mapper("qam", 4), AWGN()
    layers = keras.layers
    inputs = keras.Input((14, 128, 3))
    x = layers.Conv2D(64, 3, padding="same")(inputs)
    for _ in range(3):
        y = layers.LayerNormalization(axis=(-1, -2, -3))(x)
        y = layers.Conv2D(64, 3, padding="same")(layers.ReLU()(y))
        x = x + y
    model = keras.Model(inputs, layers.Conv2D(4, 3, padding="same")(x))
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(noise):
        sent = bits([16, 14 * 128 * 4])
        symbols = channel(mapper(sent), tf.reduce_mean(noise))
        grid = tf.reshape(symbols, [16, 14, 128])
        seen = tf.stack([tf.math.real(grid), tf.math.imag(grid), tf.ones(grid.shape) * noise], -1)
        with tf.GradientTape() as tape:
            llr = tf.reshape(model(seen, training=True), [16, 14 * 128 * 4])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(sent, llr))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, batches(lambda random: random.uniform(0.1, 0.5, [1]).astype(np.float32)))


@case("deepxde", legacy_keras=True)
def burgers_equation() -> Work:
    """A network that solves an equation: second derivatives by its input inside the loss."""
    import os

    os.environ["DDE_BACKEND"] = "tensorflow"
    import deepxde as dde
    import tf_keras as keras

    net = dde.nn.FNN([2] + [96] * 5 + [1], "tanh", "Glorot normal")
    optimizer = keras.optimizers.Adam(1e-3)
    net(tf.zeros([1, 2]))

    @tf.function
    def step(points, start):
        with tf.GradientTape() as tape:
            with tf.GradientTape(persistent=True) as outer:
                outer.watch(points)
                with tf.GradientTape(persistent=True) as inner:
                    inner.watch(points)
                    u = net(points, training=True)
                slopes = inner.gradient(u, points)
                along = slopes[:, :1]
            curved = outer.gradient(along, points)[:, :1]
            rest = slopes[:, 1:] + u * along - 0.01 / np.pi * curved
            begun = net(start, training=True) + tf.sin(np.pi * start[:, :1])
            loss = tf.reduce_mean(rest**2) + tf.reduce_mean(begun**2)
        variables = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def points(count: int, at: float | None = None):
        def draw(random):
            drawn = random.uniform(-1, 1, [count, 2]).astype(np.float32)
            if at is not None:
                drawn[:, 1] = at
            return drawn

        return draw

    return Work(step, batches(points(6000), points(500, 0.0)))


@case("gpflux", legacy_keras=True)
def deep_gaussian_process() -> Work:
    """Two layers of Gaussian processes, sampled through."""
    import gpflow
    import tf_keras as keras
    from gpflux.architectures import Config, build_constant_input_dim_deep_gp

    random = np.random.default_rng(0)
    data = random.standard_normal((2000, 4))
    config = Config(num_inducing=100, inner_layer_qsqrt_factor=1e-5, likelihood_noise_variance=1e-2)
    model = build_constant_input_dim_deep_gp(data, num_layers=2, config=config)
    training = model.as_training_model()
    optimizer = keras.optimizers.Adam(1e-2)
    del gpflow

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            training({"inputs": x, "targets": y}, training=True)
            loss = tf.add_n(training.losses)
        variables = training.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    x, y = normals(500, 4, dtype=np.float64), normals(500, 1, dtype=np.float64)
    for first in batches(x, y):
        training({"inputs": first[0], "targets": first[1]}, training=True)
        optimizer.build(training.trainable_weights)
        break
    return Work(step, batches(x, y))


@case("bayesflow")
def coupling_flow() -> Work:
    """An inference network that maps parameters to noise, given a summary of the data."""
    import bayesflow
    import keras

    summary = bayesflow.networks.SetTransformer(summary_dim=16)
    flow = bayesflow.networks.CouplingFlow(depth=4, subnet_kwargs={"widths": (128, 128)})
    optimizer = keras.optimizers.Adam(1e-3)
    first = next(batches(normals(64, 6), normals(64, 50, 3)))
    condition = summary(first[1], training=True)
    flow.build(first[0].shape, condition.shape)
    optimizer.build(flow.trainable_variables + summary.trainable_variables)

    @tf.function
    def step(parameters, seen):
        with tf.GradientTape() as tape:
            condition = summary(seen, training=True)
            metrics = flow.compute_metrics(parameters, conditions=condition, stage="training")
            loss = metrics["loss"]
        variables = flow.trainable_variables + summary.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(normals(64, 6), normals(64, 50, 3)))


@case("keras-tcn", legacy_keras=False)
def temporal_convolutions() -> Fit:
    """Dilated, causal convolutions, compiled and fit."""
    import keras
    from tcn import TCN

    model = keras.Sequential(
        [
            keras.Input((256, 8)),
            TCN(48, 3, dilations=(1, 2, 4, 8, 16), use_skip_connections=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    return Fit(model, dataset(normals(32, 256, 8), normals(32, 1)))


@case("tf-keras", legacy_keras=True)
def spectrogram_network() -> Work:
    """Spectrograms inside the model: short-time Fourier transforms of waves."""
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(1e-3)
    mel = tf.signal.linear_to_mel_weight_matrix(64, 257, 16000)
    model = keras.Sequential(
        [
            keras.Input((122, 64, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPool2D(),
            keras.layers.Conv2D(48, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    window = tf.Variable(tf.signal.hann_window(512))
    variables = [*model.trainable_variables, window]
    optimizer.build(variables)

    @tf.function
    def step(waves, labels):
        with tf.GradientTape() as tape:
            frames = tf.signal.frame(waves, 512, 128) * window
            power = tf.abs(tf.signal.rfft(frames)) ** 2
            heard = tf.math.log(tf.tensordot(power, mel, 1) + 1e-6)
            logits = model(heard[..., None], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(normals(16, 16000), integers(16, below=10)))


@case("keras-rs")
def feature_crosses() -> Work:
    """Embeddings whose features are crossed and dotted, as in a ranker of KerasRS."""
    import keras
    import keras_rs

    tables = [keras.layers.Embedding(5000, 64) for _ in range(8)]
    crosses = [keras_rs.layers.FeatureCross(projection_dim=128) for _ in range(3)]
    dots = keras_rs.layers.DotInteraction()
    top = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])

    def rank(ids):
        rows = [table(ids[:, number]) for number, table in enumerate(tables)]
        x0 = x = tf.concat(rows, -1)
        for cross in crosses:
            x = cross(x0, x)
        return top(tf.concat([x, dots(rows)], -1))[:, 0]

    rank(tf.zeros([2, 8], tf.int32))
    variables = [
        variable for layer in (*tables, *crosses, top) for variable in layer.trainable_variables
    ]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    @tf.function
    def step(ids, clicks):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(clicks, tf.float32), rank(ids))
            )
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(integers(4096, 8, below=5000), integers(4096, below=2)))


@case("tensorflow-gnn", legacy_keras=True)
def heterogeneous_graph() -> Work:
    """Messages along the edges of a graph tensor, pooled by segments."""
    import tensorflow_gnn as tfgnn
    import tf_keras as keras

    nodes, edges = 3000, 20000
    layers = [keras.layers.Dense(96, "relu") for _ in range(4)]
    top = keras.layers.Dense(7)
    optimizer = keras.optimizers.Adam(1e-3)

    def graph_of(x, source, target):
        return tfgnn.GraphTensor.from_pieces(
            node_sets={
                "paper": tfgnn.NodeSet.from_fields(sizes=[nodes], features={"hidden_state": x})
            },
            edge_sets={
                "cites": tfgnn.EdgeSet.from_fields(
                    sizes=[edges],
                    adjacency=tfgnn.Adjacency.from_indices(("paper", source), ("paper", target)),
                )
            },
        )

    def classify(x, source, target):
        for layer in layers:
            graph = graph_of(x, source, target)
            state = tfgnn.broadcast_node_to_edges(
                graph, "cites", tfgnn.SOURCE, feature_name="hidden_state"
            )
            pooled = tfgnn.pool_edges_to_node(
                graph, "cites", tfgnn.TARGET, "mean", feature_value=state
            )
            x = layer(tf.concat([x, pooled], -1))
        return top(x)

    zeros = tf.zeros([edges], tf.int32)
    classify(tf.zeros([nodes, 64]), zeros, zeros)
    variables = [v for layer in (*layers, top) for v in layer.trainable_variables]
    optimizer.build(variables)

    @tf.function
    def step(x, source, target, y):
        with tf.GradientTape() as tape:
            logits = classify(x, source, target)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(
        step,
        batches(
            normals(nodes, 64),
            integers(edges, below=nodes),
            integers(edges, below=nodes),
            integers(nodes, below=7),
        ),
    )


@case("tensorflow-lattice", legacy_keras=True)
def calibrated_lattice() -> Work:
    """Calibrators and a lattice, whose constraints project the weights after each step."""
    import tensorflow_lattice as tfl
    import tf_keras as keras

    inputs, calibrated = [], []
    for number in range(8):
        one = keras.Input((1,), name=f"x{number}")
        inputs.append(one)
        calibrated.append(
            tfl.layers.PWLCalibration(
                np.linspace(-2, 2, 20), output_min=0.0, output_max=1.0, monotonicity="increasing"
            )(one)
        )
    lattice = tfl.layers.Lattice([2] * 8, monotonicities=["increasing"] * 8, units=1)(calibrated)
    model = keras.Model(inputs, keras.layers.Dense(1)(lattice))
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            found = model(tf.split(x, 8, 1), training=True)
            loss = tf.reduce_mean((found - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, batches(normals(8000, 8), normals(8000, 1)))


def _series(name: str, **config: Any) -> Work:
    """A forecaster of tfts, by a step of its mean squared error."""
    import keras
    import tfts

    settings = tfts.AutoConfig.for_model(name)
    for key, value in config.items():
        setattr(settings, key, value)
    model = tfts.AutoModelForForecasting.from_config(settings, output_chunk_length=24)
    optimizer = keras.optimizers.Adam(1e-3)
    model(tf.zeros([2, 96, 4]))
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True).predictions - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(normals(64, 96, 4), normals(64, 24, 1)))


@case("tfts")
def autoformer() -> Work:
    """Series are decomposed, and correlated with themselves by Fourier transforms."""
    return _series("autoformer")


@case("tfts")
def wavenet() -> Work:
    """Dilated convolutions, then a decoder in turns."""
    return _series("wavenet")


@case("tfts")
def informer() -> Work:
    """Attention to few queries, chosen by a sample of keys."""
    return _series("informer")
