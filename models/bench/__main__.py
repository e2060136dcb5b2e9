"""Benchmarks: each run in a process of its own, under a hard limit of the device's memory.

    python -m models.bench peak MODEL                       measured peaks, plain and planned
    python -m models.bench capacity MODEL --limit=600MB     the largest model that trains
    python -m models.bench compare MODEL                    every mode at one size
    python -m models.bench chart MODEL                      the same as a picture
    python -m models.bench frontier MODEL                   every budget down to the least
    python -m models.bench time MODEL                       step times, taken in turn in one process
    python -m models.bench temporaries MODEL                what recomputation alone gives
    python -m models.bench audit MODEL                      what a step asked for, unforeseen
    python -m models.bench run MODEL --mode=order           one run; --report=FILE takes its page
    python -m models.bench all                              everything that RESULTS.md shows
    python -m models.bench gpu                              what a GPU is asked to prove

Rows come first (`Row`, one JSON line each with `--json`), tables are made of rows.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from absl import app, flags
from tqdm import tqdm

from models.bench import gpu, gpu_page, results, wild_cases
from models.bench.alone import run_alone
from models.bench.audit import audit
from models.bench.book import Book
from models.bench.capacity import capacity
from models.bench.charts import draw_rows
from models.bench.comparators import COMPARATORS
from models.bench.differences import difference, relative_difference
from models.bench.experiment import MODELS, MODES, PLANNED, Experiment, Row, load
from models.bench.frontier import draw, frontier, frontier_table
from models.bench.table import (
    show_bytes,
    show_count,
    show_difference,
    show_error,
    show_losses,
    show_seconds,
    table,
)
from models.bench.temporaries import temporaries, temporaries_table
from models.bench.train import alternate, limit_memory, train
from tfmem.runtime.memory import claim_memory, memory_info
from tfmem.units import parse_bytes

_COMPARED = ("plain", *COMPARATORS, "order", "order+swap+place", "recompute", "tfmem")
_PEAKS = ("plain", "order", "recompute", "tfmem")

flags.DEFINE_string("limit", None, "Hard limit of the device's memory, as 600MB or 1GiB.")
flags.DEFINE_string("budget", None, "Bytes tfmem may use; default: the limit, if there is one.")
flags.DEFINE_string("config", "small", "Which of the model's configurations to begin with.")
flags.DEFINE_multi_string("set", [], "A field of the configuration, as experts=8; repeatable.")
flags.DEFINE_list("modes", None, f"Modes to run, of {', '.join(MODES)}.")
flags.DEFINE_enum("mode", "plain", MODES, "For run and frontier: the mode.")
flags.DEFINE_integer("points", 8, "For frontier: how many budgets.")
flags.DEFINE_list("ratios", ["4", "6"], "For temporaries: how many times fewer bytes to plan for.")
flags.DEFINE_string("picture", "", "For frontier and chart: .png file that takes the picture.")
flags.DEFINE_integer("steps", None, "Steps of a run; default: 3 for capacity, 5 otherwise.")
flags.DEFINE_integer("rounds", 1, "For compare and time: runs of each mode, in turn; medians.")
flags.DEFINE_float("resolution", 0.1, "For capacity: stop when the answer is known to this part.")
flags.DEFINE_float("first_guess", 12.0, "For capacity: where tfmem's search starts, over plain's.")
flags.DEFINE_bool("gpu", False, "Limit and measure GPU:0 instead of CPU:0.")
flags.DEFINE_integer("timeout", 900, "Seconds after which a run is given up.")
flags.DEFINE_string("json", None, "File to which one JSON line for each run is added.")
flags.DEFINE_string(
    "out",
    None,
    "Folder for rows; for all, by default out/results: kept ones are not made again. "
    "For gpu: also for its page; by default out/gpu.",
)
flags.DEFINE_string("pictures", "results", "For all: folder for the pictures.")
flags.DEFINE_list(
    "only",
    [],
    f"Sections; for all: of {', '.join(results.SECTIONS)}; "
    f"for gpu: of {', '.join(gpu_page.SECTIONS)}.",
)
flags.DEFINE_integer("seconds", 460, "For gpu: after which no run is begun and all are ended.")
flags.DEFINE_string("save", "", "For run: .npz file that takes the variables after the last step.")
flags.DEFINE_string("report", "", "For run: file that takes the report, .html or .json.")
flags.DEFINE_bool("host_process", False, "For run: lend the memory of a second local process.")
flags.DEFINE_bool("starts_on_host", False, "For run: make large variables on the host.")
flags.DEFINE_integer("machines", 0, "Local servers to spread the model over; 0 for none.")


def compare(
    experiment: Experiment, modes: list[str], rounds: int
) -> list[tuple[Row, float | None]]:
    """Each mode at one size: its row, and how far its variables are from the first mode's.

    The difference is the largest of any variable, relative to that variable's largest value. A mode
    named twice shows how far it is from itself. With several rounds, which interleave the modes, a
    row is the first round's with the median of the step times.
    """
    rows: list[list[Row]] = [[] for _ in modes]
    differences: list[float | None] = [None for _ in modes]
    with tempfile.TemporaryDirectory() as folder, Runs("compare", rounds * len(modes)) as run:
        files = [str(Path(folder, f"{place}.npz")) for place in range(len(modes))]
        for number in range(rounds):
            for place, mode in enumerate(modes):
                save = "" if number else files[place]
                one = dataclasses.replace(experiment.in_mode(mode), save=save)
                most = rows[0][0].measured_peak_bytes if rows[0] else None
                rows[place].append(_budgeted(one, most, run))
                if save and Path(save).exists():
                    differences[place] = difference(files[0], save)
    return list(zip(map(results.median, rows), differences, strict=True))


def _budgeted(experiment: Experiment, most: int | None, run: Callable[[Experiment], Row]) -> Row:
    """Runs an experiment; a planned mode without a budget gets one from the peak without a plan."""
    if experiment.mode not in PLANNED or experiment.budget or experiment.limit or not most:
        return run(experiment)
    return results.reached(
        experiment,
        results.QUARTER * most,
        run,
        lambda one, budget: dataclasses.replace(one, budget=int(budget)),
    )


class Runs:
    """Runs experiments, each in a process of its own, and counts them in a progress bar.

    A context manager whose bar is shown on terminals only.
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self._bar = tqdm(desc=title, total=total, unit=" runs", leave=False, disable=None)

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, experiment: Experiment) -> Row:
        values = flags.FLAGS
        row = record(run_alone(experiment, gpu=values.gpu, timeout=values.timeout))
        self._bar.update()
        return row


def record(row: Row) -> Row:
    """Tells of a run and adds its JSON line to the file of `--json`; the row itself."""
    size = " ".join(f"{name}={value}" for name, value in row.config.items())
    peak, seconds = show_bytes(row.measured_peak_bytes), show_seconds(row.step_seconds)
    tqdm.write(f"  {row.model} {size} {row.mode}: {row.outcome}, {peak}, {seconds}")
    if flags.FLAGS.json:
        _add_line(row)
    return row


def _add_line(row: Row) -> None:
    with open(flags.FLAGS.json, "a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(row)) + "\n")


def capacity_table(rows: list[Row], growth: str) -> str:
    """What `capacity` found, with the ratio of each mode's parameters to the first's."""
    header = ["mode", growth, "parameters", "ratio", "measured peak", "predicted", "step", "losses"]
    first = rows[0].parameters
    lines = []
    for row in rows:
        ratio = f"{row.parameters / first:.1f}x" if row.parameters and first else "-"
        cells = [str(row.config.get(growth, "-")), show_count(row.parameters), ratio]
        lines.append([row.mode, *cells, *_figures(row), show_losses(row.losses)])
    return table(header, lines)


def compare_table(results: list[tuple[Row, float | None]]) -> str:
    """What `compare` found: peaks, times, and how far losses and variables are from the first's."""
    header = [
        "mode",
        "measured peak",
        "predicted",
        "step",
        "error",
        "losses",
        "variables",
        "outcome",
    ]
    lines = []
    for row, variables in results:
        losses = _loss_difference(results[0][0], row)
        figures = [*_figures(row), _prediction_error(row)]
        differences = [show_difference(losses), show_difference(variables)]
        lines.append([row.mode, *figures, *differences, row.outcome[:80]])
    return table(header, lines)


def time_table(seconds: dict[str, list[float]]) -> str:
    """Median step times, and the median ratio to the first mode's step of the same round."""
    first = next(iter(seconds.values()))
    lines = []
    for mode, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, first, strict=True))
        lines.append([mode, show_seconds(statistics.median(times)), f"{ratio:.3f}"])
    return table(["mode", "step", f"ratio to {next(iter(seconds))}"], lines)


def _figures(row: Row) -> list[str]:
    peaks = [show_bytes(row.measured_peak_bytes), show_bytes(row.predicted_peak_bytes)]
    return [*peaks, show_seconds(row.step_seconds)]


def _prediction_error(row: Row) -> str:
    return show_error(row.predicted_peak_bytes, row.measured_peak_bytes)


def _setting(model: str, steps: int) -> Experiment:
    """The experiment of the command line."""
    values = flags.FLAGS
    small = load(model).CONFIGS["small"]
    changes = {}
    for pair in values.set:
        name, _, text = pair.partition("=")
        if not hasattr(small, name):
            raise app.UsageError(f"{model} has no field {name!r}; it has {small}")
        changes[name] = type(getattr(small, name))(text)
    return Experiment(
        model=model,
        config=values.config,
        changes=changes,
        mode=values.mode,
        budget=parse_bytes(values.budget) if values.budget else None,
        limit=parse_bytes(values.limit, "limit") if values.limit else None,
        steps=values.steps or steps,
        host_process=values.host_process,
        starts_on_host=values.starts_on_host,
        machines=values.machines,
        save=values.save,
        report=values.report,
    )


def _run(model: str) -> None:
    experiment = _setting(model, steps=5)
    limit_memory(experiment.own_limit)
    if experiment.own_limit:
        claim_memory()
    record(train(experiment, print))


def _capacity(model: str) -> None:
    modes = flags.FLAGS.modes or ["plain", "order+swap+place"]
    with Runs("capacity") as run:
        rows = capacity(
            _setting(model, steps=3),
            modes,
            run,
            resolution=flags.FLAGS.resolution,
            first_guess=flags.FLAGS.first_guess,
        )
    print(capacity_table(rows, load(model).GROWTH))


def _compare(model: str) -> None:
    modes = flags.FLAGS.modes or list(_COMPARED)
    print(compare_table(compare(_setting(model, steps=5), modes, flags.FLAGS.rounds)))


def _chart(model: str) -> None:
    modes = flags.FLAGS.modes or list(_COMPARED)
    made = compare(_setting(model, steps=5), modes, flags.FLAGS.rounds)
    path = Path(flags.FLAGS.picture or f"out/{model}.png")
    rows = {mode: row for mode, (row, _) in zip(modes, made, strict=True)}
    for file in draw_rows(f"{model}, {flags.FLAGS.config}", rows, path.with_suffix("")):
        print(f"wrote {file}")


def _peak(model: str) -> None:
    modes = flags.FLAGS.modes or list(_PEAKS)
    rows = [row for row, _ in compare(_setting(model, steps=3), modes, 1)]
    lines = [
        [row.mode, show_bytes(row.measured_peak_bytes), show_bytes(row.predicted_peak_bytes),
         _prediction_error(row), row.outcome[:80]]
        for row in rows
    ]  # fmt: skip
    print(table(["mode", "measured peak", "predicted", "error", "outcome"], lines))


def _frontier(model: str) -> None:
    mode = flags.FLAGS.mode if flags.FLAGS.mode != "plain" else "recompute"
    experiment = _setting(model, steps=5)
    experiment = experiment.in_mode(mode)
    with Runs("frontier") as run:
        points = list(frontier(experiment, flags.FLAGS.points, run, _loss_difference))
    print(frontier_table(points))
    if flags.FLAGS.picture:
        draw(points, flags.FLAGS.picture)


def _loss_difference(plain: Row, row: Row) -> float | None:
    same_length = bool(plain.losses) and len(row.losses) == len(plain.losses)
    return relative_difference(plain.losses, row.losses) if same_length else None


def _time(model: str) -> None:
    modes = flags.FLAGS.modes or ["plain", "none", "order"]
    experiment = _setting(model, steps=5)
    limit_memory(experiment.limit)
    seconds = alternate(experiment, modes, max(flags.FLAGS.rounds, 2))
    print(time_table(seconds))


def _temporaries(model: str) -> None:
    experiment = _setting(model, steps=5)
    limit_memory(experiment.limit)
    ratios = [float(text) for text in flags.FLAGS.ratios]
    print(temporaries_table(temporaries(experiment, ratios, max(flags.FLAGS.rounds, 3))))


def _audit(name: str) -> None:
    """Of a model of the zoo, or a case of the wild suite."""
    limit = parse_bytes(flags.FLAGS.limit, "limit") if flags.FLAGS.limit else None
    limit_memory(limit)
    if limit:
        claim_memory()
    else:
        memory_info("CPU:0")
    if name in MODELS:
        task = load(name).build(_setting(name, steps=3).make_config())
        function, batches = tf.function(task.step), iter(task.batches)
    else:
        work = wild_cases.cases()[name].build()
        function, batches = work.functions, iter(work.batches)
    budget = flags.FLAGS.budget
    print(audit(function, batches, parse_bytes(budget) if budget else limit).text())


def _all() -> None:
    with Runs("all") as run:
        book = Book(Path(flags.FLAGS.out or "out/results", "rows.jsonl"), run)
        results.write(book, Path(flags.FLAGS.pictures), Path("RESULTS.md"), flags.FLAGS.only)


def _gpu() -> None:
    """Checks the GPU; with --nogpu the same is rehearsed on the CPU."""
    values = flags.FLAGS
    is_gpu = values.gpu or not values["gpu"].present
    unknown = set(values.only) - set(gpu_page.SECTIONS)
    if unknown:
        raise app.UsageError(f"--only={','.join(unknown)}: gpu has {', '.join(gpu_page.SECTIONS)}")
    run = gpu.GpuRun(
        out=Path(values.out or "out/gpu"),
        config=values.config if values["config"].present else gpu.GpuRun.config,
        limit=parse_bytes(values.limit, "limit") if values.limit else gpu.GpuRun.limit,
        seconds=values.seconds,
        gpu=is_gpu,
        only=tuple(values.only),
        chain=gpu.chain(is_gpu),
    )
    if is_gpu and not tf.config.list_physical_devices("GPU"):
        path = gpu.Notes(run).page
        print(f"{path.read_text(encoding='utf-8')}\nThere is no GPU here: nothing was measured.")
        raise SystemExit(3)
    path = gpu.check(run).page
    print(f"{path.read_text(encoding='utf-8')}\nwrote {path}")


_COMMANDS = {
    "run": _run,
    "time": _time,
    "capacity": _capacity,
    "compare": _compare,
    "chart": _chart,
    "peak": _peak,
    "frontier": _frontier,
    "temporaries": _temporaries,
    "audit": _audit,
}


def main(argv: list[str]) -> None:
    """The command line; see the top of this file."""
    whole = {"all": _all, "gpu": _gpu}
    if len(argv) == 2 and argv[1] in whole:
        whole[argv[1]]()
        return
    is_model = len(argv) == 3 and (argv[2] in MODELS or (argv[1] == "audit" and "." in argv[2]))
    if not is_model or argv[1] not in _COMMANDS:
        raise app.UsageError(
            f"python -m models.bench {'|'.join(_COMMANDS)} {'|'.join(MODELS)} [--flags]"
        )
    _COMMANDS[argv[1]](argv[2])


if __name__ == "__main__":
    app.run(main)
