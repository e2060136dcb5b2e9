"""Loops and branches under a tape, and loops that fill something."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, images, integers, normals
from models.bench.wild_cases.styles import descend, layers

_WIDTH = 256


def _differentiated(
    forward: Callable[..., tf.Tensor], weights: Sequence[tf.Variable], *draws
) -> Work:
    """A step that descends along the gradient of the mean of squares of what `forward` gives."""

    @tf.function
    def step(*batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(*batch) ** 2)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, batches(*draws))


def _through(x: tf.Tensor, weights: Sequence[tf.Variable]) -> tf.Tensor:
    for w in weights:
        x = tf.nn.gelu(x @ w)
    return x


@case("tensorflow")
def range_under_a_tape() -> Work:
    """A for loop over tf.range."""
    (w,) = weights = layers(1)

    def forward(x):
        for _ in tf.range(20):
            x = tf.tanh(x @ w)
        return x

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("tensorflow")
def while_under_a_tape() -> Work:
    """A while loop that ends by what it computed, at most 16 turns."""
    (w,) = weights = layers(1)

    def forward(x):
        def unfinished(turn, x):
            return (turn < 12) & (tf.reduce_max(x) < 1e3)

        _, x = tf.while_loop(
            unfinished, lambda turn, x: (turn + 1, tf.tanh(x @ w)), (0, x), maximum_iterations=16
        )
        return x

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("tensorflow")
def nested_loops() -> Work:
    """A loop in a loop."""
    one, other = weights = layers(2)

    def forward(x):
        for _ in tf.range(4):
            for _ in tf.range(3):
                x = tf.tanh(x @ one)
            x = tf.nn.relu(x @ other) + x
        return x

    return _differentiated(forward, weights, normals(2048, _WIDTH))


@case("tensorflow")
def cond_under_a_tape() -> Work:
    """A branch of either kind, taken by the batch."""
    weights = layers(8)

    def forward(x, k):
        y = _through(x, weights[:3])

        def other():
            z = y
            for w in weights[3:]:
                z = tf.tanh(z @ w)
            return z

        return tf.cond(k[0] > 0, lambda: _through(y, weights[3:]), other)

    return _differentiated(forward, weights, normals(4096, _WIDTH), integers(1, below=2))


@case("tensorflow")
def switch_under_a_tape() -> Work:
    """One of three networks, chosen by the batch."""
    weights = layers(9)

    def forward(x, k):
        branches = [lambda i=i: _through(x, weights[3 * i : 3 * i + 3]) for i in range(3)]
        return tf.switch_case(k[0], branches)

    return _differentiated(forward, weights, normals(8192, _WIDTH), integers(1, below=3))


@case("tensorflow")
def map_under_a_tape() -> Work:
    """tf.map_fn over parts of a batch, after layers."""
    weights = layers(5)

    def forward(x):
        parts = tf.reshape(_through(x, weights[:4]), [16, -1, _WIDTH])
        return tf.map_fn(lambda one: tf.nn.relu(one @ weights[4]), parts)

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("tensorflow")
def scan_under_a_tape() -> Work:
    """tf.scan: a recurrent network by hand."""
    weights = layers(5)

    def forward(x):
        parts = tf.reshape(_through(x, weights[:4]), [16, -1, _WIDTH])
        start = tf.zeros_like(parts[0])
        return tf.scan(lambda state, one: tf.tanh(state @ weights[4] + one), parts, start)

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("tensorflow")
def foldl_under_a_tape() -> Work:
    """tf.foldl with a large state."""
    (w,) = weights = layers(1)

    def forward(x):
        return tf.foldl(lambda state, _: tf.tanh(state @ w), tf.range(16), x)

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("tensorflow")
def tensor_array_under_a_tape() -> Work:
    """A TensorArray that a loop fills and that is stacked."""
    (w,) = weights = layers(1)

    def forward(x):
        filled = tf.TensorArray(tf.float32, 12)
        for turn in tf.range(12):
            x = tf.tanh(x @ w)
            filled = filled.write(turn, x)
        return filled.stack()

    return _differentiated(forward, weights, normals(2048, _WIDTH))


@case("tensorflow")
def microbatches_into_variables() -> Work:
    """Gradients accumulated in variables by a loop over parts of the batch."""
    weights = layers(12)
    sums = [tf.Variable(tf.zeros_like(w)) for w in weights]

    @tf.function
    def step(x):
        parts = tf.reshape(x, [4, -1, _WIDTH])
        for one in sums:
            one.assign(tf.zeros_like(one))
        total = tf.constant(0.0)
        for place in tf.range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_through(parts[place], weights) ** 2)
            for one, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
                one.assign_add(gradient / 4)
            total += loss / 4
        descend(weights, [one.read_value() for one in sums])
        return total

    return Work(step, batches(normals(8192, _WIDTH)))


@case("tensorflow")
def microbatches_in_loop_variables() -> Work:
    """Gradients accumulated in a loop's own variables."""
    weights = layers(12)

    @tf.function
    def step(x):
        parts = tf.reshape(x, [4, -1, _WIDTH])
        sums = [tf.zeros_like(w) for w in weights]
        total = tf.constant(0.0)
        for place in tf.range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_through(parts[place], weights) ** 2)
            gradients = tape.gradient(loss, weights)
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
            total += loss / 4
        descend(weights, [one / 4 for one in sums])
        return total

    return Work(step, batches(normals(8192, _WIDTH)))


@case("tensorflow")
def iterator_inside() -> Work:
    """A loop over a data set within the function: four optimizer steps a call."""
    weights = layers(8)

    @tf.function
    def step(parts):
        total = tf.constant(0.0)
        for x in tf.data.Dataset.from_tensor_slices(parts):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_through(x, weights) ** 2)
            descend(weights, tape.gradient(loss, weights))
            total += loss
        return total

    return Work(step, batches(normals(4, 2048, _WIDTH)))


@case("tensorflow")
def iterator_as_argument() -> Work:
    """The step takes its batch from an iterator."""
    weights = layers(10)
    source = batches(normals(4096, _WIDTH))
    data = tf.data.Dataset.from_generator(
        lambda: (one for (one,) in source),
        output_signature=tf.TensorSpec([4096, _WIDTH], tf.float32),
    )
    rows = iter(data.prefetch(1))

    @tf.function
    def step(rows):
        x = next(rows)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_through(x, weights) ** 2)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return Work(step, iter(lambda: (rows,), None))


@case("tensorflow")
def ordinary_differential_equation() -> Work:
    """Runge-Kutta of the fourth order in a loop: a neural ODE."""
    one, other = weights = layers(2)

    def slope(x):
        return tf.tanh(x @ one) @ other

    def forward(x):
        size = tf.constant(0.1)
        for _ in tf.range(8):
            a = slope(x)
            b = slope(x + size / 2 * a)
            c = slope(x + size / 2 * b)
            d = slope(x + size * c)
            x += size / 6 * (a + 2 * b + 2 * c + d)
        return x

    return _differentiated(forward, weights, normals(1024, _WIDTH))


@case("tensorflow")
def vectorized_map() -> Work:
    """tf.vectorized_map of a small network over samples, differentiated."""
    weights = layers(3)

    def forward(x):
        def alone(row):
            row = row[tf.newaxis]
            return tf.nn.softmax(_through(row, weights))[0]

        return tf.vectorized_map(alone, x)

    return _differentiated(forward, weights, normals(4096, _WIDTH))


@case("keras")
def lstm() -> Work:
    """Keras 3's LSTM, a while loop on a CPU, in both directions."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((64, 32)),
            keras.layers.Bidirectional(keras.layers.LSTM(64, return_sequences=True)),
            keras.layers.GRU(64),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, batches(normals(192, 64, 32), normals(192, 1)))


@case("tf-keras", legacy_keras=True)
def seq2seq_with_attention() -> Work:
    """A translator of two GRUs whose decoder is unrolled in Python, as in the tutorial."""
    import tf_keras as keras

    encoder = keras.layers.GRU(128, return_sequences=True, return_state=True)
    cell, attention = keras.layers.GRUCell(128), keras.layers.AdditiveAttention()
    embedding, words = keras.layers.Embedding(1000, 64), keras.layers.Dense(1000)
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def step(source, target):
        with tf.GradientTape() as tape:
            memory, state = encoder(embedding(source))
            loss = tf.constant(0.0)
            for place in range(11):
                seen = attention([state[:, tf.newaxis], memory])[:, 0]
                given = tf.concat([embedding(target[:, place]), seen], 1)
                output, (state,) = cell(given, [state])
                labels = target[:, place + 1]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, words(output))
                loss += tf.reduce_mean(losses) / 11
        layers = (encoder, cell, attention, embedding, words)
        variables = [v for layer in layers for v in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Work(step, batches(integers(160, 24, below=1000), integers(160, 12, below=1000)))


@case("tensorflow")
def pools_under_a_tape() -> Work:
    """A convolution and a maximum pool in each turn of a loop, in one of two branches."""
    first, *_ = kernels = [
        tf.Variable(tf.random.normal((3, 3, channels, 16), stddev=0.1, seed=channels))
        for channels in (3, 16)
    ]

    def pooled(x, kernel):
        return tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 3, 1, "SAME")

    def forward(x):
        x = tf.cond(tf.reduce_mean(x) > 0.0, lambda: pooled(x, first), lambda: pooled(-x, first))
        for _ in tf.range(4):
            x += pooled(x, kernels[1])
        return x

    return _differentiated(forward, kernels, images(16, 32))
