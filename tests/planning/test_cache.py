"""Plans kept on disk: found again, never believed blindly."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from tests.planning.test_search import RECOMPUTE, budgets, costs_of
from tests.support.graphs import DEVICE, training_chain
from tfmem.costs import store
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.request import Request
from tfmem.planning.search import choose

GRAPH = training_chain(16, 4096)
COSTS = costs_of(GRAPH)
REQUEST = Request(device=DEVICE, budget=budgets(GRAPH, 0.7)[0], techniques=RECOMPUTE)


@pytest.fixture
def plan() -> Plan:
    return choose(GRAPH, COSTS, REQUEST).plan


@pytest.fixture
def file(plan: Plan) -> Path:
    cache.save(GRAPH, COSTS, REQUEST, plan)
    path = store.path_of("plans", cache.fingerprint(GRAPH, COSTS, REQUEST))
    assert path is not None
    assert path.exists()
    return path


def test_a_plan_is_found_again(plan: Plan, file: Path) -> None:
    found = cache.load(GRAPH, COSTS, REQUEST)
    assert found is not None
    assert found.plan == plan
    assert found.after.peak_bytes <= found.plan.peak_bytes


@pytest.mark.parametrize("change", ["graph", "costs", "budget", "techniques"])
def test_another_question_is_another_file(file: Path, change: str) -> None:
    graph = training_chain(16, 8192) if change == "graph" else GRAPH
    costs = dataclasses.replace(COSTS, to_host=1.0) if change == "costs" else COSTS
    request = REQUEST
    if change == "budget":
        request = dataclasses.replace(REQUEST, budget=12345678)
    if change == "techniques":
        request = dataclasses.replace(REQUEST, techniques=frozenset({"order"}))
    assert cache.load(graph, costs, request) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: text.replace('"index": 1', '"index": 7'), "is damaged"),
        (lambda text: "{}", "is damaged"),
        (lambda text: text.replace('"peak_bytes": ', '"peak_bytes": 1'), "not what it says"),
    ],
)
def test_a_damaged_or_foreign_file_is_reported_and_not_obeyed(
    file: Path, damage, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = damage(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert cache.load(GRAPH, COSTS, REQUEST) is None
    assert message in caplog.text
    assert str(file) in caplog.text


def test_a_directory_that_cannot_be_written_is_reported(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(store.DIRECTORY, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tfmem"):
        cache.save(GRAPH, COSTS, REQUEST, plan)
    assert "cannot be kept" in caplog.text


def test_an_empty_name_keeps_nothing(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.DIRECTORY, "")
    cache.save(GRAPH, COSTS, REQUEST, plan)
    assert store.path_of("plans", "key") is None
    assert cache.load(GRAPH, COSTS, REQUEST) is None
