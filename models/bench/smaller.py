"""Models of the zoo, smaller than their small configurations: many runs of each take minutes."""

from __future__ import annotations

from typing import Any

SMALLER: dict[str, dict[str, Any]] = {
    "convnet": {},
    "densenet": {"layers": 4},
    "unet": {"levels": 3},
    "gpt": {"layers": 4},
    "lstm": {"length": 32},
    "transformer": {"layers": 2},
    "moe_transformer": {"layers": 2},
    "resnet": {"batch": 8, "side": 32},
    "wgan_gp": {"blocks": 2, "critic_steps": 1},
    "deepspeech": {"length": 24},
}
"""The fields that are other than those of the small configuration."""
