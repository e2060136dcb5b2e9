"""The models train on their data, and their parts are what they say."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from models.bench import comparators
from models.bench.alone import run_alone
from models.bench.experiment import Experiment, Row
from models.data import images, speech, text
from models.zoo import convnet, deepspeech, lstm, moe_transformer, resnet, transformer, wgan_gp
from models.zoo.adafactor import Adafactor
from models.zoo.task import Task

TINY = {
    "layers": 1,
    "d_model": 32,
    "hidden": 64,
    "heads": 2,
    "d_head": 16,
    "batch": 4,
    "length": 32,
}
TINY_MOE = moe_transformer.Config(experts=4, **TINY)


def losses_of(task: Task, steps: int, has_graph: bool = True) -> list[float]:
    """Of some steps; without a graph the same ops run one by one, and nothing is traced."""
    step = tf.function(task.step) if has_graph else task.step
    return [float(step(*batch)) for batch in itertools.islice(task.batches, steps)]


def norms_of(task: Task) -> list[float]:
    """Of the variables, moments of the optimizers among them, which are not made in one order."""
    return sorted(float(np.linalg.norm(variable.numpy())) for variable in task.variables)


# --- data


def test_text_pairs_continue_the_text():
    source, inputs, targets = next(iter(text.pairs(3, 20, 10, seed=1)))
    assert (source.shape, inputs.shape, targets.shape) == ((3, 20), (3, 10), (3, 10))
    assert {source.dtype, inputs.dtype, targets.dtype} == {tf.int32}

    corpus = text.corpus()
    for row in range(3):
        window = bytes(source[row].numpy().tolist()) + bytes(targets[row].numpy().tolist())
        assert window in corpus
        assert inputs[row, 0] == source[row, -1]
        np.testing.assert_array_equal(inputs[row, 1:], targets[row, :-1])


def test_text_is_the_same_in_every_run_and_differs_by_seed():
    first, again, other = (next(iter(text.windows(4, 50, seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first.numpy() != other.numpy()).any()


def test_digits_are_drawn_once_for_each_label():
    pictures, labels = next(iter(images.digits(64, 32)))
    assert (pictures.shape, labels.shape) == ((64, 32, 32, 1), (64,))
    assert set(labels.numpy()) == set(range(10))
    again, _ = next(iter(images.digits(64, 32)))
    np.testing.assert_array_equal(pictures, again)


def test_coloured_digits_fill_their_pictures():
    (pictures,) = next(iter(images.coloured(8, 64)))
    assert pictures.shape == (8, 64, 64, 3)
    assert -1.0 <= np.min(pictures) < -0.5 < 0.5 < np.max(pictures) <= 1.0


def test_speech_has_frames_for_its_letters():
    frames, letters, counts = next(iter(speech.batches(4, 64)))
    assert (frames.shape, letters.shape, counts.shape) == ((4, 64, 494), (4, 21), (4,))
    for row, count in zip(letters.numpy(), counts.numpy(), strict=True):
        words = "".join(speech.ALPHABET[letter] for letter in row[:count])
        assert set(words.split()) <= set(speech._WORDS)
        assert not row[count:].any()
    moment = np.s_[:, 1:, : 18 * speech.FEATURES]
    np.testing.assert_array_equal(frames[:, :-1, speech.FEATURES :], frames.numpy()[moment])


# --- gating


def reference_seats(gates: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Top-2 gating token by token: (dispatch, combine) of one group."""
    tokens, experts = gates.shape
    best = np.argsort(-gates, axis=1, kind="stable")[:, :2]
    dispatch = np.zeros((tokens, experts, capacity))
    combine = np.zeros_like(dispatch)
    taken = [0] * experts
    for choice in range(2):
        for token in range(tokens):
            expert = best[token, choice]
            if taken[expert] < capacity:
                dispatch[token, expert, taken[expert]] = 1
                weight = gates[token, expert] / gates[token, best[token]].sum()
                combine[token, expert, taken[expert]] = weight
            taken[expert] += 1
    return dispatch.reshape(tokens, -1), combine.reshape(tokens, -1)


@pytest.mark.parametrize("capacity", [1, 4, 24])
def test_gating_seats_as_a_loop_over_tokens_does(capacity):
    gates = tf.nn.softmax(tf.random.stateless_normal((2, 24, 6), (capacity, 2), stddev=2.0))
    dispatch, combine, _ = moe_transformer.route(gates, capacity)
    for group in range(2):
        expected = reference_seats(gates[group].numpy(), capacity)
        np.testing.assert_array_equal(dispatch[group], expected[0])
        np.testing.assert_allclose(combine[group], expected[1], atol=1e-6)


def test_gating_seats_each_token_twice_where_there_is_room():
    gates = tf.nn.softmax(tf.random.stateless_normal((1, 32, 8), (0, 1)))
    dispatch, combine, _ = moe_transformer.route(gates, capacity=32)
    np.testing.assert_array_equal(tf.reduce_sum(dispatch, axis=2), np.full((1, 32), 2.0))
    np.testing.assert_allclose(tf.reduce_sum(combine, axis=2), np.ones((1, 32)), atol=1e-6)
    assert tf.reduce_max(tf.reduce_sum(dispatch, axis=1)) == 1  # a seat takes one token


def test_balance_loss_is_one_for_an_even_load_and_experts_for_one_expert():
    even = tf.one_hot(tf.range(32) % 8, 8)[tf.newaxis] * 1e-3 + 1 / 8
    uneven = tf.one_hot(tf.zeros(32, tf.int32), 8)[tf.newaxis]
    assert moe_transformer.route(even, 8)[2].numpy() == pytest.approx(1.0, abs=0.02)
    assert moe_transformer.route(uneven, 8)[2].numpy() == pytest.approx(8.0)


def test_capacity_shrinks_with_experts_but_not_below_four():
    capacities = [dataclasses.replace(TINY_MOE, experts=e).capacity for e in (4, 8, 64)]
    assert capacities == [40, 20, 4]
    published = moe_transformer.CONFIGS["published"]
    assert (published.tokens_per_group, published.capacity) == (1024, 40)


def test_tokens_that_make_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match="choose --group to divide them"):
        moe_transformer.build(dataclasses.replace(TINY_MOE, group=100))


def test_gathered_tokens_get_what_padded_ones_get_where_there_is_room():
    roomy = dataclasses.replace(TINY_MOE, capacity_factor=8.0, dropout=0.0)
    gathered = dataclasses.replace(roomy, gathered=1)
    assert losses_of(moe_transformer.build(gathered), 4) == pytest.approx(
        losses_of(moe_transformer.build(roomy), 4, has_graph=False), rel=1e-5
    )


@pytest.mark.parametrize("gathered", [0, 1])
def test_experts_in_parts_are_as_many_and_train(gathered):
    config = dataclasses.replace(TINY_MOE, split=3, gathered=gathered)
    assert config.parts == [3, 1]
    task = moe_transformer.build(config)
    assert task.parameters == moe_transformer.build(TINY_MOE).parameters
    losses = losses_of(task, 30)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_a_model_spread_over_machines_gives_the_same_losses_within_the_budget():
    """Two servers with a host each, against the same model in one process."""

    def run(**changes) -> Row:
        return run_alone(dataclasses.replace(experiment, **changes), gpu=False, timeout=240)

    sizes = TINY | {"d_model": 64, "hidden": 256, "length": 64, "experts": 6, "split": 2}
    experiment = Experiment("moe_transformer", changes=sizes, steps=4)
    alone, plain = run(), run(machines=2)
    budget = int(0.6 * plain.measured_peak_bytes)
    planned = run(machines=2, mode="tfmem", host_process=True, budget=budget)
    assert [row.outcome for row in (alone, plain, planned)] == ["trained"] * 3
    assert plain.losses == pytest.approx(alone.losses, rel=1e-5)
    assert planned.losses == pytest.approx(alone.losses, rel=1e-5)
    assert planned.predicted_peak_bytes <= budget
    assert planned.measured_peak_bytes <= 1.05 * budget


# --- Adafactor


def reference_adafactor(weight, gradients, learning_rate):
    """Algorithm 4 of the paper, in numpy, with float64."""
    weight = weight.astype(np.float64)
    row = column = moment = 0.0
    for t, gradient in enumerate(gradients, start=1):
        decay = 1 - t**-0.8
        square = gradient.astype(np.float64) ** 2 + 1e-30
        if weight.ndim < 2:
            moment = second = decay * moment + (1 - decay) * square
        else:
            row = decay * row + (1 - decay) * square.mean(-1)
            column = decay * column + (1 - decay) * square.mean(-2)
            second = row[..., :, None] * column[..., None, :] / row.mean(-1)[..., None, None]
        update = gradient / np.sqrt(second)
        update /= max(1.0, np.sqrt((update**2).mean()))
        size = learning_rate or min(1e-2, t**-0.5) * max(1e-3, np.sqrt((weight**2).mean()))
        weight = weight - size * update
    return weight


@pytest.mark.parametrize("learning_rate", [None, 0.05])
@pytest.mark.parametrize("shape", [(7,), (5, 8), (3, 5, 8)], ids=str)
def test_adafactor_is_the_papers(shape, learning_rate):
    random = np.random.default_rng(0)
    start = random.normal(size=shape).astype(np.float32)
    gradients = random.normal(size=(6, *shape)).astype(np.float32) * 10
    weight = tf.Variable(start)
    optimizer = Adafactor([weight], learning_rate)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)])
    expected = reference_adafactor(start, gradients, learning_rate)
    np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=1e-6)


def test_adafactor_keeps_little_state():
    weight = tf.Variable(tf.zeros((4, 100, 200)))
    assert sum(v.shape.num_elements() for v in Adafactor([weight]).state) == 4 * 300 + 1


# --- training


@pytest.mark.parametrize(
    ("build", "config", "steps"),
    [
        (moe_transformer.build, TINY_MOE, 30),
        (convnet.build, convnet.Config(batch=16), 45),
        (lstm.build, lstm.Config(length=16), 15),
        (transformer.build, transformer.Config(**TINY), 30),
        (resnet.build, resnet.Config(depth=14, width=8, side=32, learning_rate=0.01), 30),
        (wgan_gp.build, wgan_gp.Config(width=4, blocks=2, batch=8, critic_steps=1), 20),
        (deepspeech.build, deepspeech.Config(length=32, width=64), 15),
    ],
    ids=["moe_transformer", "convnet", "lstm", "transformer", "resnet", "wgan_gp", "deepspeech"],
)
def test_loss_falls_and_runs_begin_alike(build, config, steps):
    task = build(config)
    first = [variable.numpy() for variable in task.variables]
    batch = next(iter(task.batches))
    losses = losses_of(task, steps)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert task.parameters < sum(v.shape.num_elements() for v in task.variables)

    again = build(config)
    tf.nest.map_structure(np.testing.assert_array_equal, next(iter(again.batches)), batch)
    for variable, value in zip(again.variables, first, strict=True):
        np.testing.assert_array_equal(variable, value)
    # oneDNN's kernels, when several run at once on a busy machine, round differently each time.
    assert losses_of(again, 1, has_graph=False) == pytest.approx(losses[:1], rel=1e-3)


def test_published_moe_layers_have_two_million_parameters_an_expert():
    published = moe_transformer.CONFIGS["published"]
    an_expert = 2 * published.d_model * published.hidden
    assert an_expert == pytest.approx(2.10e6, rel=0.01)
    assert 12 * published.experts * an_expert == pytest.approx(0.81e9, rel=0.01)


@pytest.mark.parametrize(
    ("module", "config"),
    [
        (transformer, transformer.Config(**TINY)),
        (resnet, resnet.Config(depth=14, width=8, side=32, batch=8)),
        (deepspeech, deepspeech.Config(length=32, width=32)),
    ],
    ids=["transformer", "resnet", "deepspeech"],
)
def test_recomputation_by_hand_gives_the_same_losses(module, config):
    by_hand = comparators.changed("recompute_grad", config)
    assert losses_of(module.build(by_hand), 3) == pytest.approx(
        losses_of(module.build(config), 3, has_graph=False), rel=1e-5
    )


def test_recomputation_by_hand_gives_a_gan_the_same_gradients():
    # Adam's first update is a gradient's sign, and rounding decides that where the gradient is
    # zero: a tiny rate keeps it from the losses, and the moments show the gradients.
    config = wgan_gp.Config(width=4, blocks=2, batch=8, critic_steps=1, learning_rate=1e-8)
    by_hand = wgan_gp.build(comparators.changed("recompute_grad", config))
    plain = wgan_gp.build(config)
    assert losses_of(by_hand, 3) == pytest.approx(losses_of(plain, 3), rel=1e-5)
    assert norms_of(by_hand) == pytest.approx(norms_of(plain), rel=1e-3, abs=1e-7)


def test_a_resnet_of_keras_3_gives_the_same_losses_under_its_remat_scope():
    config = resnet.Config(depth=14, width=8, side=32, batch=8, library="keras")
    remat = comparators.changed("remat_scope", config)
    assert losses_of(resnet.build(remat), 3) == pytest.approx(
        losses_of(resnet.build(config), 3), rel=1e-6
    )
