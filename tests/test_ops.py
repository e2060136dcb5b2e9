"""The table of op facts against TensorFlow's own registry."""

from __future__ import annotations

import pytest

from tfmem import ops
from tfmem.ir import ARG, VARIABLE

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
