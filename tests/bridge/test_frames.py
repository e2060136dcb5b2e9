"""Loops let go of their first batch, whatever was traced with it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import tfmem
from tfmem.bridge.frames import uncopied


class _Layer(tf.Module):
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return 2.0 * x


class _Above(_Layer):
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return super().__call__(x) + 1.0


def _step() -> Any:
    layer = _Above()
    return tf.function(lambda x: layer(x))


def _batches(count: int) -> Iterator[tf.Tensor]:
    return (tf.fill((4, 4), float(k)) for k in range(count))


def _held(step: Any) -> list[bool]:
    """Whether each batch is there still when the step after it has been made."""
    known = list[Any]()
    held = list[bool]()
    for batch in _batches(3):
        step(batch)
        held += [ref() is not None for ref in known[-1:]]
        known.append(weakref.ref(batch))
    return held


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="frames keep no copies")
def test_autograph_makes_frames_hold_the_first_batch() -> None:
    assert _held(_step()) == [True, False]


def test_a_loop_lets_go_of_the_batch_that_its_step_was_planned_for() -> None:
    assert _held(tfmem.optimize(_step(), budget="1GiB")) == [False, False]


def test_copies_that_somebody_holds_stay_as_they_are() -> None:
    width = 3
    settings = locals()
    with uncopied():
        assert sys._getframe().f_locals  # as AutoGraph does
    assert settings["width"] == width


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="frames keep no copies")
@pytest.mark.parametrize("debugger", [None, lambda *_: None])
def test_nothing_is_forgotten_while_a_debugger_traces(
    monkeypatch: pytest.MonkeyPatch, debugger: Any
) -> None:
    module = tf.Module()
    known = weakref.ref(module)
    monkeypatch.setattr(sys, "gettrace", lambda: debugger)
    with uncopied():
        assert sys._getframe().f_locals  # as AutoGraph does
    del module
    assert (known() is not None) is (debugger is not None)
