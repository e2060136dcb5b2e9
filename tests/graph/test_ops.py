"""The table of op facts against TensorFlow's own registry."""

from __future__ import annotations

from typing import Any

import pytest

from tests.children.ops import case_of
from tfmem.graph import ops
from tfmem.graph.ir import ARG, VARIABLE
from tfmem.runtime.limited import run_limited

RESOURCE = 20  # DT_RESOURCE


@pytest.fixture(scope="module")
def registry():  # type: ignore[no-untyped-def]
    pytest.importorskip("tensorflow")
    from tensorflow.python.framework import op_def_registry

    return op_def_registry


def test_every_op_exists_and_is_stateful_as_tensorflow_says(registry) -> None:  # type: ignore[no-untyped-def]
    for op, facts in ops.TABLE.items():
        definition = registry.get(op)
        if op == VARIABLE:
            continue
        assert definition is not None, op
        assert op == ARG or definition.is_stateful == facts.is_stateful, op


def test_variables_are_read_and_updated_through_resources(registry) -> None:  # type: ignore[no-untyped-def]
    for op, facts in ops.TABLE.items():
        if facts.writes or facts.reads is not None:
            inputs = registry.get(op).input_arg
            resources = [i for i, argument in enumerate(inputs) if argument.type == RESOURCE]
            assert list(facts.writes or (facts.reads,)) == resources, op


def test_an_unknown_op_is_stateful_and_shares_nothing() -> None:
    facts = ops.facts_of("NoSuchOp")
    assert facts.is_stateful
    assert facts.shares is None
    assert not facts.inplace


@pytest.fixture(scope="module", params=["0", "1"], ids=["own kernels", "oneDNN"])
def measured(request: pytest.FixtureRequest) -> dict:
    return checked("buffers", TF_ENABLE_ONEDNN_OPTS=request.param)


def checked(what: str, **environment: str) -> Any:
    pytest.importorskip("tensorflow")
    outcome = run_limited(
        f"tests.children.ops:{what}",
        limit_bytes=700 * 2**20,
        timeout=200,
        reserve=True,
        environment=environment,
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.mark.memory
def test_views_share_and_other_kernels_do_not(measured: dict) -> None:
    for op, (is_shared, _) in measured.items():
        assert is_shared == (ops.facts_of(op).shares is not None), op


@pytest.mark.memory
def test_kernels_take_over_the_inputs_that_are_listed(measured: dict) -> None:
    for op, (_, taken) in measured.items():
        count = len(case_of(op).inputs)
        assert taken == [i for i in ops.facts_of(op).inplace if i < count], op


@pytest.mark.memory
def test_pure_ops_give_the_same_values_again() -> None:
    assert checked("repeats") == []
