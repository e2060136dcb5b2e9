"""Plans of ten models and a loop as JSON, to be compared between two states of the code.

    python -m models.bench.plans --out=out/plans.jsonl                 plans, a line each
    python -m models.bench.plans --out=FILE --against=out/plans.jsonl  the same, and what differs
    python -m models.bench.plans --only=gpt,lstm                       some of the models

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

flags.DEFINE_string("out", "out/plans.jsonl", "File that takes the lines.")
flags.DEFINE_string("against", "", "File of another state of the code to compare with.")
flags.DEFINE_list("only", [], "Some of the models; default: all.")

MODELS: dict[str, dict[str, Any]] = {
    "convnet": {},
    "densenet": {"layers": 4},
    "unet": {"levels": 3},
    "gpt": {"layers": 4},
    "lstm": {"length": 32},
    "transformer": {"layers": 2},
    "moe_transformer": {"layers": 2},
    "resnet": {"batch": 8, "side": 32},
    "wgan_gp": {"blocks": 2, "critic_steps": 1},
    "deepspeech": {"length": 24},
    "loop": {},
}
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
                yield row
                _tell(row, time.perf_counter() - start)


def _step(model: str) -> tuple[Any, tuple[Any, ...]]:
    """A traced train step, and a batch for it."""
    import tensorflow as tf

    from models.bench.setting import load

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


def _tell(row: dict[str, Any], seconds: float) -> None:
    made = row.get("plan", {})
    done = ("recomputations", "evictions", "placements")
    what = " ".join(str(len(made[name])) for name in done) if made else "refused"
    where = "with a host" if row["host"] else "alone"
    print(f"  {row['model']} {where} {row['share']}: {what}, {seconds:.1f} s", flush=True)


def differences(these: list[dict[str, Any]], those: list[dict[str, Any]]) -> Iterator[str]:
    """Lines that say which plans differ, or are on one side only."""

    def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {(row["model"], row["host"], row["share"]): row for row in rows}

    mine, theirs = by_key(these), by_key(those)
    for key in sorted(mine.keys() | theirs.keys()):
        if key not in mine or key not in theirs:
            yield f"{key}: on one side only"
        elif mine[key] != theirs[key]:
            ours, other = (one[key].get("plan", {}) for one in (mine, theirs))
            fields = sorted(n for n in ours.keys() | other.keys() if ours.get(n) != other.get(n))
            yield f"{key}: differs in {', '.join(fields) or 'its refusal'}"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(_: list[str]) -> None:
    os.environ["TFMEM_CACHE_DIR"] = ""
    models = flags.FLAGS.only or list(MODELS)
    out = Path(flags.FLAGS.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for model in models:
            for row in planned(model):
                file.write(json.dumps(row, sort_keys=True) + "\n")
    if not flags.FLAGS.against:
        return
    known = [row for row in _read(Path(flags.FLAGS.against)) if row["model"] in models]
    made = _read(out)
    found = list(differences(made, known))
    print("\n".join(found) or f"all {len(made)} are identical")
    sys.exit(bool(found))


if __name__ == "__main__":
    app.run(main)
