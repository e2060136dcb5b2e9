"""The audit of a step tells what was not foreseen, and finds next to nothing."""

from __future__ import annotations

import pytest

from models.bench.audit import Audit, Request
from tfmem.runtime.limited import run_limited


def test_what_differs_is_told_by_op() -> None:
    foreseen = (Request("a", "MatMul", 2**20), Request("b", "Exp", 512), Request("c", "Exp", 2**16))
    real = (
        Request("a", "MatMul", 2**20),
        Request("a", "MatMul", 2**17, stays=True),
        Request("b", "Exp", 512),
        Request("d", "Sum", 2**15),
        Request("d", "Sum", 2**15),
    )
    audit = Audit(foreseen, real, predicted=100, measured=200, order=("a", "b", "c", "d"))
    count, unforeseen, absent = audit.aligned()
    assert (count, unforeseen, absent) == (2, [real[1], *real[3:]], [foreseen[2]])
    assert audit.aligned(2**16) == (1, [real[1]], [foreseen[2]])
    lines = audit.text().splitlines()
    assert "asked all: 2 of 5 as foreseen" in lines
    assert next(line for line in lines if line.startswith("MatMul")).split() == [
        *("MatMul", "1", "128.0", "KiB", "128.0", "KiB", "0", "of", "4", "1"),
    ]
    assert next(line for line in lines if line.startswith("Sum")).split()[1:6] == [
        *("2", "32.0", "KiB", "64.0", "KiB"),
    ]


@pytest.mark.memory
def test_large_buffers_of_a_step_come_as_they_were_foreseen() -> None:
    outcome = run_limited(
        "tests.children.audit:audited", "gpt", limit_bytes=2**30, timeout=240, reserve=True
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    facts = outcome.result
    assert facts["count"] > 300
    assert len(facts["unforeseen"]) <= 0.01 * facts["count"], facts["text"]
    assert len(facts["absent"]) <= 0.01 * facts["count"], facts["text"]
    assert facts["stays"] == []
    assert facts["measured"] == pytest.approx(facts["predicted"], rel=0.03)
