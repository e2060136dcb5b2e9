"""TensorFlow models of transformers, with random weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.bench.wild_cases import Work, case
from models.bench.wild_cases.data import Draw, batches, integers, normals, ones

_WORDS = 2000


def trained(model: Any, rate: float = 1e-4, **draws: Draw) -> Work:
    """A step with the loss that the model computes itself, and Adam.

    Args:
      model: of transformers.
      rate: of learning.
      **draws: the model's inputs by their names.
    """
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(rate)

    @tf.function
    def step(*inputs):
        with tf.GradientTape() as tape:
            outputs = model(dict(zip(draws, inputs, strict=True)), training=True)
            loss = tf.reduce_mean(outputs.loss)
        variables = model.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return loss

    return Work(step, batches(*draws.values()))


def tokens(batch: int, length: int, words: int = _WORDS) -> Draw:
    """Token ids without the first three, which stand for padding and ends."""
    drawn = integers(batch, length, below=words - 3)
    return lambda random: drawn(random) + 3


@case("transformers", legacy_keras=True)
def bert() -> Work:
    """A masked language model."""
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=_WORDS,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
    )
    draws = {name: tokens(16, 96) for name in ("input_ids", "labels")}
    return trained(hf.TFBertForMaskedLM(config), **draws, attention_mask=ones(16, 96))


@case("transformers", legacy_keras=True)
def distilbert() -> Work:
    """A classifier of texts."""
    import transformers as hf

    config = hf.DistilBertConfig(
        vocab_size=_WORDS, dim=128, n_layers=4, n_heads=4, hidden_dim=512, num_labels=4
    )
    model = hf.TFDistilBertForSequenceClassification(config)
    return trained(model, input_ids=tokens(16, 128), labels=integers(16, below=4))


@case("transformers", legacy_keras=True)
def albert() -> Work:
    """Layers that share their weights; questions answered by positions."""
    import transformers as hf

    config = hf.AlbertConfig(
        vocab_size=_WORDS,
        embedding_size=64,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
    )
    positions = {f"{end}_positions": integers(16, below=128) for end in ("start", "end")}
    return trained(hf.TFAlbertForQuestionAnswering(config), input_ids=tokens(16, 128), **positions)


@case("transformers", legacy_keras=True)
def electra() -> Work:
    """A label for each token."""
    import transformers as hf

    config = hf.ElectraConfig(
        vocab_size=_WORDS,
        embedding_size=64,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=5,
    )
    model = hf.TFElectraForTokenClassification(config)
    return trained(model, input_ids=tokens(16, 128), labels=integers(16, 128, below=5))


@case("transformers", legacy_keras=True)
def deberta() -> Work:
    """Disentangled attention, with gathers along relative positions."""
    import transformers as hf

    config = hf.DebertaV2Config(
        vocab_size=_WORDS,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=32,
        num_labels=3,
    )
    model = hf.TFDebertaV2ForSequenceClassification(config)
    return trained(model, input_ids=tokens(8, 96), labels=integers(8, below=3))


@case("transformers", legacy_keras=True)
def gpt2() -> Work:
    """A language model."""
    import transformers as hf

    config = hf.GPT2Config(vocab_size=_WORDS, n_embd=128, n_layer=6, n_head=4, n_positions=128)
    draws = {name: tokens(8, 128) for name in ("input_ids", "labels")}
    return trained(hf.TFGPT2LMHeadModel(config), **draws)


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
    draws = {name: tokens(8, 96) for name in ("input_ids", "labels")}
    return trained(hf.TFT5ForConditionalGeneration(config), **draws)


@case("transformers", legacy_keras=True)
def bart() -> Work:
    """Encoder and decoder with learned positions."""
    import transformers as hf

    sides = {f"{side}_layers": 3 for side in ("encoder", "decoder")}
    sides |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": 512 for side in ("encoder", "decoder")}
    config = hf.BartConfig(vocab_size=_WORDS, d_model=128, max_position_embeddings=128, **sides)
    draws = {name: tokens(8, 96) for name in ("input_ids", "labels")}
    return trained(hf.TFBartForConditionalGeneration(config), **draws)


@case("transformers", legacy_keras=True)
def xlnet() -> Work:
    """Two-stream attention with relative positions."""
    import transformers as hf

    config = hf.XLNetConfig(
        vocab_size=_WORDS, d_model=128, n_layer=3, n_head=4, d_inner=512, num_labels=3
    )
    model = hf.TFXLNetForSequenceClassification(config)
    return trained(model, input_ids=tokens(8, 96), labels=integers(8, below=3))


@case("transformers", legacy_keras=True)
def vit() -> Work:
    """Images cut into patches."""
    import transformers as hf

    config = hf.ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=10,
    )
    model = hf.TFViTForImageClassification(config)
    draws = {"pixel_values": normals(32, 3, 64, 64), "labels": integers(32, below=10)}
    return trained(model, **draws)


@case("transformers", legacy_keras=True)
def swin() -> Work:
    """Windows that are rolled and masked."""
    import transformers as hf

    config = hf.SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=48,
        depths=[2, 2],
        num_heads=[3, 6],
        window_size=4,
        num_labels=10,
    )
    model = hf.TFSwinForImageClassification(config)
    draws = {"pixel_values": normals(16, 3, 64, 64), "labels": integers(16, below=10)}
    return trained(model, **draws)


@case("transformers", legacy_keras=True)
def segformer() -> Work:
    """A class for each pixel, from features of four sizes."""
    import transformers as hf

    config = hf.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 80, 96],
        decoder_hidden_size=64,
        num_attention_heads=[1, 2, 5, 6],
        num_labels=6,
    )
    model = hf.TFSegformerForSemanticSegmentation(config)
    draws = {"pixel_values": normals(8, 3, 96, 96), "labels": integers(8, 96, 96, below=6)}
    return trained(model, **draws)


@case("transformers", legacy_keras=True)
def whisper() -> Work:
    """Speech to text: convolutions over time, encoder, decoder."""
    import transformers as hf

    sides = {f"{side}_layers": 2 for side in ("encoder", "decoder")}
    sides |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": 512 for side in ("encoder", "decoder")}
    config = hf.WhisperConfig(
        vocab_size=_WORDS,
        d_model=128,
        num_mel_bins=40,
        max_source_positions=100,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **sides,
    )
    model = hf.TFWhisperForConditionalGeneration(config)
    return trained(model, input_features=normals(16, 40, 200), labels=tokens(16, 48))


@case("transformers", legacy_keras=True)
def clip() -> Work:
    """Images and texts, pulled together."""
    import transformers as hf

    both = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3}
    both |= {"num_attention_heads": 4, "projection_dim": 64}
    text = hf.CLIPTextConfig(vocab_size=_WORDS, max_position_embeddings=48, **both)
    vision = hf.CLIPVisionConfig(image_size=64, patch_size=8, **both)
    config = hf.CLIPConfig.from_text_vision_configs(text, vision, projection_dim=64)
    model = hf.TFCLIPModel(config)
    import tf_keras as keras

    optimizer = keras.optimizers.Adam(1e-4)

    @tf.function
    def step(words, pixels):
        with tf.GradientTape() as tape:
            loss = model(input_ids=words, pixel_values=pixels, return_loss=True, training=True).loss
            loss = tf.reduce_mean(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Work(step, batches(tokens(24, 48), normals(24, 3, 64, 64)))
