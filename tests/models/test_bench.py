"""The benchmarks: searches, rows that are kept, tables."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from models.bench import __main__ as bench
from models.bench import table, train
from models.bench.book import Book
from models.bench.capacity import largest
from models.bench.experiment import Experiment, Row
from models.bench.frontier import lowest, started


def test_train_reports_what_went_wrong_as_the_outcome():
    row = train.train(Experiment("lstm", changes={"batch": -1}))
    assert row.outcome.startswith("error: ")
    assert not row.has_trained


def test_scripts_show_nothing_of_tensorflows_start():
    variables = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", "import models.bench, tensorflow; tensorflow.zeros([])"]
    done = subprocess.run(command, env=variables, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


@pytest.mark.parametrize("most", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("guess", [1, 4, 50])
def test_largest_finds_the_boundary(most, guess):
    def probe(value: int) -> Row:
        outcome = "trained" if value <= most else "out of memory"
        return Row("m", "plain", outcome=outcome, config={"size": value})

    assert largest(probe, guess, resolution=0.0).config["size"] == most
    assert largest(probe, guess, resolution=0.1).config["size"] >= most / 1.1 - 1
    assert largest(probe, guess, resolution=0.0, most=most / 2).config["size"] >= most / 2


def test_largest_is_none_where_nothing_trains():
    assert largest(lambda _: Row("m", "plain", outcome="no"), 8, 0.1) is None


def test_difference_of_variables_is_relative_to_the_largest(tmp_path):
    before, after = str(tmp_path / "before.npz"), str(tmp_path / "after.npz")
    np.savez(before, a=np.array([1.0, 100.0]), b=np.zeros(3))
    np.savez(after, a=np.array([1.5, 100.0]), b=np.zeros(3))
    assert bench.difference(before, after) == pytest.approx(0.005)
    assert bench.difference(before, before) == 0.0


def test_a_row_is_one_line_of_json_with_the_named_fields():
    row = Row("m", "plain", 600, 500, None, 0.5, 10, (1.0, 0.5), config={"experts": 4})
    fields = json.loads(json.dumps(dataclasses.asdict(row)))
    named = (
        "model mode limit_bytes measured_peak_bytes predicted_peak_bytes step_seconds parameters "
        "losses predicted_slowdown used least_bytes outcome config predicted_seconds tokens"
    )
    assert list(fields) == named.split()
    assert Row(**fields).losses == [1.0, 0.5]


def test_a_book_runs_each_setting_once_and_goes_on_after_an_interruption(tmp_path):
    made = []

    def run(experiment: Experiment) -> Row:
        made.append(experiment.mode)
        return Row(experiment.model, experiment.mode, losses=(1.0, 0.5))

    path = tmp_path / "folder" / "rows.jsonl"
    experiments = [Experiment("lstm", mode=mode) for mode in ("plain", "order", "plain")]
    first = [Book(path, run)(experiment) for experiment in experiments]
    assert made == ["plain", "order"]
    path.write_text(path.read_text()[:-20])
    again = Book(path, run)
    assert [again(experiment).mode for experiment in experiments] == [row.mode for row in first]
    assert made == ["plain", "order", "order"]
    assert len(path.read_text().splitlines()) == 3
    assert [Book(path, run)(experiment).mode for experiment in experiments] == [
        "plain",
        "order",
        "plain",
    ]
    assert made == ["plain", "order", "order"]


def test_a_book_counts_the_seconds_of_rows_that_were_made_earlier_once(tmp_path):
    def run(experiment: Experiment) -> Row:
        time.sleep(0.05)
        return Row(experiment.model, experiment.mode)

    first = Book(tmp_path / "rows.jsonl", run)
    first(Experiment("lstm"))
    again = Book(tmp_path / "rows.jsonl", run)
    assert again.spent == 0.0
    for _ in range(2):
        again(Experiment("lstm"))
    assert again.made == 0
    assert again.spent == pytest.approx(first.spent, abs=1e-3)
    assert again.spent >= 0.05


def test_the_least_budget_is_found_from_below():
    asked = []

    def run(experiment: Experiment) -> Row:
        asked.append(experiment.budget)
        assert experiment.budget == experiment.limit
        least = None if experiment.budget >= 120 * 2**20 else 110 * 2**20
        return Row("m", "tfmem", experiment.limit, least_bytes=least)

    found = lowest(Experiment("m", mode="tfmem"), 100 * 2**20, 500 * 2**20, run)
    assert found.limit_bytes == asked[-1] >= 120 * 2**20 > asked[-2]


def test_variables_that_have_no_room_begin_on_the_host():
    asked = []

    def run(experiment: Experiment) -> Row:
        asked.append(experiment.starts_on_host)
        if not experiment.starts_on_host:
            return Row("m", "tfmem", outcome="out of memory")
        least = None if experiment.budget >= 120 * 2**20 else 110 * 2**20
        return Row("m", "tfmem", experiment.limit, 1, 1, least_bytes=least)

    experiment = Experiment("m", budget=130 * 2**20).in_mode("tfmem")
    assert started(experiment, run).has_trained
    lowest(experiment, 100 * 2**20, 500 * 2**20, run)
    assert asked == [False, True, False, True, True]
    alone = dataclasses.replace(experiment, host_process=False)
    assert not started(alone, run).has_trained


def test_a_comparator_that_cannot_run_says_why():
    row = train.train(Experiment("convnet", mode="recompute_grad"))
    assert row.outcome.startswith("cannot run: the model has no blocks")


def test_compare_table_aligns_modes_and_differences():
    plain = Row("m", "plain", 600, 500_000_000, None, 0.5, 10, (2.0, 1.0))
    order = dataclasses.replace(plain, mode="order", predicted_peak_bytes=510_000_000)
    lines = bench.compare_table([(plain, 0.0), (order, 1e-6)]).splitlines()
    assert lines[0].split()[:2] == ["mode", "measured"]
    assert {"+2.0%", "bitwise", "1.0e-06"} <= set(lines[3].split())
    assert table.show_count(13_800_000) == "13.8 M"
