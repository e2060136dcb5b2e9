"""Reports as data, as pictures, and as a page in a real browser."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfmem
from tfmem.graph.ir import Value
from tfmem.plan import Plan
from tfmem.report.build import report_of
from tfmem.report.report import Origin, Report
from tfmem.simulation.simulate import Buffer, TimedCopy, Trace

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
NODES = 20_000


def large_report() -> Report:
    """A step of 20,000 nodes whose buffers live for up to half of it."""
    trace = made_trace(random.Random(1))
    return Report(
        name="train_step </script><script>alert(1)</script>",
        plan=Plan(device="/device:GPU:0", budget=3 * 10**9, order=trace.order),
        original=made_trace(random.Random(0)),
        planned=trace,
        origins={
            name: Origin("Conv2D", f"/home/user/model.py:{i % 90}")
            for i, name in enumerate(trace.order)
        },
        alive_at_peak=(),
        measured_peak_bytes=10**9,
        planning_seconds=1.0,
    )


def made_trace(choice: random.Random) -> Trace:
    names = tuple(f"gradient_tape/resnet/stage{i % 152}/conv/node_{i}" for i in range(NODES))
    buffers = tuple(
        Buffer(
            Value(name, 0),
            choice.randrange(1, 2**20),
            i,
            min(NODES - 1, i + choice.randrange(NODES // 2)),
        )
        for i, name in enumerate(names)
    )
    change = np.zeros(NODES + 1, np.int64)
    for one in buffers:
        change[one.first] += one.nbytes
        change[one.last + 1] -= one.nbytes
    return Trace(
        order=names,
        begins=tuple(1e-5 * i for i in range(NODES)),
        ends=tuple(1e-5 * (i + 1) for i in range(NODES)),
        timeline=np.cumsum(change[:NODES]),
        buffers=buffers,
        copies=tuple(
            TimedCopy(Value(names[i], 0), 2**20, i % 2 == 0, 1e-5 * i, 1e-5 * (i + 40))
            for i in range(0, NODES - 100, 50)
        ),
    )


@pytest.fixture(scope="module")
def small_report() -> Report:
    import tensorflow as tf

    weights = [tf.Variable(tf.ones([64, 64]) * 0.01) for _ in range(16)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(y)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    x = tf.ones([512, 64])
    most = tfmem.optimize(step).plan(x).baseline_peak_bytes
    return tfmem.optimize(step, budget=int(0.6 * most)).report(x)


def test_a_report_tells_the_same_as_its_plan(small_report: Report) -> None:
    plan, planned = small_report.plan, small_report.planned
    data = json.loads(small_report.to_json())
    assert data["peak_bytes"] == plan.peak_bytes < plan.baseline_peak_bytes
    assert max(data["original"]["bytes"]) == max(small_report.original.timeline)
    assert len(data["planned"]["clones"]) == len(plan.recomputations) > 0
    texts = data["texts"]
    assert [texts[i] for i in data["planned"]["order"]["name"]] == list(planned.order)
    assert any("test_report.py" in text for text in texts)
    for trace in (small_report.original, planned):
        assert all(a <= b for a, b in zip(trace.begins, trace.ends, strict=True))
        alive = [0] * len(trace.order)
        for one in trace.buffers:
            for position in range(one.first, one.last + 1):
                alive[position] += one.nbytes
        assert all(a <= b for a, b in zip(alive, trace.timeline, strict=True))  # and workspace


def test_the_steps_of_a_report_are_those_that_the_planner_judged() -> None:
    """With long sums, which are split, and loops, whose bodies are charged to their callers."""
    import tensorflow as tf

    def step(x: Any) -> Any:
        total = tf.add_n([tf.exp(x * i) for i in range(12)])
        return tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, tf.sin(tf.cos(y)) * tf.exp(y @ tf.transpose(y)) @ y),
            (0, total),
        )[1]

    x = tf.ones([64, 64])
    most = tfmem.optimize(step).plan(x).baseline_peak_bytes
    for budget in (20 * most, int(0.9 * most)):
        entry = tfmem.optimize(step, budget=budget)._planned((x,), {})
        (planned,), report = entry.planned, report_of(entry)
        assert planned.decision.plan.is_noop == (budget > most)
        assert (report.original.timeline == planned.decision.before.timeline).all()
        assert (report.planned.timeline == planned.decision.after.timeline).all()
        assert report.planned.order == planned.decision.after.order


def test_what_is_not_optimised_is_explained(small_report: Report) -> None:
    import tensorflow as tf

    def score(x: Any) -> Any:
        return tf.reduce_sum(tf.stack([tf.reduce_sum(tf.exp(x * i)) for i in range(8)]))

    report = tfmem.explain(score, tf.ones([2**16]))
    assert report.plan.is_noop
    assert report.plan.peak_bytes == report.plan.baseline_peak_bytes
    assert (report.original.timeline == report.planned.timeline).all()
    budgets = [offer.budget for offer in report.frontier]
    assert budgets == sorted(budgets, reverse=True)
    assert all(offer.plan.peak_bytes <= offer.budget for offer in report.frontier)
    assert budgets[-1] < 0.9 * report.plan.peak_bytes
    assert "what a budget would cost" in report.text()


def test_pictures_and_pages_that_cannot_be_written_are_told(
    small_report: Report, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    small_report.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    for write in (small_report.plot, small_report.html):
        with pytest.raises(tfmem.Error, match="cannot write"):
            write(tmp_path / "missing" / "memory.png")
    with pytest.raises(tfmem.Error, match="cannot write"):
        small_report.plot(tmp_path / "memory.unknown")


def test_a_page_needs_no_network(small_report: Report, tmp_path: Path) -> None:
    small_report.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "{{" not in re.sub(r"<script[\s\S]*?</script>", "", page)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """A page, and what goes wrong or over the network in it."""
    wrong: list[str] = []
    page = browser.new_page(**options)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url),
    )
    page.goto(path.as_uri())
    return page, wrong


def test_a_click_shows_what_is_alive(browser: Any, small_report: Report, tmp_path: Path) -> None:
    small_report.html(tmp_path / "page.html")
    page, wrong = opened(browser, tmp_path / "page.html")
    trace = small_report.planned
    peak = int(np.argmax(trace.timeline))
    alive = [one for one in trace.buffers if one.first <= peak <= one.last]
    assert f"{len(alive)} tensors" in page.locator("#when").inner_text()
    assert page.locator("#tensors tbody tr").count() == len(alive)
    before = page.locator("#when").inner_text()
    box = page.locator("#memory .u-over").bounding_box()
    page.mouse.click(box["x"] + 0.95 * box["width"], box["y"] + 20)
    assert page.locator("#when").inner_text() != before
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="lines of code").click()
    assert "test_report.py" in page.locator("#tensors tbody").inner_text()
    page.get_by_role("button", name="original").click()
    assert page.locator("#when").inner_text().startswith("original")
    assert not wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_a_page_of_20000_nodes_is_quick(
    browser: Any, tmp_path: Path, scheme: str, width: int
) -> None:
    path = tmp_path / "page.html"
    large_report().html(path)
    size = {"width": width, "height": 900}
    page, wrong = opened(browser, path, viewport=size, color_scheme=scheme)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')")
    assert not painted or painted[0]["startTime"] < 4000
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    seconds = []
    for position in (1000, 9000, 17000):
        start = time.perf_counter()
        page.evaluate(f"select({position})")
        seconds.append(time.perf_counter() - start)
        assert f"node {position + 1} of {NODES}" in page.locator("#when").inner_text()
    assert min(seconds) < 0.3
    assert not wrong
