"""What breaks beside tfmem, a few times each; `python -m models.bench.faults` does it often."""

from __future__ import annotations

import os

import pytest

from models.bench import faults
from models.bench.faults_files import files
from tfmem.runtime.limited import run_limited

MIB = 2**20


def run(module: str, name: str, *args: float) -> dict:
    outcome = run_limited(
        f"models.bench.{module}:{name}", *args, limit_bytes=400 * MIB, timeout=100
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


def test_damaged_files_are_told_and_not_obeyed() -> None:
    for kind, found in files(150, seed=1).items():
        assert found["damaged"] == 25, kind
        assert (found["obeyed"], found["not told"], found["bare"]) == (0, 0, 0), kind


@pytest.mark.memory
def test_updates_beside_planning_are_not_lost() -> None:
    found = run("faults_beside", "updates", 20)
    assert found["updates"] >= 20
    assert found["calls"] >= 3
    assert found["lost"] == 0


@pytest.mark.memory
def test_plans_that_cannot_be_kept_change_no_number() -> None:
    assert set(run("faults_beside", "caches", 0).values()) == {""}


@pytest.mark.memory
def test_threads_with_other_shapes_beside_training_change_no_number() -> None:
    assert run("faults_beside", "threads", 4, 2) == {"results": 16, "different": 0}


@pytest.mark.memory
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_a_fork_is_told_that_it_is_one() -> None:
    for call, said in run("faults_beside", "forks").items():
        assert said.startswith("Error: this process is a fork"), f"{call}: {said}"


@pytest.mark.memory
def test_a_host_that_is_killed_or_stopped_is_told_in_time() -> None:
    found = run("faults_host", "hosts", 2, 3, 2, 1.0)
    for counts in (found["killed"], found["paused"]):
        assert counts["times"] == 1
        assert (counts["bare"], counts["late"]) == (0, 0), found
    assert found["paused"]["lost"] == 0
    assert "killed" in faults.host_table(found)
