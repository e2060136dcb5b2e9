"""Steps of many kinds on the simulated GPU, each under a budget: numbers, peaks, techniques."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simgpu.step_runner import CASES
from tfmem.runtime.limited import run_limited
from tfmem.runtime.memory import MIB

IN_A_PROCESS, AGAIN = 6, 2
"""Cases one after the other, and how many at most may have to be trained once more by themselves.
What those before leave between their buffers pads those of the next, as when their copies come
does: one of 44 steps was not as it should be in two of nine runs (decision 0119).
"""


@pytest.fixture(scope="module")
def trained(simulated_gpu: dict[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    names = list(CASES)
    for first in range(0, len(names), IN_A_PROCESS):
        found |= _trained(names[first : first + IN_A_PROCESS], simulated_gpu)
    again = [name for name, one in found.items() if "error" in one or not _keeps(one)]
    assert len(again) <= AGAIN, [found[name] for name in again]
    for name in again:
        found |= _trained([name], simulated_gpu)
    return found


def _trained(names: list[str], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    done = run_limited(
        "tests.simgpu.step_runner:trained",
        names,
        limit_bytes=1024 * MIB,
        timeout=400,
        gpu=True,
        environment=environment,
    )
    assert done.status == "ok", done.error + done.output
    return dict(done.result)


def _keeps(found: dict[str, Any]) -> bool:
    return bool(max(found["peaks"]) <= found["budget"] < found["plain"])


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
