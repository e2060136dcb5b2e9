"""What kernels answered is kept, but for a GPU's, which have to run once in each process."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import tensorflow as tf

from tfmem.bridge.asked import Answer, Question
from tfmem.costs import history, store
from tfmem.functions.answers import answering

pytestmark = pytest.mark.usefixtures("empty_cache")

CPU, GPU = (f"/job:localhost/replica:0/task:0/device:{kind}:0" for kind in ("CPU", "GPU"))

GIVEN = ((tf.float32, (2, 64, 32, 32)), (tf.float32, (3, 3, 64, 64)))
QUESTION = Question("Conv2D", b"attrs", GIVEN, (), ((tf.float32, None),), CPU)
ANSWER = Answer(((2, 64, 32, 32), ()), (0, 1_061_296))


class Kernels:
    """Kernels that remember what they were asked."""

    def __init__(self, answer: Answer | None = ANSWER) -> None:
        self.answer, self.asked = answer, list[Question]()

    def __call__(self, question: Question) -> Answer | None:
        self.asked.append(question)
        return self.answer


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process does."""
    monkeypatch.setattr(history, "IN_PROCESS", history.Kept())


def test_an_answer_of_a_cpu_is_kept_for_later_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    for _ in range(2):
        assert answering(kernels, 100)(QUESTION) == ANSWER
        forget(monkeypatch)
    assert kernels.asked == [QUESTION]


def test_other_questions_and_settings_are_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    ask = answering(kernels, None)
    larger = replace(QUESTION, inputs=((tf.float32, (4, 64, 32, 32)), GIVEN[1]))
    for one in (
        QUESTION,
        larger,
        replace(QUESTION, attrs=b"others"),
        replace(QUESTION, op="Conv3D"),
    ):
        ask(one)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    ask(QUESTION)
    assert len(kernels.asked) == 5


def test_what_could_not_be_told_is_asked_again() -> None:
    kernels = Kernels(None)
    for _ in range(2):
        assert answering(kernels, 100)(QUESTION) is None
    assert len(kernels.asked) == 2


def test_a_damaged_answer_is_asked_again_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = Kernels()
    answering(kernels, 100)(QUESTION)
    forget(monkeypatch)
    (kept,) = store.files()
    kept.write_text(kept.read_text().replace("1061296", "1061297"))
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert answering(kernels, 100)(QUESTION) == ANSWER
    assert len(kernels.asked) == 2
    assert "is damaged" in caplog.text


def test_a_gpus_kernels_are_asked_by_each_function_that_has_a_budget() -> None:
    kernels, one = Kernels(), replace(QUESTION, device=GPU)
    assert answering(kernels, None)(one) is None
    for _ in range(2):
        assert answering(kernels, 1600)(one) == ANSWER
    assert [asked.most for asked in kernels.asked] == [100, 100]
