"""What a GPU is asked, asked of the simulated one; `make gpu-check SIMULATED=1` asks it all."""

from __future__ import annotations

import pytest

from tests.children.gpu import CHECKS
from tfmem.runtime.limited import run_limited

QUICK = (
    "a_step_fits_that_did_not",
    "keras_does_not_compile",
    "kernels_are_measured",
    "memory_may_grow",
    "saved_models_are_planned",
    "too_small_plans_are_made_again",
    "variables_live_on_the_host",
)


@pytest.mark.parametrize("name", QUICK)
def test_on_the_simulated_gpu(name: str, simulated_gpu: dict[str, str]) -> None:
    done = run_limited(
        f"tests.children.gpu:{name}",
        limit_bytes=CHECKS[name],
        timeout=200,
        reserve=True,
        gpu=True,
        environment=simulated_gpu,
    )
    assert done.status == "ok", f"{done.error}\n{done.output}"
