"""The main job, shown: a model that does not fit trains, under the same hard memory limit.

First TensorFlow as it is, which runs out of memory; then tfmem, with the memory of a second process
to lend. Prints a table of both and draws device memory over a step, before and after.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
from pathlib import Path

import numpy as np
from absl import app, flags

from models.bench.experiment import Experiment, Row
from models.bench.table import show_bytes, show_count, show_losses, show_seconds, table
from tfmem.runtime.limited import run_limited
from tfmem.units import parse_bytes

flags.DEFINE_string("limit", "600MB", "Hard limit of the device's memory.")
flags.DEFINE_integer("experts", 24, "Experts in each layer of the MoE transformer.")
flags.DEFINE_integer("steps", 20, "Steps to train with tfmem.")
flags.DEFINE_string("out", "out", "Folder for the picture.")
flags.DEFINE_integer("timeout", 280, "Seconds after which a run is given up.")


def run(experiment: Experiment) -> Row:
    """Trains in a process of its own under the limit, and shows its steps as they are made."""
    assert experiment.limit is not None
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(Path(experiment.log), done))
    follower.start()
    try:
        outcome = run_limited(
            "models.bench.train:train_alone",
            dataclasses.asdict(experiment),
            limit_bytes=experiment.limit,
            timeout=flags.FLAGS.timeout,
            reserve=True,
        )
    finally:
        done.set()
        follower.join()
    if outcome.status == "ok":
        return Row(**outcome.result)
    said = f"error: {outcome.status}: {outcome.error}"
    return Row(experiment.model, experiment.mode, experiment.limit, outcome=said)


def _follow(path: Path, done: threading.Event) -> None:
    """Prints the lines of a file as they come, until told that it is complete."""
    shown = 0
    is_last = False
    while not is_last:
        is_last = done.wait(0.5)
        text = path.read_text() if path.exists() else ""
        end = text.rfind("\n") + 1
        print(text[shown:end], end="", flush=True)
        shown = max(shown, end)


def demo_table(rows: list[Row]) -> str:
    """Both runs side by side."""
    header = ["", "parameters", "limit", "measured peak", "predicted", "step", "loss", "outcome"]
    names = {"plain": "TensorFlow"}
    return table(
        header,
        [
            [
                names.get(row.mode, "tfmem"),
                show_count(row.parameters),
                show_bytes(row.limit_bytes),
                show_bytes(row.measured_peak_bytes),
                show_bytes(row.predicted_peak_bytes),
                show_seconds(row.step_seconds),
                show_losses(row.losses),
                row.outcome,
            ]
            for row in rows
        ],
    )


def draw(before: np.ndarray, after: np.ndarray, row: Row, path: Path) -> None:
    """Draws device memory over a step (bytes while each node runs), before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for name, timeline, colour in (("TensorFlow", before, "C3"), ("tfmem", after, "C0")):
        share = np.linspace(0, 100, len(timeline))
        axes.fill_between(share, timeline / 1e6, step="mid", color=colour, alpha=0.25)
        axes.plot(share, timeline / 1e6, drawstyle="steps-mid", color=colour, label=name)

    limits = (
        ("hard limit", row.limit_bytes, "-"),
        ("tfmem, measured peak", row.measured_peak_bytes, ":"),
    )
    for name, nbytes, style in limits:
        if nbytes:
            label = f"{name}: {nbytes / 1e6:,.0f} MB"
            axes.axhline(nbytes / 1e6, color="black", linestyle=style, linewidth=1, label=label)
    axes.set(xlabel="share of the step's operations, %", ylabel="MB on the device", xlim=(0, 100))
    axes.set_ylim(bottom=0)
    axes.set_title(f"MoE transformer, {show_count(row.parameters)} parameters: memory over a step")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv: list[str]) -> None:
    """Runs both, prints the table, draws the picture; exit status 1 if tfmem did not train."""
    del argv
    values = flags.FLAGS
    out = Path(values.out)
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "demo.png"

    with tempfile.TemporaryDirectory() as folder:
        plain = Experiment(
            "moe_transformer",
            changes={"experts": values.experts},
            limit=parse_bytes(values.limit, "limit"),
            steps=values.steps,
            log=f"{folder}/plain.log",
        )
        print(f"TensorFlow as it is, {values.experts} experts, limit {values.limit}:", flush=True)
        rows = [run(plain)]
        print(f"{rows[0].outcome}\n\ntfmem, the same model, the same limit:", flush=True)
        optimized = dataclasses.replace(
            plain,
            mode="order+swap+place",
            host_process=True,
            log=f"{folder}/tfmem.log",
            report=f"{folder}/report.json",
        )
        rows.append(run(optimized))
        written = Path(optimized.report)
        if written.exists():
            report = json.loads(written.read_text(encoding="utf-8"))
            before, after = (np.array(report[name]["bytes"]) for name in ("original", "planned"))
            draw(before, after, rows[1], picture)

    print(f"\n{demo_table(rows)}\n\nDevice memory over a step: {picture}")
    if not rows[1].has_trained:
        raise SystemExit(1)


if __name__ == "__main__":
    app.run(main)
