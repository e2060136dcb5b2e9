"""The simulated GPU is a device as TensorFlow's own are: memory, limits, streams, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simgpu.child import MIB, PRODUCTS, SIDE
from tests.simgpu.device import Capabilities
from tfmem.runtime.limited import run_limited

LIMIT = 256 * MIB
KNOWN = Capabilities()


def run(check: str, environment: dict[str, str], *arguments: Any) -> dict[str, Any]:
    done = run_limited(
        f"tests.simgpu.child:{check}",
        *arguments,
        limit_bytes=LIMIT,
        timeout=120,
        gpu=True,
        environment=environment,
    )
    assert done.status == "ok", done.error + done.output
    return done.result


@pytest.fixture(scope="module")
def facts(simulated_gpu: dict[str, str]) -> dict[str, Any]:
    return run("facts", simulated_gpu)


def test_its_memory_is_handed_out_by_tensorflows_allocator(facts: dict[str, Any]) -> None:
    assert facts["device"].endswith("GPU:0")
    assert facts["limit"] == LIMIT
    assert (facts["in_use"], facts["peak"]) == (8, 24)
    assert 16 in facts["events"]
    assert facts["too_large"] == "ResourceExhaustedError"


def test_kernels_take_what_the_modelled_gpu_needs(facts: dict[str, Any]) -> None:
    seconds, count = facts["product"]
    modelled = 2 * SIDE**3 / KNOWN.flops
    assert seconds == pytest.approx(modelled + count * KNOWN.launch, rel=0.02)
    seconds, count = facts["maximum"]
    modelled = (2 + 3) * 4 * SIDE**2 / KNOWN.nbytes  # a reversal, then the larger of two
    assert seconds == pytest.approx(modelled + count * KNOWN.launch, rel=0.02)


def test_copies_take_what_the_link_needs(facts: dict[str, Any]) -> None:
    copied = facts["copied"]
    assert copied["d2h_bytes"] == pytest.approx(16 * MIB, rel=0.001)
    assert copied["d2h_seconds"] == pytest.approx(16 * MIB / KNOWN.to_host, rel=0.02)
    assert copied["d2h_pageable_bytes"] < 1024  # results that are read


def test_copies_run_beside_kernels(facts: dict[str, Any]) -> None:
    kernels, seconds = PRODUCTS * 2 * SIDE**3 / KNOWN.flops, facts["seconds"]
    assert kernels <= seconds["alone"]
    assert seconds["copying"] < kernels + 16 * MIB / KNOWN.to_host


def test_probes_find_what_it_is_capable_of(simulated_gpu: dict[str, str]) -> None:
    found = run("probed", simulated_gpu)
    assert found["to_host"] == pytest.approx(KNOWN.to_host, rel=0.3)
    assert found["from_host"] == pytest.approx(KNOWN.to_device, rel=0.3)
    assert found["duplex"] > 1.5
    assert found["flops"] == pytest.approx(KNOWN.flops, rel=0.2)
    assert found["nbytes"] == pytest.approx(KNOWN.nbytes, rel=0.2)
    assert found["start"] == pytest.approx(KNOWN.launch, rel=0.5)
    assert found["h2d_pageable_bytes"] < MIB  # plans copy from pinned memory, and so do probes


def test_kernels_that_are_asked_tell_what_they_hold(simulated_gpu: dict[str, str]) -> None:
    found = run("asked", simulated_gpu)
    assert found["shapes"] == [[SIDE, SIDE]]
    assert sorted(found["requests"]) == sorted([found["output"], *filter(None, found["scratch"])])
    assert sum(found["scratch"]) == 3 * 4 * SIDE**2
    assert found["others"] == [None] * 3  # without room, of wrong shapes, of an unknown one


def test_requests_of_a_kernel_are_recorded(simulated_gpu: dict[str, str]) -> None:
    row = run("recorded", simulated_gpu)
    assert row["outputs"] == [[40, 5]]
    assert row["requests"] == [512, 512, 256, 1024]  # the product, and three matrices as float32
    assert row["stays"] == [True, False, False, False]
    assert row["most"] == sum(row["requests"])


def test_what_is_freed_is_poison_and_what_arrives_is_not(simulated_gpu: dict[str, str]) -> None:
    found = run("poisoned", simulated_gpu | {"SIMGPU_POISON": "1"})
    assert found == {"freed": True, "arrived": MIB}
    assert run("poisoned", simulated_gpu) == {"freed": False, "arrived": MIB}


def test_batch_norms_that_are_fused_return_what_they_return_alone(
    simulated_gpu: dict[str, str], tmp_path: Path
) -> None:
    found = run("normalised", simulated_gpu, str(tmp_path / "events"))
    assert found["ops"].count("_FusedBatchNormEx") == found["fused"]
    assert max(found["differences"].values()) < 1e-5


def test_losses_of_labelled_sequences_are_the_cpus(simulated_gpu: dict[str, str]) -> None:
    found = run("labelled", simulated_gpu)
    for one, other in zip(found["found"], found["expected"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        assert np.abs(other).max() > 0.1


def test_a_copy_that_nobody_waits_for_gives_other_numbers(simulated_gpu: dict[str, str]) -> None:
    slow = Capabilities(to_device=4e7, to_host=4e7).variables  # 26 ms a copy
    simulated_gpu = simulated_gpu | slow | {"SIMGPU_POISON": "1"}
    found = run("swapped", simulated_gpu)
    assert found["swapped"] > 0
    assert max(found["differences"]) < 1e-4
    broken = run("swapped", simulated_gpu | {"SIMGPU_WAITS": "0"})
    assert any(not difference < 1 for difference in broken["differences"])  # nor is NaN


def test_two_devices_that_train_one_model_keep_their_budgets(
    two_simulated_gpus: dict[str, str],
) -> None:
    plain = run("mirrored", two_simulated_gpus, 0)
    budget = int(0.85 * min(plain["peaks"]))
    kept = run("mirrored", two_simulated_gpus, budget)
    assert plain["losses"][-1] < plain["losses"][0]
    assert kept["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert max(kept["peaks"]) <= budget
    assert kept["asked"] == plain["asked"] == plain["foreseen"]
