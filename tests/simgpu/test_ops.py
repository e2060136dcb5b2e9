"""Kernels of the simulated GPU return what the CPU's do."""

from __future__ import annotations

from tests.simgpu import op_layers
from tests.simgpu.op_cases import CASES
from tfmem.runtime.limited import run_limited

assert op_layers  # its cases are among `CASES`

LEAST_TYPES = 300


def test_ops_return_what_they_return_on_the_cpu(simulated_gpu: dict[str, str]) -> None:
    done = run_limited(
        "tests.simgpu.op_runner:compared",
        limit_bytes=2**30,
        timeout=200,
        gpu=True,
        environment=simulated_gpu,
    )
    assert done.status == "ok", done.error + done.output
    assert not done.result["wrong"], "\n".join(done.result["wrong"])
    assert sorted(done.result["types"]) == sorted(CASES)
    assert len(CASES) >= LEAST_TYPES
