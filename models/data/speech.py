"""Speech with transcripts: words that espeak-ng says, or tones for letters where it is not there.

Features are those of DeepSpeech: 26 MFCCs of 32 ms of sound every 20 ms, with 9 frames of context
on both sides.
"""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import wave

import numpy as np
import tensorflow as tf

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
CLASSES = len(ALPHABET) + 1
"""Letters, and last the blank of the CTC loss."""

FEATURES, CONTEXT = 26, 9
INPUTS = FEATURES * (2 * CONTEXT + 1)

_RATE, _WINDOW, _HOP = 16_000, 512, 320
_BANDS = 40  # of the mel spectrum
_LETTER = 4 * _HOP  # samples of a tone
_CLIPS = 64
_WORDS = (  # noqa: SIM905 - one text is easier to read than a list
    "one two three four five six seven eight nine ten red green blue black white left right up "
    "down stop go yes no the a it is not here there when where who why how day night sun moon sea"
).split()


def source() -> str:
    """Where the sound comes from, for people."""
    if shutil.which("espeak-ng"):
        return "speech synthesised by espeak-ng"
    return "generated tones, one for each letter (espeak-ng is not installed)"


def batches(batch: int, length: int, seed: int = 0) -> tf.data.Dataset:
    """Endless (frames, letters, count), the same in every run.

    Shapes: (batch, length, 494) float32; (batch, length // 3) int32, padded; (batch,) int32.
    """
    clips = [_clip(length, np.random.default_rng((seed, i))) for i in range(_CLIPS)]
    frames, letters, counts = (np.stack(part) for part in zip(*clips, strict=True))

    def cut(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        place = tf.math.floormod(number, _CLIPS)
        around = tf.signal.frame(tf.constant(frames)[place], 2 * CONTEXT + 1, 1, axis=0)
        inputs = tf.reshape(around, (length, INPUTS))
        return inputs, tf.constant(letters)[place], tf.constant(counts)[place]

    return tf.data.Dataset.random(seed).map(cut).batch(batch, drop_remainder=True).prefetch(1)


def _clip(length: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.int32]:
    """MFCCs of some words, with context; their letters; how many."""
    room, sound, text = length * _HOP, np.zeros(0, np.float32), ""
    while True:
        word = (" " if text else "") + random.choice(_WORDS)
        longer = np.concatenate([sound, _sound(word)])
        if len(longer) > room or len(text + word) > length // 3:
            break
        sound, text = longer, text + word
    sound = np.pad(sound, (0, room + _WINDOW - _HOP - len(sound)))
    sound += random.normal(0.0, 1e-3, len(sound)).astype(np.float32)
    letters = [ALPHABET.index(letter) for letter in text]
    padded = np.pad(np.array(letters, np.int32), (0, length // 3 - len(letters)))
    frames = np.pad(_mfcc(sound), ((CONTEXT, CONTEXT), (0, 0)))
    return frames, padded, np.int32(len(letters))


def _mfcc(sound: np.ndarray) -> np.ndarray:
    """(frames, 26), each coefficient with mean 0 and variance 1."""
    windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::_HOP]
    spectrum = np.abs(np.fft.rfft(windows * np.hanning(_WINDOW)))
    mel = tf.signal.linear_to_mel_weight_matrix(_BANDS, spectrum.shape[-1], _RATE, 20.0, 4000.0)
    places = np.arange(_BANDS) + 0.5
    cosines = np.cos(np.pi / _BANDS * np.outer(places, np.arange(FEATURES)))  # DCT of type 2
    values = np.log(spectrum @ mel.numpy() + 1e-6) @ cosines
    return ((values - values.mean(0)) / (values.std(0) + 1e-6)).astype(np.float32)


@functools.cache
def _sound(text: str) -> np.ndarray:
    """A word as samples at 16 kHz from -1 to 1."""
    if shutil.which("espeak-ng"):
        return _spoken(text)
    tones = [_tone(ALPHABET.index(letter)) for letter in text]
    return np.concatenate(tones).astype(np.float32)


def _tone(number: int) -> np.ndarray:
    time = np.arange(_LETTER) / _RATE
    loud = np.hanning(_LETTER) * (number > 0)  # a space is silent
    return 0.5 * loud * np.sin(2 * np.pi * 200.0 * 1.1**number * time)


def _spoken(text: str) -> np.ndarray:
    command = ["espeak-ng", "-s", "260", "--stdout", text.strip()]
    said = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(said)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 2.0**15
    places = np.arange(0, len(samples), rate / _RATE)
    found = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    return np.concatenate([np.zeros(_LETTER * text.startswith(" "), np.float32), found])
