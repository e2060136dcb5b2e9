"""Variables get back what they had, bit by bit, and take no more of the device for it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.children.host import MIB
from tfmem.errors import Error, HostMemoryError
from tfmem.runtime import host
from tfmem.runtime.limited import run_limited
from tfmem.runtime.snapshot import Snapshot

VALUES = {
    "float": tf.constant([1.0, float("nan"), -0.0]),
    "half": tf.constant([1.0, 2.0], tf.bfloat16),
    "count": tf.constant(3, tf.int64),
    "flags": tf.constant([[True], [False]]),
    "complex": tf.constant([1 + 2j]),
    "words": tf.constant(["a", "bc"]),
    "empty": tf.zeros([0, 4]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_type_come_back(name: str) -> None:
    variable = tf.Variable(VALUES[name])
    before = variable.numpy()
    snapshot = Snapshot([variable])
    assert snapshot.restore() == []
    variable.assign(tf.zeros_like(variable))
    assert snapshot.restore() == ([] if name == "empty" else [variable.name])
    assert snapshot.restore() == []
    np.testing.assert_array_equal(variable.numpy(), before)
    assert variable.shape == VALUES[name].shape


def test_a_sign_of_zero_counts() -> None:
    variable = tf.Variable([0.0])
    snapshot = Snapshot([variable])
    variable.assign([-0.0])
    assert snapshot.restore() == [variable.name]
    assert not np.signbit(variable.numpy()[0])


def test_it_does_not_follow_the_variable() -> None:
    variable = tf.Variable(tf.zeros([1000]))
    snapshot = Snapshot([variable])
    variable.assign_add(tf.ones([1000]))  # in place
    snapshot.restore()
    assert not variable.numpy().any()
    variable.assign_add(tf.ones([1000]))
    assert float(variable[0]) == 1.0


def test_what_has_no_value_and_what_has_no_room_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfmem.bridge import handles

    with pytest.raises(Error, match="has no value yet"):
        Snapshot([handles.without_value(tf.Variable(1.0))])
    monkeypatch.setattr(host, "free_bytes", lambda device: 4000)
    Snapshot([tf.Variable(tf.zeros([1000]))])
    with pytest.raises(HostMemoryError, match=r"takes 3\.9 KiB on .*, where 3\.9 KiB are free"):
        Snapshot([tf.Variable(tf.zeros([1001]))])


@pytest.mark.memory
def test_neither_the_copy_nor_its_way_back_take_the_device() -> None:
    outcome = run_limited("tests.children.watch:snapshots", limit_bytes=100 * MIB, timeout=100)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert found["copied"] == 0
    assert found["changed"] == 2
    assert found["restored"] <= found["before"]
    assert found["most"] <= found["before"] + 256
    assert found["sums"] == found["expected"]


@pytest.mark.memory
def test_a_table_is_copied_and_put_back_some_rows_at_a_time() -> None:
    target = "tests.children.watch:snapshots_of_rows"
    outcome = run_limited(target, limit_bytes=100 * MIB, timeout=100)
    assert outcome.status == "ok", outcome.error + outcome.output
    found = outcome.result
    assert (found["same"], found["changed"]) == (0, 1)
    assert found["rows"] == found["expected"]
    assert found["most"] <= found["before"] / 10


@pytest.mark.memory
def test_a_table_that_is_passed_is_copied_before_a_watched_step() -> None:
    target = "tests.children.tables:table_as_argument"
    outcome = run_limited(target, limit_bytes=200 * MIB, timeout=100)
    assert outcome.status == "ok", outcome.error + outcome.output
    losses = outcome.result["losses"]
    assert not outcome.result["is_noop"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
