"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tests.children import saved
from tfmem.__main__ import main
from tfmem.plan import Plan
from tfmem.runtime.limited import run_limited
from tfmem.simulation import allocator

MIB = 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("saved") / "model")
    saved.write(path)
    return path


@pytest.fixture(scope="module")
def smaller(model: str) -> tuple[str, Plan]:
    output = f"{model}-smaller"
    arguments = ["--batch=256", "--budget=16MiB", f"--plan={output}.json"]
    assert main(["optimize", model, output, *arguments]) == 0
    return output, Plan.from_json(Path(f"{output}.json").read_text(encoding="utf-8"))


@pytest.mark.memory
def test_a_smaller_model_is_served_without_tfmem(model: str, smaller: tuple[str, Plan]) -> None:
    facts = []
    for path in (model, smaller[0]):
        outcome = run_limited(
            "tests.children.saved:serve", path, limit_bytes=512 * MIB, timeout=120
        )
        assert outcome.status == "ok", outcome.output[-3000:]
        facts.append(outcome.result)
    before, after = facts
    np.testing.assert_allclose(after["scores"], before["scores"], rtol=1e-5)
    assert after["smaller"] == before["smaller"] == [7, saved.BRANCHES]
    assert after["half"] == before["half"] == 0.0
    assert after["peak"] <= 16 * MIB < 0.6 * before["peak"]


def test_others_may_read_it_as_they_may_what_tensorflow_writes(
    model: str, smaller: tuple[str, Plan]
) -> None:
    assert Path(smaller[0]).stat().st_mode == Path(model).stat().st_mode


def test_explain_tells_what_is_alive(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", model, "--batch=256", f"--html={page}"]) == 0
    said = capsys.readouterr().out
    assert "alive at the planned peak" in said
    assert "what a budget would cost" in said
    assert main(["explain", model, "--shape", "x=128,64", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_unchanged"]
    assert [one["budget"] for one in report["frontier"]] == sorted(
        (one["budget"] for one in report["frontier"]), reverse=True
    )
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["explain", "nowhere"], 1, "no SavedModel"),
        (["explain", "{model}"], 1, "--batch"),
        (["explain", "{model}", "--signature=train"], 1, "no signature 'train'"),
        (["explain", "{model}", "--shape", "y=1"], 1, "no input 'y'"),
        (["explain", "{model}", "--shape", "x=1,2"], 1, "does not fit"),
        (["explain", "{model}", "--shape", "x=a"], 1, "write a name and numbers"),
        (["optimize", "{model}", "{model}", "--budget=1MB"], 1, "exists"),
        (["optimize", "{model}", "{out}", "--batch=8", "--budget=lots"], 1, "no amount"),
        (["optimize", "{model}", "{out}", "--batch=256", "--budget=1kB"], 3, "least reachable"),
        (["optimize", "{model}", "/proc/x/y", "--batch=256", "--budget=16MiB"], 1, "cannot be"),
        (["plan", "show", "nowhere.json"], 1, "cannot read"),
        (["plan", "show", "{damaged}"], 1, "not a plan"),
        (["plan", "show", "{damaged}"], 1, "damaged.json"),
        (["plan", "diff", "/", "{damaged}"], 1, "cannot read the plan in /"),
    ],
)
def test_bad_input_is_told(
    arguments: list[str],
    code: int,
    said: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged, out = tmp_path / "damaged.json", tmp_path / "out"
    damaged.write_text("{}")
    places = {"model": model, "damaged": damaged, "out": out}
    assert main([argument.format(**places) for argument in arguments]) == code
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_model_without_signatures_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "bare")
    tf.saved_model.save(tf.Module(), path)
    assert main(["explain", path]) == 1
    assert "has no signatures" in capsys.readouterr().err


def test_a_refused_budget_is_json_when_asked(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["optimize", model, f"{model}-none", "--batch=256", "--budget=1kB", "--json"]
    assert main(arguments) == 3
    assert json.loads(capsys.readouterr().out)["least_bytes"] > 1000


def test_plans_are_shown_and_compared(
    smaller: tuple[str, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = f"{smaller[0]}.json", smaller[1]
    assert main(["plan", "show", path]) == 0
    assert "predicted peak" in capsys.readouterr().out
    empty = tmp_path / "empty.json"
    empty.write_text(Plan(device=plan.device).to_json())
    assert main(["plan", "diff", path, str(empty)]) == 0
    assert f"{len(plan.order)} nodes -> 0 nodes" in capsys.readouterr().out
    assert main(["plan", "diff", path, path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_the_cache_is_listed_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TFMEM_CACHE_DIR", str(tmp_path))
    kept = tmp_path / "plans" / f"{'1' * 32}.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    assert main(["cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 1
    assert main(["cache", "--clear"]) == 0
    assert not kept.exists()
    kept.mkdir()
    assert main(["cache", "--clear"]) == 1
    assert f"cannot delete {kept}" in capsys.readouterr().err


def test_the_doctor_tells_of_devices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["tfmem"] == tfmem.__version__
    assert facts["scarce"] in {one["name"] for one in facts["devices"]}
    for is_compiled in (True, False):
        monkeypatch.setattr(allocator, "IS_COMPILED", is_compiled)
        assert main(["doctor"]) == 0
        out = capsys.readouterr().out
        assert "GFLOP/s" in out
        assert ("no C compiler" in out) != is_compiled


def test_help_has_examples_and_a_wrong_command_line_ends_with_2() -> None:
    run = [sys.executable, "-m", "tfmem"]
    said = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True).stdout
    assert "tfmem optimize saved/" in said
    assert subprocess.run([*run, "fly"], capture_output=True).returncode == 2
