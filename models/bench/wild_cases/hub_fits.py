"""KerasHub's models trained by `fit`: small, with random weights."""

from __future__ import annotations

from typing import Any

from models.bench.wild_cases import Fit, case
from models.bench.wild_cases.data import Draw, dataset, images, integers, ones
from models.bench.wild_cases.hubs import resnet_classifier, vit_classifier

_WORDS, _WIDTH, _INNER, _LENGTH = 2000, 128, 512, 96
_CLASSES = 10


def _fit(model: Any, data: Any, optimizer: str = "adam") -> Fit:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return Fit(model, data)


def _texts(batch: int, labels: Draw, **inputs: Draw) -> Any:
    """Batches as the models take them: inputs by their names, and labels."""
    tokens = integers(batch, _LENGTH, below=_WORDS)
    inputs = {"token_ids": tokens, "padding_mask": ones(batch, _LENGTH), **inputs}
    data = dataset(*inputs.values(), labels)
    return data.map(lambda *parts: (dict(zip(inputs, parts, strict=False)), parts[-1]))


@case("keras-hub")
def gpt2() -> Fit:
    """A language model."""
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    backbone = GPT2Backbone(_WORDS, 3, 4, _WIDTH, _INNER, max_sequence_length=_LENGTH)
    labels = integers(16, _LENGTH, below=_WORDS)
    return _fit(GPT2CausalLM(backbone), _texts(16, labels))


@case("keras-hub")
def bert() -> Fit:
    """A classifier of texts."""
    from keras_hub.models import BertBackbone, BertTextClassifier

    backbone = BertBackbone(_WORDS, 3, 4, _WIDTH, _INNER, max_sequence_length=_LENGTH)
    segments = integers(32, _LENGTH, below=2)
    data = _texts(32, integers(32, below=_CLASSES), segment_ids=segments)
    return _fit(BertTextClassifier(backbone, _CLASSES), data)


@case("keras-hub")
def llama() -> Fit:
    """A language model with rotary positions, grouped queries and gated layers."""
    return _llama(rank=None)


@case("keras-hub")
def llama_lora() -> Fit:
    """The same, of which only small matrices beside the frozen ones learn."""
    return _llama(rank=4)


def _llama(rank: int | None) -> Fit:
    from keras_hub.models import LlamaBackbone, LlamaCausalLM

    backbone = LlamaBackbone(_WORDS, 3, 4, _WIDTH, _INNER, 2)
    if rank is not None:
        backbone.enable_lora(rank)
    labels = integers(16, _LENGTH, below=_WORDS)
    return _fit(LlamaCausalLM(backbone), _texts(16, labels), "adamw")


@case("keras-hub")
def vit() -> Fit:
    """Images cut into patches."""
    return vit_classifier()


@case("keras-hub")
def resnet() -> Fit:
    """Convolutions with batch normalisation."""
    return resnet_classifier()


@case("keras-hub")
def mix_transformer() -> Fit:
    """Attention to fewer keys, in stages of smaller images."""
    from keras_hub.models import MiTBackbone, MiTImageClassifier

    backbone = MiTBackbone(
        layerwise_depths=[1, 1, 1],
        num_layers=3,
        layerwise_num_heads=[1, 2, 4],
        layerwise_sr_ratios=[4, 2, 1],
        max_drop_path_rate=0.1,
        layerwise_patch_sizes=[7, 3, 3],
        layerwise_strides=[4, 2, 2],
        image_shape=(96, 96, 3),
        hidden_dims=[32, 64, 128],
    )
    data = dataset(images(16, 96), integers(16, below=_CLASSES))
    return _fit(MiTImageClassifier(backbone, _CLASSES), data)
