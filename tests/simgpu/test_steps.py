"""Steps of many kinds on the simulated GPU, each under a budget: numbers, peaks, techniques."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simgpu.step_runner import CASES
from tfmem.runtime.limited import run_limited
from tfmem.runtime.memory import MIB


@pytest.fixture(scope="module")
def trained(simulated_gpu: dict[str, str]) -> dict[str, dict[str, Any]]:
    done = run_limited(
        "tests.simgpu.step_runner:trained",
        list(CASES),
        limit_bytes=1024 * MIB,
        timeout=400,
        gpu=True,
        environment=simulated_gpu,
    )
    assert done.status == "ok", done.error + done.output
    return dict(done.result)


@pytest.mark.parametrize("name", CASES)
def test_a_step_keeps_its_budget_and_its_numbers(
    name: str, trained: dict[str, dict[str, Any]]
) -> None:
    found = trained[name]
    assert "error" not in found, found["error"]
    assert found["difference"] <= 1e-5
    assert max(found["peaks"]) <= found["budget"] < found["plain"]
    assert found["predicted"] <= found["budget"]
    assert set(CASES[name].does) <= set(found["does"])
