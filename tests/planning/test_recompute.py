"""Recomputation carried out: equal numbers over many steps, and the peak that was promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfmem.runtime.limited import run_limited
from tfmem.units import format_bytes

GIB = 2**30
ROOT = Path(__file__).parents[2]


ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}
"""TensorFlow's own gradients of convolutions gather patches of up to 30 MiB, whatever the batch: in
models as small as here little else counts."""


def run(check: str, *arguments: object) -> dict:
    outcome = run_limited(
        f"tests.children.recompute:{check}",
        *arguments,
        limit_bytes=GIB,
        timeout=240,
        reserve=True,
        environment=ONEDNN,
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    return outcome.result


@pytest.mark.parametrize("model", ["densenet", "unet"])
def test_twenty_steps_are_equal_in_half_the_memory(model: str) -> None:
    facts = run("recomputed", model, 0.6)
    assert facts["clones"] > 0
    assert facts["predicted"] <= facts["budget"]
    assert facts["measured"] <= 1.05 * facts["budget"]
    assert facts["losses"][0] == pytest.approx(facts["losses"][1], rel=1e-5)
    assert facts["difference"] < 1e-3


@pytest.mark.parametrize("model", ["gpt", "lstm", "moe_transformer", "resnet"])
def test_twenty_steps_are_equal_with_every_technique_at_once(model: str) -> None:
    facts = run("everything", model)
    plain, ordered, everything = facts["losses"]
    assert len(everything) == 20
    assert everything[:3] == pytest.approx(plain[:3], rel=1e-6)
    if everything != pytest.approx(ordered, rel=1e-5):
        kept = ROOT / "out" / f"other-numbers-{model}.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(facts["plan"], encoding="utf-8")
        pytest.fail(f"other numbers, with the plan in {kept}:\n{ordered}\n{everything}")
    assert facts["difference"] < 1e-3
    assert sum(map(bool, facts["used"])) >= 1
    assert facts["predicted"] <= facts["budget"] < facts["before"]
    original, ordered_peak, optimized = facts["measured"]
    assert optimized < facts["before"]
    assert optimized < min(original, ordered_peak)
    assert facts["budget"] < 0.9 * facts["before"]


def test_masks_that_are_drawn_anew_each_step_are_kept() -> None:
    facts = run("dropped", None)
    assert facts["clones"]
    assert not any("RandomUniform" in name for name in facts["clones"])
    np.testing.assert_array_equal(*facts["losses"])
    assert len(set(facts["losses"][0])) == 5


def test_what_others_hold_on_the_device_is_part_of_the_budget() -> None:
    facts = run("crowded", "gpt")
    assert facts["predicted"] <= facts["budget"]
    assert facts["measured"] <= 1.05 * facts["budget"]
    assert facts["predicted"] == pytest.approx(facts["measured"], rel=0.1)
    asked = f"the budget of {format_bytes(facts['alone'])} cannot be met on "
    assert facts["said"].startswith(asked)
    assert "beside the function" in facts["said"]
    assert facts["least"] > facts["alone"]
