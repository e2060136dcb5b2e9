"""The command line that each model's module shares: `python -m models.zoo.NAME`."""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import app, flags

from models.bench.experiment import MODES, Experiment, load
from models.bench.table import show_bytes, show_count
from models.bench.train import limit_memory, train
from tfmem.runtime import memory
from tfmem.units import parse_bytes


def main(name: str) -> None:
    """The command line of a model: `python -m models.zoo.NAME`."""
    configs = load(name).CONFIGS
    flags.DEFINE_enum("config", "small", sorted(configs), "Which sizes to begin with.")
    flags.DEFINE_enum("mode", "plain", list(MODES), "TensorFlow as it is, or tfmem's techniques.")
    flags.DEFINE_integer("steps", 30, "How many steps to train.", lower_bound=1)
    flags.DEFINE_string("budget", None, "Bytes tfmem may use on the device, as 500MB or 1GiB.")
    flags.DEFINE_string("limit", None, "Hard limit of the device's memory, as 600MB or 1GiB.")
    flags.DEFINE_bool("host_process", False, "Lend the memory of a second local process.")
    flags.DEFINE_bool("starts_on_host", False, "Make large variables on the host from the start.")
    define_config_flags(configs["small"])
    app.run(lambda _: _main(name))


def _main(name: str) -> None:
    values = flags.FLAGS
    experiment = Experiment(
        model=name,
        config=values.config,
        changes=config_changes(load(name).CONFIGS["small"]),
        mode=values.mode,
        budget=parse_bytes(values.budget) if values.budget else None,
        limit=parse_bytes(values.limit, "limit") if values.limit else None,
        steps=values.steps,
        host_process=values.host_process,
        starts_on_host=values.starts_on_host,
    )
    limit_memory(experiment.limit)
    if experiment.limit:
        memory.claim_memory()
    row = train(experiment, print)

    print(f"outcome: {row.outcome}")
    if row.parameters is not None:
        print(f"parameters: {show_count(row.parameters)}")
    print(f"peak, measured: {show_bytes(row.measured_peak_bytes)}")
    print(f"peak, predicted: {show_bytes(row.predicted_peak_bytes)}")
    if not row.has_trained:
        raise SystemExit(1)


def define_config_flags(config: Any) -> None:
    """A flag for each field of a configuration, whose default is the configuration's own."""
    kinds = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}
    for field in dataclasses.fields(config):
        text = f"{field.metadata['help']} Small: {field.default}."
        kinds[type(field.default)](field.name, None, text)


def config_changes(config: Any) -> dict[str, Any]:
    """The fields of a configuration that were given as flags."""
    given = {field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(config)}
    return {name: value for name, value in given.items() if value is not None}
