"""How quick the page of a report is in a headless Chromium: size, first paint, clicks.

python -m models.bench run resnet --set=depth=152 --mode=tfmem --budget=200MB --report=page.html
python -m models.bench.page page.html
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from absl import app, flags
from playwright import sync_api

from models.bench.table import table

flags.DEFINE_string("browser", None, "The browser's program; default: chromium, where it is.")
flags.DEFINE_integer("rounds", 5, "How often the page is opened.")

_PAINTED = """() => new Promise((done) => new PerformanceObserver((list) =>
  done(list.getEntriesByName("first-contentful-paint")[0]?.startTime)
).observe({type: "paint", buffered: true}))"""

_WATCH = """() => {
  window.answers = [];
  addEventListener("click", (event) => requestAnimationFrame(() => setTimeout(() =>
    window.answers.push(performance.now() - event.timeStamp))), true);
}"""

_CLICKS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where on the chart, from left to right."""


def measure(browser: sync_api.Browser, path: Path) -> tuple[float, list[float]]:
    """Milliseconds to the first paint, and from each click to the frame that shows its answer."""
    page = browser.new_page()
    page.goto(path.resolve().as_uri())
    painted = page.evaluate(_PAINTED)
    page.evaluate(_WATCH)
    box = page.locator("#memory .u-over").bounding_box()
    assert box is not None
    for part in _CLICKS:
        page.mouse.click(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
        page.wait_for_timeout(200)
    answers = page.evaluate("window.answers")
    page.close()
    return painted, answers


def main(argv: list[str]) -> None:
    """Prints the size of a page, its median first paint, and its median and slowest click."""
    if len(argv) != 2:
        raise app.UsageError("python -m models.bench.page FILE")
    path = Path(argv[1])
    program = flags.FLAGS.browser or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found = [measure(browser, path) for _ in range(flags.FLAGS.rounds)]
        browser.close()
    paints = [painted for painted, _ in found]
    clicks = [answer for _, answers in found for answer in answers]
    header = ["page", "size", "first paint", "a click", "slowest click"]
    figures = [
        f"{path.stat().st_size / 1e6:.2f} MB",
        *(f"{ms:.0f} ms" for ms in (statistics.median(paints), statistics.median(clicks))),
        f"{max(clicks):.0f} ms",
    ]
    print(table(header, [[path.name, *figures]]))


if __name__ == "__main__":
    app.run(main)
