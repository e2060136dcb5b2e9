"""Waiting for what makes batches in the memory that a step runs in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from tfmem.bridge import feeds
from tfmem.runtime import devices

CPU = devices.full_name("CPU:0")
BATCH = 16


class Source:
    """A pipeline whose rows each take a while, and how many of them were made."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.made = seconds, 0

    def __call__(self) -> Iterator[np.ndarray]:
        while True:
            time.sleep(self.seconds)
            self.made += 1
            yield np.zeros((8,), np.float32)

    def batches(self, *, is_tuned: bool = True) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_generator(self, output_signature=tf.TensorSpec((8,)))
        options = tf.data.Options()
        options.autotune.enabled = is_tuned
        return rows.batch(BATCH).prefetch(1).with_options(options)


def test_a_cpu_is_fed_as_long_as_an_iterator_of_a_data_set_is_held() -> None:
    iterator = iter(tf.data.Dataset.range(3).batch(2))
    assert feeds.is_fed(CPU)
    assert not feeds.is_fed("/job:localhost/replica:0/task:0/device:GPU:0")
    assert next(iterator).shape == (2,)


def test_the_next_batch_is_there_once_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a row may take longer than is waited for in a step."""
    monkeypatch.setattr(feeds, "PATIENCE", 1.0)
    source = Source(seconds=0.004)
    iterator = iter(source.batches())
    next(iterator)
    found = feeds.Feeds()
    for taken in range(2, 6):
        found.settle()
        there = source.made
        assert there >= taken * BATCH
        time.sleep(0.03)
        assert source.made == there
        next(iterator)


def test_what_has_made_nothing_since_is_not_waited_for() -> None:
    iterator = iter(Source(seconds=0).batches())
    next(iterator)
    found = feeds.Feeds()
    found.settle()
    begin = time.monotonic()
    for _ in range(20):
        found.settle()
    assert time.monotonic() - begin < feeds.PATIENCE


@pytest.mark.parametrize("is_tuned", [True, False], ids=["at its end", "that tells nothing"])
def test_an_iterator_does_not_hold_a_step_up(is_tuned: bool) -> None:
    iterator = iter(Source(seconds=0).batches(is_tuned=is_tuned).take(2))
    found = feeds.Feeds()
    begin = time.monotonic()
    for _ in iterator:
        found.settle()
    assert time.monotonic() - begin < feeds.LONGEST / 2


def test_iterators_that_come_in_the_place_of_others_are_found() -> None:
    source = Source(seconds=0.004)
    first = iter(source.batches())
    next(first)
    found = feeds.Feeds()
    del first
    second = iter(source.batches())
    source.made = 0
    next(second)
    found.settle()
    assert source.made >= 2 * BATCH


def test_an_iterator_that_is_made_beside_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PATIENCE", 1.0)
    older = iter(Source(seconds=0).batches())
    next(older)
    found = feeds.Feeds()
    found.settle()
    source = Source(seconds=0.004)
    younger = iter(source.batches())
    next(younger)
    found.settle()
    assert source.made >= 2 * BATCH
    searched: list[type] = []
    monkeypatch.setattr(feeds, "instances", searched.append)
    found.settle()
    assert not searched


def test_nothing_is_waited_for_while_a_function_is_traced() -> None:
    iterator = iter(Source(seconds=0).batches())
    found = feeds.Feeds()

    @tf.function
    def step() -> tf.Tensor:
        found.settle()
        return tf.constant(1.0)

    assert step() == 1.0
    assert next(iterator).shape == (BATCH, 8)


def test_what_a_shuffle_keeps_is_known_once_something_was_taken() -> None:
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((64, 100), np.float32))
    iterator = iter(rows.shuffle(48).repeat().batch(8).prefetch(1))
    (handle,) = tf.nest.flatten(iterator, expand_composites=True)
    assert not feeds.has_begun(handle)
    assert feeds.rows_kept(400) == 0
    next(iterator)
    feeds.Feeds().settle()
    assert feeds.has_begun(handle)
    assert 47 <= feeds.rows_kept(400) <= 48
    assert feeds.rows_kept(4000) == 0


def test_rows_that_are_sliced_where_they_lie_are_not_made(monkeypatch) -> None:
    rows, numbers = np.zeros((64, 1000), np.float32), np.zeros(64, np.int32)
    sliced = tf.data.Dataset.from_tensor_slices((rows, numbers)).shuffle(48).repeat()
    mapped = sliced.map(lambda row, number: (2.0 * row, number))
    found = {}
    for name, data in (("sliced", sliced), ("mapped", mapped)):
        iterator = iter(data.batch(8).prefetch(1))
        monkeypatch.setattr(feeds, "_held", [iterator].copy)  # not those of other tests
        next(iterator)
        feeds.Feeds().settle()
        found[name] = [*feeds.rows_made([(4000, 8), (4096, 8), (4, 8)])]
    assert found == {"sliced": [(4000, 8), (4, 8)], "mapped": [(4000, 8), (4096, 8), (4, 8)]}


def test_batches_that_are_made_as_a_whole_have_no_rows(monkeypatch) -> None:
    def made(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
        iterator = iter(dataset)
        next(iterator)
        with monkeypatch.context() as patch:
            patch.setattr(feeds, "_held", lambda: [iterator])
            return list(feeds.rows_made([(1024, 8)]))

    drawn = tf.data.Dataset.range(9).map(lambda i: tf.random.stateless_normal([8, 256], [i, 2]))
    assert made(drawn) == []
    assert made(drawn.shuffle(4).repeat().prefetch(1)) == []
    assert made(drawn.unbatch().batch(8)) == [(1024, 8)]
    assert made(tf.data.Dataset.range(9).window(3).flat_map(lambda w: w.batch(3))) == [(1024, 8)]


def test_iterators_tell_while_a_function_is_traced_and_those_inside_it_are_passed_by() -> None:
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((64, 100), np.float32))
    iterator = iter(rows.shuffle(48).repeat().batch(8))
    next(iterator)
    inner, kept = [], []

    @tf.function
    def step() -> tf.Tensor:
        inner.append(iter(rows.batch(4)))
        kept.append(feeds.rows_kept(400))
        return next(inner[0])

    assert step().shape == (4, 100)
    kept.append(feeds.rows_kept(400))
    assert 47 <= kept[0] == kept[1] <= 48
    feeds.Feeds().settle()


def test_a_thread_that_runs_is_waited_for_a_while() -> None:
    iterator = iter(Source(seconds=0).batches())
    next(iterator)
    found, is_over = feeds.Feeds(), threading.Event()
    found.settle()

    def spin() -> None:
        while not is_over.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    next(iterator)
    begin = time.monotonic()
    found.settle()
    is_over.set()
    thread.join()
    assert feeds.QUIET + feeds.LATE <= time.monotonic() - begin < feeds.LONGEST / 2


def test_a_thread_that_waits_for_a_core_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much time passes: what counts is what it has run."""
    looks = iter([{7: 1.0}, {7: 1.0, 8: 0.5}, {7: 1.02, 8: 0.51}, {8: 0.53}, {}])
    monkeypatch.setattr(feeds._Others, "_running", lambda _: next(looks).items())
    others = feeds._Others()
    assert [others.have_run() for _ in range(5)] == [False, False, False, True, True]
