"""Pictures of rows, each as PNG and as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.bench.experiment import Row


def draw_rows(title: str, rows: Mapping[str, Row], path: Path) -> list[Path]:
    """Bars of the peak and of the step time, for each row that trained.

    Args:
      title: of the picture.
      rows: what ran, by the name that it is shown under.
      path: file without its suffix.

    Returns:
      The files that were written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trained = {name: row for name, row in rows.items() if row.measured_peak_bytes}
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(11, 0.4 * len(trained) + 1.2)
    )
    left.barh(list(trained), [(row.measured_peak_bytes or 0) / 1e6 for row in trained.values()])
    left.set_xlabel("measured peak, MB")
    right.barh(list(trained), [row.step_seconds or 0.0 for row in trained.values()], color="C1")
    right.set_xlabel("step, s")
    left.invert_yaxis()
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg")]
    for file in written:
        figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return written
