"""What `tests.children.gpu` asks: of a GPU where there is one, and of the CPU."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from models.bench import gpu, gpu_page
from models.bench.experiment import Experiment, Row, load
from models.bench.results import FIVE
from tests.children.gpu import CHECKS
from tfmem.runtime.limited import run_limited

has_gpu = bool(tf.config.list_physical_devices("GPU"))


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name: str) -> None:
    run(name, gpu=True)


@pytest.mark.memory
@pytest.mark.parametrize("name", ["copies_free_memory", "kernels_are_measured"])
def test_on_the_cpu(name: str) -> None:
    """The others take parts that other tests try on the CPU; `bench gpu --nogpu` asks them all."""
    run(name, gpu=False)


def run(name: str, gpu: bool) -> None:
    target = f"tests.children.gpu:{name}"
    done = run_limited(target, limit_bytes=CHECKS[name], timeout=300, reserve=True, gpu=gpu)
    assert done.status == "ok", f"{done.error}\n{done.output}"


# --- the command


def fake(experiment: Experiment, *, gpu: bool, timeout: float) -> Row:
    """A model of 16 GB at its usual size; tfmem trains up to 640 GB, plain up to its limit."""
    assert 0 < timeout <= 60
    model = load(experiment.model)
    usual = getattr(model.CONFIGS[experiment.config], model.GROWTH)
    size = experiment.changes.get(model.GROWTH, usual) / usual
    need = int(16e9 * size)
    row = Row(experiment.model, experiment.mode, experiment.limit, config=experiment.changes,
              parameters=int(1e9 * size), tokens=1000)  # fmt: skip
    if experiment.mode == "tfmem" and need <= 640e9:
        peak = min(need, experiment.budget or experiment.limit)
        times = 1.0 + 0.1 * (need > peak) + 0.5 * size
        return dataclasses.replace(row, measured_peak_bytes=peak, predicted_peak_bytes=peak,
                                   step_seconds=times, predicted_seconds=1.1 * times)  # fmt: skip
    if experiment.limit and need > experiment.limit:
        return dataclasses.replace(row, outcome="out of memory")
    return dataclasses.replace(row, measured_peak_bytes=need, step_seconds=1.5 * size)


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> gpu.Notes:
    monkeypatch.setattr(gpu, "run_alone", fake)
    return gpu.check(gpu.GpuRun(tmp_path, only=("five models", "largest"), gpu=False, **options))


def test_the_page_of_a_gpu_holds_what_is_asked_against_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_page.LARGEST, "moe_transformer", ("largest MoE transformer", 4, 64))
    found = checked(tmp_path, monkeypatch, seconds=60.0)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| average: times less memory | 4 | 3.3 | 4.00 (5 models) |" in page
    assert "| average: times plain's step | 1.2 | 1.85 | 1.07 |" in page
    assert "| MoE transformer: times less memory | 6 | 6 | 6.00 (1 models) |" in page
    assert page.count("| tfmem, a sixth of plain's peak |") == 1
    assert "| predicted step, worst | 15 % | - | 10.0% |" in page
    assert "| where plain fits: times plain's step, most | 1.01 | - | - |" in page  # it never does
    plain, ours = (found.rows["largest", "moe_transformer", mode] for mode in ("plain", "tfmem"))
    assert plain.measured_peak_bytes <= 12e9 < 1.3 * plain.measured_peak_bytes
    assert f"| experts {ours.config['experts']} | " in page
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {line["model"] for line in lines if line["section"] == "five models"} == set(FIVE)
    assert {line["name"] for line in lines if line["section"] == "five models"} >= {
        "plain", "plain, no limit", "tfmem, a quarter of plain's peak", "jit_compile",
        "recompute_grad", "TensorFlowMem's policy: order",
    }  # fmt: skip


def test_what_there_is_no_time_for_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(tmp_path, monkeypatch, seconds=5.0)
    assert {row.outcome for row in found.rows.values()} == {"not run: no time was left"}


@pytest.mark.skipif(has_gpu, reason="there is a GPU")
def test_without_a_gpu_the_command_writes_an_empty_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "models.bench", "gpu", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 3, done.stderr
    assert "There is no GPU here: nothing was measured." in done.stdout
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| largest MoE transformer | plain | - |" in page
    assert "| Identity on the host | - | - | - |" in page
    assert (tmp_path / "rows.jsonl").read_text() == ""


def test_the_page_says_which_small_steps_kept_their_budgets(tmp_path: Path) -> None:
    notes = gpu.Notes(gpu.GpuRun(tmp_path, only=("steps",), gpu=False))
    kept = {"plain": 9_000_000, "budget": 6_000_000, "predicted": 5_900_000,
            "peaks": [5_800_000, 5_900_000], "difference": 0.0}  # fmt: skip
    notes.add("steps", "dense", kept)
    notes.add("steps", "labels", kept | {"peaks": [5_800_000, 6_100_000], "difference": 2e-4})
    notes.add("steps", "adam", {"error": "Traceback ...\ntfmem.errors.Error: why"})
    page = notes.page.read_text()
    assert "| dense | 9.0 MB | 6.0 MB | 5.9 MB | 5.9 MB | bitwise | ok |" in page
    assert "| labels | 9.0 MB | 6.0 MB | 5.9 MB | 6.1 MB | 2.0e-04 | budget broken |" in page
    assert "| adam | - | - | - | - | - | tfmem.errors.Error: why |" in page
    assert "1 of 3 kept their budget." in page
