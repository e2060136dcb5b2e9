"""What a model gives to whoever trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf


@dataclass(frozen=True)
class Task:
    """A model with its data, ready to train.

    Attributes:
      step: one training step, a plain callable `step(*batch) -> loss` for `tf.function`.
      batches: endless batches of a fixed shape, each a tuple: the arguments of `step`.
      variables: everything a step reads or updates: weights, optimizer slots, counters.
      parameters: how many numbers are trained.
      tokens: how many tokens (or images) a step trains on, for rates.
    """

    step: Callable[..., tf.Tensor]
    batches: tf.data.Dataset
    variables: tuple[tf.Variable, ...]
    parameters: int
    tokens: int


class Model(Protocol):
    """What each module of a model defines.

    Attributes:
      CONFIGS: its configurations (frozen dataclasses) by name; "small" is the default.
      GROWTH: the field of the configuration by which the model grows.
      build: makes the variables and the step of a configuration.
      rounded: where not every size will do, the next one that does.
    """

    CONFIGS: Mapping[str, Any]
    GROWTH: str

    @staticmethod
    def build(config: Any) -> Task: ...


def recomputed(part: Callable[..., Any], by_hand: int | bool) -> Callable[..., Any]:
    """A part of a model, under `tf.recompute_grad` if asked: its gradient then has none itself."""
    return tf.recompute_grad(part) if by_hand else part


def size(default: Any, meaning: str) -> Any:
    """A field of a configuration with its default and the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": meaning})


def count(variables: tuple[tf.Variable, ...] | list[tf.Variable]) -> int:
    """How many numbers the variables hold."""
    return sum(variable.shape.num_elements() for variable in variables)
