"""TensorFlow models of transformers, with random weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import batches, integers

_WORDS = 2000


def _trained(model: Any, *draws: Any, names: tuple[str, ...], rate: float = 1e-4) -> Work:
    """A step with the loss that the model computes itself, and Adam."""
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(rate)

    @tf.function
    def step(*inputs):
        with tf.GradientTape() as tape:
            outputs = model(dict(zip(names, inputs, strict=True)), training=True)
            loss = tf.reduce_mean(outputs.loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, batches(*draws))


@case("transformers", legacy_keras=True)
def distilbert() -> Work:
    """A classifier of texts."""
    import transformers as hf

    config = hf.DistilBertConfig(
        vocab_size=_WORDS, dim=128, n_layers=4, n_heads=4, hidden_dim=512, num_labels=4
    )
    model = hf.TFDistilBertForSequenceClassification(config)
    draws = integers(16, 128, below=_WORDS), integers(16, below=4)
    return _trained(model, *draws, names=("input_ids", "labels"))


@case("transformers", legacy_keras=True)
def t5() -> Work:
    """Encoder and decoder."""
    import transformers as hf

    config = hf.T5Config(
        vocab_size=_WORDS,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = hf.TFT5ForConditionalGeneration(config)
    draws = integers(8, 96, below=_WORDS), integers(8, 96, below=_WORDS)
    return _trained(model, *draws, names=("input_ids", "labels"))


@case("transformers", legacy_keras=True)
def gpt2() -> Work:
    """A language model."""
    import transformers as hf

    config = hf.GPT2Config(vocab_size=_WORDS, n_embd=128, n_layer=6, n_head=4, n_positions=128)
    model = hf.TFGPT2LMHeadModel(config)
    tokens = integers(8, 128, below=_WORDS)
    draws = tokens, lambda random: tokens(random)
    return _trained(model, *draws, names=("input_ids", "labels"))
