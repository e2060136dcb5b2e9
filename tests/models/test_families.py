"""The bench of families: which budgets it asks for, what it keeps, what its page says."""

from __future__ import annotations

import json

import pytest

from models.bench import families
from models.bench.wild_cases import FITS, cases
from models.bench.wild_verdict import Events

MIB = 2**20
START = [{"event": "building"}, {"event": "built"}, {"event": "planning"}]


def told(*events: dict) -> Events:
    return Events(tuple({"step": 0, **event} for event in (*START, *events)), 0, "")


def trained(peak: int) -> Events:
    steps = [
        {"event": "step", "step": place, "losses": [1.0 / place], "peak": peak, "seconds": 0.1}
        for place in (1, 2)
    ]
    return told(*steps, {"event": "end"})


def refused(least: int) -> Events:
    text = f"BudgetError: the least is {least}"
    error = {"event": "error", "text": text, "is_full": False, "is_refusal": True, "least": least}
    return told(error)


def test_a_budget_out_of_reach_gives_way_to_the_least_and_nothing_is_asked_twice(
    tmp_path, monkeypatch
):
    asked = []

    def observed(case, job, limit_mib, log, patience, is_stopped):
        asked.append(limit_mib)
        assert job.claims == (limit_mib is not None)
        if limit_mib is None:
            return trained(200 * MIB)
        return trained(150 * MIB) if limit_mib >= 150 else refused((limit_mib + 20) * MIB)

    monkeypatch.setattr(families, "observed", observed)
    page = tmp_path / "page.md"
    command = ["--only=hub", "--cases=hub_fits.gpt2", "--steps=2", f"--page={page}"]
    command.append(f"--rows={tmp_path / 'rows.jsonl'}")
    families.main(command)
    assert asked == [None, 160, 120, 147, 176], "1.05 times 140, then 1.05 times 167"
    text = page.read_text(encoding="utf-8")
    assert "| hub | 1 | 1 | 4 | 2 | 2 | 2 | 2 |" in text, "two of four budgets, bitwise"
    assert "| 0.6 | 125.8 MB | refused, least 146.8 MB |" in text

    families.main(command)
    families.main([*command, "--page-only"])
    assert len(asked) == 5
    assert page.read_text(encoding="utf-8") == text


def test_cases_of_the_families_are_not_those_of_the_wild_suite():
    assert not set(cases(FITS)) & set(cases())


@pytest.mark.memory
def test_a_fit_runs_from_end_to_end(tmp_path):
    rows = tmp_path / "rows.jsonl"
    command = ["--only=embedding", "--cases=embedding_fits.keras3.sgd", f"--rows={rows}"]
    families.main([*command, f"--page={tmp_path / 'page.md'}", "--steps=2"])
    made = [json.loads(line)["row"] for line in rows.read_text(encoding="utf-8").splitlines()]
    assert len(made[0]["losses"]) == 2
    assert made[1]["outcome"] in ("kept", "refused")
    assert any(row["outcome"] == "kept" for row in made)
