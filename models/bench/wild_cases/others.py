"""Sonnet, Spektral, TF-Agents, and networks for volumes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, dataset, images, integers, normals


@case("dm-sonnet")
def sonnet_resnet() -> Work:
    """A ResNet of Sonnet, whose modules are no layers of Keras."""
    import sonnet as snt

    model = snt.nets.ResNet([1, 1, 1, 1], num_classes=10)
    optimizer = snt.optimizers.Momentum(1e-2, 0.9)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, is_training=True))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    model(tf.zeros([1, 64, 64, 3]), is_training=False)
    return Work(step, iter(dataset(images(16, 64), integers(16, below=10))))


@case("dm-sonnet")
def sonnet_vq_vae() -> Work:
    """Codes learned by moving averages, with straight-through gradients."""
    import sonnet as snt

    encoder = snt.Sequential(
        [snt.Conv2D(64, 4, 2), tf.nn.relu, snt.Conv2D(128, 4, 2), tf.nn.relu, snt.Conv2D(32, 1)]
    )
    codes = snt.nets.VectorQuantizerEMA(32, 256, commitment_cost=0.25, decay=0.99)
    decoder = snt.Sequential(
        [
            snt.Conv2DTranspose(128, 4, stride=2),
            tf.nn.relu,
            snt.Conv2DTranspose(3, 4, stride=2),
        ]
    )
    optimizer = snt.optimizers.Adam(1e-3)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            found = codes(encoder(x), is_training=True)
            loss = tf.reduce_mean((decoder(found["quantize"]) - x) ** 2) + found["loss"]
        variables = encoder.trainable_variables + decoder.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss, found["perplexity"]

    return Work(step, batches(images(64, 48)))


@case("spektral", legacy_keras=True)
def graph_convolution() -> Work:
    """Nodes of a graph whose adjacency is a sparse tensor."""
    import scipy.sparse
    import tf_keras as keras
    from spektral.layers import GCNConv
    from spektral.utils.sparse import sp_matrix_to_sp_tensor

    random = np.random.default_rng(0)
    adjacency = scipy.sparse.random(12000, 12000, 0.0005, "csr", random_state=random)
    adjacency = sp_matrix_to_sp_tensor(GCNConv.preprocess(adjacency + adjacency.T))
    layers = [GCNConv(128, "relu"), GCNConv(128, "relu"), GCNConv(7)]
    optimizer = keras.optimizers.Adam(1e-2)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            for layer in layers:
                x = layer([x, adjacency])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))
        variables = [v for layer in layers for v in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(normals(12000, 256), integers(12000, below=7)))


@case("spektral", legacy_keras=True)
def graph_attention() -> Work:
    """Graphs of one size in a batch, and attention along their edges."""
    import tf_keras as keras
    from spektral.layers import GATConv, GlobalAvgPool

    layers = [GATConv(32, attn_heads=4, activation="elu") for _ in range(2)]
    pool, out = GlobalAvgPool(), keras.layers.Dense(3)
    optimizer = keras.optimizers.RMSprop(1e-3)

    @tf.function
    def step(x, edges, y):
        with tf.GradientTape() as tape:
            for layer in layers:
                x = layer([x, edges])
            logits = out(pool(x))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        networks = (*layers, out)
        variables = [v for one in networks for v in one.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def edges(random):
        return (random.random((64, 80, 80)) < 0.1).astype("float32")

    return Work(step, batches(normals(64, 80, 32), edges, integers(64, below=3)))


@case("tf-agents", legacy_keras=True)
def deep_q_network() -> Work:
    """A DQN agent of TF-Agents learns from a batch of experience."""
    import tf_keras as keras
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import q_network
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step, trajectory

    seen = tensor_spec.BoundedTensorSpec((64, 64, 4), tf.float32, 0.0, 1.0)
    action = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 3)
    network = q_network.QNetwork(
        seen, action, conv_layer_params=[(32, 8, 4), (64, 4, 2), (64, 3, 1)], fc_layer_params=(256,)
    )
    agent = dqn_agent.DqnAgent(
        time_step.time_step_spec(seen),
        action,
        network,
        keras.optimizers.Adam(1e-4),
        target_update_period=5,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )
    agent.initialize()

    @tf.function
    def step(frames, actions, rewards):
        steps = tf.ones_like(actions)
        experience = trajectory.Trajectory(
            steps, frames, actions, (), steps, rewards, tf.ones_like(rewards)
        )
        return agent.train(experience).loss

    drawn = normals(128, 2, 64, 64, 4), integers(128, 2, below=4), normals(128, 2)
    return Work(step, batches(*drawn))


@case("tf-keras", legacy_keras=True)
def volumes() -> Work:
    """A U-Net for volumes, as for tomographies, with a mirrored border."""
    import tf_keras as keras

    layers = keras.layers

    def convolved(x, filters):
        x = tf.pad(x, [[0, 0], *[[1, 1]] * 3, [0, 0]], "REFLECT")
        x = layers.Conv3D(filters, 3, use_bias=False)(x)
        return layers.LeakyReLU(0.2)(layers.BatchNormalization()(x))

    inputs = x = keras.Input((32, 32, 32, 1))
    skipped = []
    for filters in (16, 32):
        x = convolved(x, filters)
        skipped.append(x)
        x = layers.MaxPooling3D()(x)
    x = convolved(x, 64)
    for filters, skip in zip((32, 16), reversed(skipped), strict=True):
        x = convolved(layers.concatenate([layers.UpSampling3D()(x), skip]), filters)
    model = keras.Model(inputs, layers.Conv3D(1, 1, activation="sigmoid")(x))
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            found = model(x, training=True)
            there = tf.cast(y > 0, tf.float32)
            loss = 1 - 2 * tf.reduce_sum(found * there) / tf.reduce_sum(found + there)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, iter(dataset(normals(2, 32, 32, 32, 1), normals(2, 32, 32, 32, 1))))
