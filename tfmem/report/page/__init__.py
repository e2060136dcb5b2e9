"""The report as one web page that needs no network.

The page is a template, a style sheet, a script and uPlot (https://github.com/leeoniya/uPlot, MIT),
which draws the chart; all of it is written into the file, with the report's JSON.
"""

from __future__ import annotations

from importlib import resources


def render(data: str) -> str:
    """The page.

    Args:
      data: what `Report.to_json` gives.
    """
    files = resources.files(__name__)
    page = files.joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "uplot.css": files.joinpath("uPlot.min.css").read_text(encoding="utf-8"),
        "page.css": files.joinpath("page.css").read_text(encoding="utf-8"),
        "uplot.js": files.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8"),
        "page.js": files.joinpath("page.js").read_text(encoding="utf-8"),
        "data": data.replace("<", "\\u003c"),  # no tag in it can end the script it stands in
    }
    for name, text in parts.items():
        page = page.replace("{{ " + name + " }}", text, 1)
    return page
