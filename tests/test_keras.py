"""`tfmem.keras.MemoryBudget` in Keras 3 and in tf-keras."""

from __future__ import annotations

import functools
import gc
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfmem
import tfmem.keras
from models.bench.fit_cases import CASES
from tests.children.keras import EPOCH_LOGS
from tfmem.runtime.limited import Outcome, run_limited

LIBRARIES = ("keras", "tf_keras")
MIB = 2**20


CHOSEN = {"keras": "second fit from an epoch", "tf_keras": "planned validation"}
"""Cases of every run of the tests; `python -m models.bench.fits` runs all in both."""


@pytest.mark.memory
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_budget_changes_no_number(library: str) -> None:
    case = CHOSEN[library]
    outcome = run_limited(
        "tests.children.keras:compared", library, case, limit_bytes=4096 * MIB, timeout=900
    )
    assert outcome.status == "ok", outcome.output[-3000:]
    found = outcome.result
    assert any(found["is_planned"])
    tolerance = CASES[case].tolerance
    for name, values in found["plain"].items():
        assert found["planned"][name] == pytest.approx(values, rel=tolerance), name
    assert found["difference"] <= tolerance
    assert found["has_own_function"]
    epochs = len(found["plain"]["loss"])
    for name in EPOCH_LOGS:
        assert len(found["planned"][name]) == epochs


def limited(library: str, is_planned: bool, limit: int, share: float = 1.0) -> Outcome:
    return run_limited(
        "tests.children.keras:limited", library, is_planned, share, limit_bytes=limit, timeout=200
    )


@functools.cache
def plain(library: str) -> Outcome:
    found = limited(library, False, 4096 * MIB)
    assert found.status == "ok", found.output[-3000:]
    return found


@pytest.mark.memory
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_limit_that_ends_plain_training_is_kept(library: str) -> None:
    free = plain(library)
    limit = int(0.6 * free.result["peak"])
    assert limited(library, False, limit).status == "out_of_memory"
    kept = limited(library, True, limit)
    assert kept.status == "ok", kept.output[-3000:]
    assert kept.result["peak"] <= limit
    for name, values in free.result["history"].items():
        assert kept.result["history"][name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.memory
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fit_with_sizes_that_are_not_true_is_planned_again(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = plain(library)
    limit = int(0.6 * free.result["peak"])
    for turn in range(3):
        monkeypatch.setenv("TFMEM_CACHE_DIR", str(tmp_path / str(turn)))  # lessons are kept there
        found = limited(library, True, limit, 0.8)
        # What was learned in the first step may not do for the shorter last batch.
        if "random ops with a seed would give other numbers" not in found.error + found.output:
            break
    assert found.status == "ok", found.output[-3000:]
    assert found.result["peak"] <= limit
    assert "planned again" in found.result["events"][0]
    for name, values in free.result["history"].items():
        assert found.result["history"][name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.memory
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_is_as_it_was_whatever_ends_a_fit(library: str) -> None:
    pytest.importorskip(library)
    outcome = run_limited(
        "tests.children.keras:ended", library, 2, limit_bytes=400 * MIB, timeout=200
    )
    assert outcome.status == "ok", outcome.error + outcome.output[-3000:]
    found = outcome.result
    assert found["placed"]
    assert [found[kind] for kind in ("data", "callback", "keyboard")] == [[1, 0], [1, 0], [2, 0]]
    assert np.isfinite(found["losses"]).all()


def model_of(library: str, **options: Any) -> Any:
    keras = pytest.importorskip(library)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model: Any, *callbacks: Any) -> Any:
    import numpy as np

    x = np.ones((8, 4), "float32")
    return model.fit(x, x[:, :2], verbose=0, callbacks=list(callbacks))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_small_model_learns_the_same_within_a_budget(library: str) -> None:
    with pytest.raises(tfmem.BudgetError) as refused:
        learnt(library, tfmem.keras.MemoryBudget(1))
    callback = tfmem.keras.MemoryBudget(int(1.2 * refused.value.least_bytes))
    plain, planned = learnt(library), learnt(library, callback)
    (plan,) = callback.plans
    assert plan.recomputations
    assert planned["loss"] == pytest.approx(plain["loss"], rel=1e-5)


def learnt(library: str, *callbacks: Any) -> dict[str, list[float]]:
    """Losses of a model that always begins alike, with masks and norms."""
    import numpy as np

    keras = pytest.importorskip(library)
    keras.utils.set_random_seed(7)
    layers = keras.layers
    body = [
        layer
        for _ in range(3)
        for layer in (layers.Dense(32, "tanh"), layers.Dropout(0.2), layers.LayerNormalization())
    ]
    model = keras.Sequential([keras.Input((32,)), *body, layers.Dense(4)])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
    return model.fit(x, x[:, :4], batch_size=512, epochs=2, verbose=0, callbacks=callbacks).history


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_budget_that_cannot_be_met_leaves_the_model_as_it_was(library: str) -> None:
    model = model_of(library)
    before = [weight.copy() for weight in model.get_weights()]
    with pytest.raises(tfmem.BudgetError, match="least reachable peak"):
        fit(model, tfmem.keras.MemoryBudget(1))
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    assert type(model.train_function).__module__ != "tfmem.keras"
    fit(model)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_that_runs_eagerly_is_refused(library: str) -> None:
    with pytest.raises(tfmem.Error, match="runs eagerly"):
        fit(model_of(library, run_eagerly=True), tfmem.keras.MemoryBudget("1GB"))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("is_loop", [True, False])
def test_a_function_of_several_batches_is_refused(library: str, is_loop: bool) -> None:
    """One batch at a time would end it before it has done anything, or be learnt in each turn."""
    import tensorflow as tf

    model, counts = model_of(library), tf.range(2) if is_loop else range(2)

    def make_train_function(force: bool = False) -> Any:
        @tf.function
        def function(iterator: Any) -> Any:
            for _ in counts:
                x, y = next(iterator)
                model(x) - y
            return {"loss": 0.0}

        model.train_function = function
        return function

    model.make_train_function = make_train_function
    with pytest.raises(tfmem.Error, match="several batches at a call"):
        fit(model, tfmem.keras.MemoryBudget("1GB"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_that_is_not_compiled_is_told_by_keras(library: str) -> None:
    keras = pytest.importorskip(library)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises((ValueError, RuntimeError), match="compile"):
        fit(model, tfmem.keras.MemoryBudget("1GB"))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("is_another", [False, True])
def test_a_model_that_is_compiled_anew_is_trained_as_that_says(
    library: str, is_another: bool
) -> None:
    """Also where the error that ended a fit, and with it that fit's callbacks, is kept."""
    keras = pytest.importorskip(library)
    model, budget, kept = model_of(library), tfmem.keras.MemoryBudget("1GB"), []

    def fail(*_: Any) -> None:
        raise RuntimeError("disk full")

    try:
        fit(model, budget, keras.callbacks.LambdaCallback(on_epoch_end=fail))
    except RuntimeError as error:
        kept.append(error)
    model.compile(keras.optimizers.SGD(0.0), "mae")
    before = model.get_weights()
    fit(model, tfmem.keras.MemoryBudget("1GB") if is_another else budget)
    kept.clear()
    gc.collect()
    fit(model)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    assert type(model.train_function).__module__ != "tfmem.keras"


@pytest.mark.parametrize("library", LIBRARIES)
def test_fits_of_one_callback_take_batches_of_other_kinds(library: str) -> None:
    """Larger pictures, or weights of samples; the model is not compiled anew for them."""
    import numpy as np

    keras = pytest.importorskip(library)
    layers = [keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((None, None, 1)), *layers])
    model.compile("sgd", "mse")
    callback, y = tfmem.keras.MemoryBudget("1GB"), np.ones((8, 2), "float32")
    histories = [
        model.fit(np.ones((8, side, side, 1)), y, verbose=0, callbacks=[callback], **more).history
        for side, more in ((4, {}), (6, {}), (6, {"sample_weight": np.ones(8)}), (4, {}))
    ]
    assert all(np.isfinite(one["loss"]).all() for one in histories)
    assert callback.plans


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(tfmem.Error, match="no model of Keras 3 or tf-keras"):
        tfmem.keras.MemoryBudget("1GB").set_model(object())


def test_bad_options_are_said_at_once() -> None:
    with pytest.raises(tfmem.Error, match="no amount of memory"):
        tfmem.keras.MemoryBudget("lots")


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keras = pytest.importorskip("keras")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(tfmem.Error, match="runs on jax"):
        tfmem.keras.MemoryBudget("1GB").set_model(model_of("keras"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_compilation_is_off_and_told_once(library: str, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(library, jit_compile=True)
    callback = tfmem.keras.MemoryBudget("1GB")
    with caplog.at_level(logging.WARNING, "tfmem"):
        fit(model, callback)
        fit(model, callback)
    assert sum("jit_compile is off" in message for message in caplog.messages) == 1
    assert model.jit_compile


def test_a_report_of_the_train_step_can_be_had() -> None:
    callback = tfmem.keras.MemoryBudget("1GB")
    assert callback.reports() == ()
    fit(model_of("keras"), callback)
    (report,) = callback.reports()
    assert json.loads(report.to_json())["budget"] == 10**9
