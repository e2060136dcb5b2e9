"""The wild suite: what it makes of a process, what it keeps, and one case from end to end."""

from __future__ import annotations

import json

import pytest

from models.bench import wild, wild_page
from models.bench.wild_cases import CORE, cases, source
from models.bench.wild_verdict import Events, differing, judged, or_of_tensorflow

MIB = 2**20
PLAIN = {"losses": [[1.0], [0.5], [0.25]]}
PLANNED = {"event": "planned", "step": 1, "seconds": 1.0, "predicted": 9 * MIB, "original": 20}
PLANNED |= {"function": 1, "reason": "", "recomputed": 0}


def told(*events: dict, status: int | None = 0, log: str = "") -> Events:
    lines = "".join(json.dumps({"step": 0, **event}) + "\n" for event in events)
    return Events.parse(lines, status, log)


def steps(*losses: float, peak: int = 9 * MIB) -> list[dict]:
    return [
        {"event": "step", "step": place, "losses": [loss], "peak": peak, "seconds": 0.1}
        for place, loss in enumerate(losses, 1)
    ]


def verdict(events: Events, drift: float = 0.0) -> dict:
    rounding = {"losses": [[1.0], [0.5 + drift], [0.25]]}
    return judged(events, 10 * MIB, PLAIN, lambda: rounding)


def failed(text: str, **facts: bool) -> dict:
    return {"event": "error", "text": text, "is_full": False, "is_refusal": False, **facts}


START = ({"event": "building"}, {"event": "built", "nbytes": 1}, {"event": "planning", "step": 1})
RUNNING = {"event": "running", "step": 1}
END = {"event": "end"}


@pytest.mark.parametrize(
    ("events", "outcome", "phase"),
    [
        (told(*START, PLANNED, RUNNING, *steps(1.0, 0.5, 0.25), END), "kept", "step 1"),
        (
            told(*START, PLANNED, RUNNING, *steps(1.0, 0.5, 0.25, peak=11 * MIB), END),
            "exceeded",
            "step 1",
        ),
        (told(*START, failed("BudgetError: no", is_refusal=True)), "refused", "planning"),
        (told(*START, failed("KeyError: 2")), "crashed", "planning"),
        (told(*START[:1], failed("OOM", is_full=True)), "no room to build", "building"),
        (told(*START, failed("OOM", is_full=True)), "out of memory", "planning"),
        (told(*START, PLANNED, RUNNING, failed("OOM", is_full=True)), "out of memory", "step 1"),
        (told(*START, PLANNED, RUNNING, status=-11), "crashed", "step 1"),
        (
            told(*START, PLANNED, RUNNING, status=-6, log="OOM when allocating tensor"),
            "out of memory",
            "step 1",
        ),
        (told(*START, status=None), "hung", "planning"),
        (
            told(*START, PLANNED, RUNNING, *steps(1.0, 0.6, 0.25), END),
            "wrong numbers",
            "step 1",
        ),
    ],
)
def test_what_became_of_a_process_is_told_apart(events, outcome, phase):
    row = verdict(events)
    assert row["outcome"] == outcome
    if outcome not in ("kept", "exceeded", "wrong numbers"):
        assert row["phase"] == phase


@pytest.mark.parametrize(
    ("begun", "plainly", "outcome"),
    [
        ((), -11, "no room to build"),
        ((), 0, "crashed"),
        ((PLANNED, RUNNING), -11, "crashed"),
    ],
)
def test_what_ends_tensorflow_itself_before_a_plan_is_told_apart(begun, plainly, outcome):
    events = told(*START, *begun, status=-11)
    found = or_of_tensorflow(verdict(events), events, lambda: told(*START, status=plainly))
    assert found["outcome"] == outcome
    assert found["reason"].endswith("without tfmem too") == (outcome != "crashed")


def test_files_are_named_from_where_the_project_lies():
    events = told(*START, failed(f"ValueError: {wild.ROOT}/models/zoo/gpt.py: no", is_refusal=True))
    assert verdict(events)["reason"] == "ValueError: models/zoo/gpt.py: no"


def test_numbers_may_drift_as_far_as_rounding_leads():
    events = told(*START, PLANNED, RUNNING, *steps(1.0, 0.51, 0.25), END)
    assert verdict(events, drift=0.001)["outcome"] == "kept"
    assert verdict(events, drift=0.0001)["outcome"] == "wrong numbers"


def test_what_is_predicted_is_what_the_last_plan_of_each_function_says():
    other = PLANNED | {"function": 2, "predicted": 5 * MIB}
    again = PLANNED | {"event": "replanned", "predicted": 4 * MIB}
    row = verdict(told(*START, PLANNED, other, RUNNING, again, *steps(1.0, 0.5, 0.25), END))
    assert row["predicted"] == 5 * MIB
    assert row["replanned"] == 0


def test_the_closed_loop_acted_where_a_step_that_took_too_much_was_answered():
    lines = [
        {"event": "log", "step": 1, "level": level, "text": text}
        for level, text in (
            ("WARNING", "step: step 1 was out of memory at Tile; planned again: 2 MiB are left"),
            ("WARNING", "step: step 2 was out of memory; no way back: it is made once more"),
            ("WARNING", "step: functions planned since leave its plan less room"),
            ("INFO", "step: planned again, for functions planned since share the device"),
        )
    ]
    row = verdict(told(*START, PLANNED, RUNNING, *lines, *steps(1.0, 0.5, 0.25), END))
    assert row["replanned"] == 2


def test_a_line_that_was_cut_off_ends_what_was_told():
    events = Events.parse('{"event": "building", "step": 0}\n{"event": "bu', -9, "")
    assert events.phase == "building"


def test_losses_are_compared_where_both_have_some():
    assert differing([[2.0, 1.0], [1.0, 1.0]], [[2.0, 1.0]]) == 0.0
    assert differing([[2.0, 1.0]], [[2.0, 1.5]]) == 0.5
    assert differing([[float("nan")]], [[float("nan")]]) == 0.0
    assert differing([[1.0]], [[float("nan")]]) == float("inf")


def test_the_core_is_of_cases_that_there_are():
    assert set(CORE) <= set(cases())
    assert len({one.library for one in cases().values()}) >= 7


def test_a_case_is_of_its_own_source_and_what_it_shares(tmp_path):
    path = tmp_path / "module.py"
    shared, own, other = "WIDTH = 8", "@case('a')\ndef own():\n    {}", "@case('b')\ndef b(): {}"

    def code(*parts: str) -> list[str]:
        path.write_text("\n\n\n".join(parts), encoding="utf-8")
        return list(source(path, "own"))

    first = code(shared, own.format("pass"), other.format("pass"))
    assert first == code(shared, own.format("pass"), other.format("return"))
    assert first != code(shared, own.format("return"), other.format("pass"))
    assert first != code("WIDTH = 9", own.format("pass"), other.format("pass"))


def test_the_tightest_budget_is_found_and_its_row_stays(tmp_path, monkeypatch):
    rows, enough, tried = tmp_path / "wild.jsonl", 90 * MIB, []

    def run(suite, case, kind, mode, budget):
        if kind == "least":
            return told(*START, {"event": "least", "nbytes": 100 * MIB}, END)
        if kind == "plain":
            return told(*START, RUNNING, *steps(1.0, 0.5, 0.25, peak=200 * MIB), END)
        tried.append(budget)
        if budget < enough:
            return told(*START, failed("BudgetError: no", is_refusal=True))
        return told(*START, PLANNED, RUNNING, *steps(1.0, 0.5, 0.25), END)

    monkeypatch.setattr(wild.Suite, "_run", run)
    asked = ["--only=gradients.jacobian", "--shares=0.6,tightest", "--modes=region"]
    assert wild.main([*asked, f"--rows={rows}"]) == 0
    kept = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    looked = [row for row in kept if row["share"].startswith("tightest")]
    assert sorted(row["budget"] for row in looked) == sorted(tried[1:]), "a row for each"
    tightest = min(row["budget"] for row in looked if row["outcome"] == "kept")
    assert enough <= tightest <= 1.03 * enough
    assert max(tried) == 120 * MIB, "nothing above what is known to be kept"
    assert len(tried) <= 7
    asked = ["--only=gradients.jacobian", "--shares=kept*1.2", "--modes=region", "--steps=500"]
    assert wild.main([*asked, f"--rows={rows}"]) == 0
    assert tried[-1] == wild.whole_mib(1.2 * tightest)
    page = rows.with_suffix(".md").read_text(encoding="utf-8")
    assert "| kept*1.2 |" in page.partition("## Long runs")[2].partition("## By case")[0]


@pytest.mark.memory
def test_a_case_runs_from_end_to_end_and_is_not_run_again(tmp_path, capsys):
    rows = tmp_path / "wild.jsonl"
    asked = ["--only=gradients.jacobian", "--shares=0.8", "--modes=region", "--steps=3"]
    asked.append(f"--rows={rows}")
    assert wild.main(asked) == 0
    kept = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    plain, planned = sorted(kept, key=lambda row: row["mode"] != "plain")
    assert len(plain["losses"]) == plain["trained"] == 3
    assert planned["budget"] == wild.whole_mib(0.8 * plain["peak"])
    assert planned["outcome"] in ("kept", "exceeded", "out of memory", "refused")
    if planned["trained"]:
        assert planned["difference"] < 1e-4

    page = rows.with_suffix(".md").read_text(encoding="utf-8")
    assert wild_page.cells(planned)[0] in page
    said = capsys.readouterr().out
    assert wild.main(asked) == 0
    assert capsys.readouterr().out == "" != said


def test_the_code_of_a_case_is_of_the_cases_that_it_imports_too(tmp_path):
    package = "models.bench.wild_cases"
    (tmp_path / "below.py").write_text(
        "@case('a')\ndef used(): return 1\n\n@case('a')\ndef other(): return 2\n\nSIZE = 3\n"
    )
    (tmp_path / "above.py").write_text(
        f"from {package}.below import used\n\n@case('b')\ndef own(): return used()\n\n"
        "@case('b')\ndef neighbour(): return 4\n"
    )
    text = "\n".join(source(tmp_path / "above.py", "own"))
    assert all(part in text for part in ("def own", "return used()", "return 1", "SIZE = 3"))
    assert "return 2" not in text
    assert "return 4" not in text
