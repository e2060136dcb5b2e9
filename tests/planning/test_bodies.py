"""Loops and branches: what they run is planned, and keeps the budget of the graph around them."""

from __future__ import annotations

import pytest

from tests.children import bodies
from tfmem.runtime.limited import run_limited

GIB = 2**30


@pytest.mark.parametrize("check", [bodies.in_a_loop, bodies.in_a_branch])
def test_a_step_within_a_body_is_equal_in_less_memory(check) -> None:
    outcome = run_limited(
        f"tests.children.bodies:{check.__name__}", 0.6, limit_bytes=GIB, timeout=240, reserve=True
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    facts = outcome.result
    plain, measured = facts["peaks"]
    assert facts["clones"] > 0
    assert facts["is_equal_json"]
    assert facts["predicted"] <= facts["budget"] < facts["least"] + plain
    assert measured <= 1.05 * facts["budget"]
    assert measured < 0.8 * plain
    assert abs(facts["predicted"] / measured - 1) < 0.1
    assert facts["losses"][0] == pytest.approx(facts["losses"][1], rel=1e-5)
    assert facts["difference"] < 1e-5


def test_what_a_loop_over_a_data_set_takes_is_bounded() -> None:
    """Its body runs in no order that is known: the bound is of any."""
    outcome = run_limited(
        "tests.children.bodies:in_a_data_set", limit_bytes=4 * GIB, timeout=240, reserve=True
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    predicted, measured = outcome.result
    assert measured <= predicted < 5 * measured
