"""Budgets are kept where the allocator may have any amount more, and has holes of its own."""

from __future__ import annotations

import pytest

from tfmem.runtime.limited import run_limited


@pytest.mark.memory
def test_a_plan_knows_the_holes_that_its_buffers_are_put_into() -> None:
    outcome = run_limited("tests.children.growing:among_holes", limit_bytes=2**36, timeout=120)
    assert outcome.status == "ok", outcome.error + outcome.output
    for found in outcome.result:
        assert not found["events"]
        assert found["measured"] <= found["budget"]
        assert found["predicted"] == pytest.approx(found["measured"], rel=0.05)
