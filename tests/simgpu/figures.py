"""What can be measured exactly where the times of kernels are modelled.

    python -m tests.simgpu.figures [--only=swaps,times,machines] [--on=T4,H100] [--rows=FILE]

- swaps: half of a chain's activations leave, over links of several rates.
- times: predicted steps against measured ones, on ten models.
- machines: what the planner chooses, and what that costs, where rates stand to each other as on
  real GPUs.

Each run has a process of its own on a device that is slow enough for this machine's CPU to keep up.
Rows are kept, as JSON lines, beside the page and its picture; what stands there is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from models.bench import overlap
from models.bench.alone import run_alone
from models.bench.book import Book
from models.bench.experiment import MODELS, TRACED, Experiment, Row
from models.bench.results import FIVE, QUARTER, reached, roomy
from tests.simgpu import figures_page
from tests.simgpu.device import MACHINES, Capabilities, environment
from tests.simgpu.run import learn
from tfmem.functions.watch import WATCHED
from tfmem.runtime.limited import run_limited

ROWS = Path(__file__).parents[2] / "docs" / "measured" / "simulated_gpu.jsonl"

SLOW = Capabilities(flops=1e10, nbytes=2e9, to_device=3e8, to_host=3e8)
"""A device that most models' kernels on a CPU keep up with."""

SLOWER = {"convnet": 4, "resnet": 2}
"""How many times slower it is for models whose kernels would not, so that their steps take what is
modelled and not what the CPU takes."""

CHAIN = overlap.Chain(side=512, layers=48, steps=5)
HALF = 0.56
"""Part of the chain's peak that half of its activations, and what all plans need, take."""

RATIOS = (0.25, 0.5, 1.0, 2.0)
"""Seconds of the link over those of computation, for half of the activations."""

ROOMY, TIGHT = 1.2, 0.6
"""Budgets over plain's peak."""

SHARES = {"moe_transformer": (QUARTER, 1 / 6)}
"""Budgets over plain's peak, where a quarter is not the only one."""

_STEPS = WATCHED + 2
"""Of a plan: those that are watched copy to the host what they change."""

_RATES = ("flops", "nbytes", "to_device", "to_host")
"""Of a device, what it does in a second."""

_LIMIT = 3 * 2**30
_SECONDS = 1500.0
"""After which a run is ended."""


@dataclass(frozen=True)
class OnDevice:
    """A run on a simulated GPU.

    Attributes:
      device: what that is capable of.
      experiment: what is trained; None for the chain.
      chain: which, and under which part of its own peak.
      is_probed: whether tfmem finds out by itself what the device is capable of.
    """

    device: Capabilities
    experiment: Experiment | None = None
    chain: tuple[overlap.Chain, float] | None = None
    is_probed: bool = False


@dataclass
class Runner:
    """Runs what is asked, devices of equal rates with one memory of what was probed."""

    folder: Path
    known: dict[tuple[Capabilities, bool], dict[str, str]] = field(default_factory=dict)

    def __call__(self, asked: OnDevice) -> Row:
        variables = self._variables(asked.device, asked.is_probed)
        if asked.experiment is not None:
            return run_alone(asked.experiment, gpu=True, timeout=_SECONDS, environment=variables)
        assert asked.chain is not None
        chain, share = asked.chain
        done = run_limited(
            "models.bench.overlap:planned",
            dataclasses.asdict(chain),
            share,
            limit_bytes=_LIMIT,
            timeout=_SECONDS,
            gpu=True,
            environment=variables,
        )
        if done.status == "ok":
            return Row(**done.result)
        return Row("chain", "tfmem", outcome=f"error: {done.status}: {done.error[:300]}")

    def _variables(self, device: Capabilities, is_probed: bool) -> dict[str, str]:
        key = device, is_probed
        if key not in self.known:
            cache = self.folder / str(len(self.known))
            self.known[key] = environment(cache, device)
            if not is_probed:
                learn(device, self.known[key])
        return self.known[key]


def swaps(book: Book) -> Iterator[tuple[float, float, Row, Row]]:
    """By ratio of link and computation: seconds of the link alone, the chain with room and without.

    Half of the activations need the ratio; what the link takes is that of those that leave.
    """
    roomy = book(OnDevice(SLOW, chain=(CHAIN, ROOMY)))
    both_ways = 2 * 4 * CHAIN.side**2
    for ratio in RATIOS:
        rate = both_ways * (CHAIN.layers // 2) / (ratio * roomy.step_seconds)
        device = dataclasses.replace(SLOW, to_device=rate, to_host=rate)
        row = book(OnDevice(device, chain=(CHAIN, HALF)))
        yield ratio, both_ways * row.used.get("swapped", 0) / rate, roomy, row


def times(book: Book) -> Iterator[tuple[str, dict[str, Row]]]:
    """By model: plain, with room, and under a budget, by probed and by measured costs."""
    for model in MODELS:
        device = _slowed(SLOW, SLOWER.get(model, 1))
        plain = book(OnDevice(device, Experiment(model, steps=3)))
        rows = {"plain": plain}
        if plain.measured_peak_bytes:
            for name, share, profile, steps in (
                ("roomy", ROOMY, "auto", _STEPS),
                ("probed", TIGHT, "auto", _STEPS),
                ("measured", TIGHT, "measured", TRACED + _STEPS),
            ):
                one = Experiment(model, mode="tfmem", profile=profile, steps=steps)
                budget = share * plain.measured_peak_bytes
                rows[name] = _within(book, device, one, budget, True)
        yield model, rows


def machines(book: Book, names: Sequence[str]) -> Iterator[tuple[str, str, float, Row, Row]]:
    """By machine, model and part of plain's peak: plain, and under that, or the least accepted."""
    for name in names:
        machine = MACHINES[name]
        device = machine.scaled()
        for model in FIVE:
            plain = book(OnDevice(device, Experiment(model, steps=3)))
            if plain.measured_peak_bytes:
                one = Experiment(model, steps=_STEPS).in_mode("tfmem", starts_on_host=True)
                for share in SHARES.get(model, (QUARTER,)):
                    budget = share * plain.measured_peak_bytes
                    yield name, model, share, plain, _within(book, device, one, budget, False)


def _slowed(device: Capabilities, times: float) -> Capabilities:
    """A device that is so many times slower, but for what each kernel and copy takes at least."""
    rates = {name: getattr(device, name) / times for name in _RATES}
    return dataclasses.replace(device, **rates)


def _within(
    book: Book, device: Capabilities, experiment: Experiment, budget: float, is_probed: bool
) -> Row:
    """The row of a budget under a hard limit with room for holes, or of the least accepted."""

    def run(one: Experiment) -> Row:
        return book(OnDevice(device, one, is_probed=is_probed))

    return reached(experiment, budget, run, roomy)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="swaps,times,machines")
    known = {name.split(",")[0]: name for name in MACHINES}
    parser.add_argument("--on", default=",".join(known), help="machines")
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args(arguments)
    only, on = options.only.split(","), options.on.split(",")
    if unknown := {*on} - {*known}:
        parser.error(f"no machine {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = partial(machines, names=[known[name] for name in on])
    sections = {"swaps": swaps, "times": times, "machines": chosen}
    with tempfile.TemporaryDirectory(prefix="tfmem-simgpu-") as folder:
        book = Book(options.rows, Runner(Path(folder)))
        found = {name: list(section(book)) for name, section in sections.items() if name in only}
    sys.stdout.write(f"{figures_page.write(found, options.rows)}\n")


if __name__ == "__main__":
    main()
