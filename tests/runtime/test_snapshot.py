"""Variables get back what they had, bit by bit, and take no more of the device for it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.children.host import MIB
from tfmem.bridge import kernels
from tfmem.errors import Error, HostMemoryError, OutOfMemoryError
from tfmem.runtime import host, snapshot
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


@pytest.mark.parametrize("name", VALUES)
def test_rows_of_every_type_come_back(name: str) -> None:
    """By rows where there are kernels for that, else as a whole."""
    variable = tf.Variable(tf.repeat(VALUES[name][None], 3, 0))
    before = variable.numpy()
    snapshot = Snapshot([variable], {id(variable)})
    variable.assign(tf.zeros_like(variable))
    snapshot.restore()
    np.testing.assert_array_equal(variable.numpy(), before)


def test_rows_are_copied_where_a_device_has_kernels_for_that() -> None:
    for kind in ("CPU", "GPU"):
        for dtype in (tf.float32, tf.bfloat16, tf.bool, tf.int64):
            assert kernels.has_kernel("ResourceScatterUpdate", kind, dtype=dtype, Tindices=tf.int32)
    known = {"dtype": tf.complex64, "Tindices": tf.int32}
    assert kernels.has_kernel("ResourceGather", "GPU", **known)
    assert not kernels.has_kernel("ResourceScatterUpdate", "GPU", **known)


def test_variables_that_find_no_room_are_named_and_the_others_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where somebody else has taken what a step without memory let go of."""
    large, small = tf.Variable(tf.ones([100])), tf.Variable(tf.ones([4]))
    taken = Snapshot([large, small])
    assign = snapshot._assign

    def assigned(variable: tf.Variable, value: np.ndarray) -> None:
        if variable is large:
            raise tf.errors.InternalError(None, None, "Dst tensor is not initialized.")
        assign(variable, value)

    monkeypatch.setattr(snapshot, "_assign", assigned)
    for variable in (large, small):
        variable.assign(tf.zeros_like(variable))
    with pytest.raises(OutOfMemoryError, match=f"{large.name} on .*CPU:0 their values back"):
        taken.restore()
    assert small.numpy().all()
