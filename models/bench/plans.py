"""Plans of ten models and a loop as JSON, to be compared between two states of the code.

    python -m models.bench.plans                          plans, a line each, in out/plans.jsonl
    python -m models.bench.plans --out=FILE --against=OLD the same, and what differs from OLD's
    python -m models.bench.plans --only=gpt,lstm          some of the models
    python -m models.bench.plans --page=PAGE              the same as a table

Each model is planned for three parts of its own peak, without a host and with a second process
lent as one. Costs are static and no plan is taken from the cache, so that the lines depend on the
code alone. A budget that is refused is a line, too: its message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import app, flags

from models.bench.smaller import SMALLER
from models.bench.table import markdown, stamp

flags.DEFINE_string("out", "out/plans.jsonl", "File that takes the lines.")
flags.DEFINE_string("against", "", "File of another state of the code to compare with.")
flags.DEFINE_multi_string(
    "renamed", [], "Old=new, for texts of the other state's lines that are named otherwise now."
)
flags.DEFINE_list("only", [], "Some of the models; default: all.")
flags.DEFINE_string(
    "page", "", "File that takes the plans as a table, such as docs/measured/plans.md."
)

MODELS: dict[str, dict[str, Any]] = {**SMALLER, "loop": {}}
"""What is planned, with the fields of the small configurations that are made smaller."""

SHARES = (0.8, 0.6, 0.35)
"""Budgets, in parts of the original's predicted peak."""


def planned(model: str) -> Iterator[dict[str, Any]]:
    """A line for each host and each budget."""
    import tfmem

    step, batch = _step(model)
    peak = tfmem.optimize(step, profile="static").plan(*batch).baseline_peak_bytes
    for host in (False, True):
        with tfmem.host_process() if host else contextlib.nullcontext():
            for share in SHARES:
                start = time.perf_counter()
                row = {"model": model, "host": host, "share": share}
                small = tfmem.optimize(step, budget=int(share * peak), profile="static")
                try:
                    row["plan"] = json.loads(small.plan(*batch).to_json())
                except tfmem.BudgetError as error:
                    row["refused"] = str(error)
                row["seconds"] = time.perf_counter() - start
                yield row
                _tell(row)


def _step(model: str) -> tuple[Any, tuple[Any, ...]]:
    """A traced train step, and a batch for it."""
    import tensorflow as tf

    from models.bench.experiment import load

    if model == "loop":
        return _loop(), (tf.ones([256, 64]),)
    module = load(model)
    task = module.build(dataclasses.replace(module.CONFIGS["small"], **MODELS[model]))
    return tf.function(task.step), next(iter(task.batches))


def _loop() -> Any:
    """Three training steps of four layers in a loop."""
    import tensorflow as tf

    weights = [tf.Variable(0.1 * tf.random.stateless_normal([64, 64], [i, 1])) for i in range(4)]

    @tf.function
    def steps(x: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                y = x
                for weight in weights:
                    y = tf.tanh(tf.matmul(y, weight))
                loss = tf.reduce_mean(tf.square(y - x))
            gradients = tape.gradient(loss, weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.1 * gradient)
        return loss

    return steps


def _tell(row: dict[str, Any]) -> None:
    print("  " + " ".join(_cells(row)), flush=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    made = row.get("plan")
    where = row["model"], "yes" if row["host"] else "no", str(row["share"])
    if made is None:
        return (*where, "refused", "", "", "", "", f"{row['seconds']:.1f} s")
    done = (str(len(made[name])) for name in ("recomputations", "evictions", "placements"))
    return (
        *where,
        f"{made['peak_bytes'] / made['baseline_peak_bytes']:.3f}",
        f"{made['step_seconds'] / made['baseline_step_seconds']:.3f}",
        *done,
        f"{row['seconds']:.1f} s",
    )


def _page(rows: list[dict[str, Any]], compared: str) -> str:
    header = (
        "model",
        "host",
        "budget",
        "peak",
        "step",
        "recomputed",
        "swapped",
        "placed",
        "planned in",
    )
    return "\n".join(
        [
            "# Plans of ten models and a loop",
            "",
            f"`python -m models.bench.plans`, {stamp()}. {compared}",
            "",
            "Budgets, peaks and step times are parts of the original's, all predicted from static "
            "costs; nothing here ran.",
            "",
            markdown(header, [_cells(row) for row in rows]),
            "",
        ]
    )


def differences(these: list[dict[str, Any]], those: list[dict[str, Any]]) -> Iterator[str]:
    """Lines that say which plans differ, or are on one side only."""

    def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {
            (row["model"], row["host"], row["share"]): row.get("plan", row.get("refused"))
            for row in rows
        }

    mine, theirs = by_key(these), by_key(those)
    for key in sorted(mine.keys() | theirs.keys()):
        if key not in mine or key not in theirs:
            yield f"{key}: on one side only"
        elif mine[key] != theirs[key]:
            ours, other = mine[key], theirs[key]
            if isinstance(ours, str) or isinstance(other, str):
                yield f"{key}: refused on one side, or otherwise"
                continue
            fields = sorted(n for n in ours.keys() | other.keys() if ours.get(n) != other.get(n))
            yield f"{key}: differs in {', '.join(fields)}"


def _read(path: Path, renamed: list[str]) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    for pair in renamed:
        text = text.replace(*pair.split("="))
    return [json.loads(line) for line in text.splitlines()]


def main(_: list[str]) -> None:
    os.environ["TFMEM_CACHE_DIR"] = ""
    values = flags.FLAGS
    models = values.only or list(MODELS)
    out = Path(values.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for model in models:
            for row in planned(model):
                file.write(json.dumps(row, sort_keys=True) + "\n")
    made, found, compared = _read(out, []), [], ""
    if values.against:
        known = [
            row for row in _read(Path(values.against), values.renamed) if row["model"] in models
        ]
        found = list(differences(made, known))
        alike = f"{len(made) - len(found)} of {len(made)} are identical"
        named = f", with {' and '.join(values.renamed)}" if values.renamed else ""
        compared = f"Against {Path(values.against).stem}: {alike}{named}."
        print("\n".join([*found, compared]))
    if values.page:
        Path(values.page).parent.mkdir(parents=True, exist_ok=True)
        Path(values.page).write_text(_page(made, compared), encoding="utf-8")
    sys.exit(bool(found))


if __name__ == "__main__":
    app.run(main)
