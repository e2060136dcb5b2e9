"""The command line: `tfmem`, or `python -m tfmem`.

Exit codes: 0 done; 1 an error, told in one paragraph; 2 a wrong command line; 3 the budget cannot
be met.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tfmem
from tfmem.costs import store
from tfmem.errors import BudgetError, Error
from tfmem.plan import Plan
from tfmem.units import format_bytes, parse_bytes

_EXAMPLES = """examples:
  tfmem doctor
  tfmem explain saved/ --batch=32 --html=memory.html
  tfmem optimize saved/ smaller/ --batch=32 --budget=800MB
  tfmem plan show plan.json
  tfmem plan diff before.json after.json
  tfmem cache --clear
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except BudgetError as error:
        return _failed(options, error, 3)
    except Error as error:
        return _failed(options, error, 1)
    return 0


def _failed(options: argparse.Namespace, error: Error, code: int) -> int:
    if options.json:
        least = getattr(error, "least_bytes", None)
        _print(json.dumps({"error": str(error), "least_bytes": least}))
    else:
        sys.stderr.write(f"tfmem: {error}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfmem",
        description="Run TensorFlow models in less memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tfmem {tfmem.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    explain = _command(commands, "explain", _explain, "what fills the memory of a SavedModel")
    _add_model(explain)
    explain.add_argument("--html", metavar="FILE", help="write the report as a page")

    optimize = _command(
        commands, "optimize", _optimize, "write a SavedModel that takes less memory"
    )
    _add_model(optimize)
    optimize.add_argument("output", help="folder to write, which must not exist")
    optimize.add_argument("--budget", required=True, help="most bytes in use, as 800MB or 1GiB")
    optimize.add_argument(
        "--techniques", default="order,recompute", help="of order and recompute (default: both)"
    )
    optimize.add_argument("--html", metavar="FILE", help="write the report as a page")
    optimize.add_argument("--plan", metavar="FILE", help="write the plan as JSON")

    plan = commands.add_parser("plan", help="look at plans that were written as JSON")
    kinds = plan.add_subparsers(required=True, metavar="COMMAND")
    show = _command(kinds, "show", _show, "what a plan does")
    show.add_argument("file")
    diff = _command(kinds, "diff", _diff, "how two plans differ")
    diff.add_argument("before")
    diff.add_argument("after")

    cache = _command(commands, "cache", _cache, "plans and measurements kept on disk")
    cache.add_argument("--clear", action="store_true", help="delete them")
    _command(commands, "doctor", _doctor, "what this machine is: versions, devices, a GPU's link")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="folder of a SavedModel")
    parser.add_argument("--signature", action="append", help="default: serving_default; repeatable")
    parser.add_argument("--batch", type=int, help="stands for an open first dimension")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="INPUT=N,...", help="repeatable"
    )
    parser.add_argument("--device", help="whose memory is scarce (default: GPU:0, else CPU:0)")


def _shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    shapes = {}
    for text in texts:
        name, _, dimensions = text.partition("=")
        try:
            shapes[name] = [int(one) for one in dimensions.split(",") if one]
        except ValueError as error:
            raise Error(f"--shape {text}: write a name and numbers, as x=32,224,224,3") from error
    return shapes


def _explain(options: argparse.Namespace) -> None:
    from tfmem import saved

    model = saved.load(options.model)
    shapes, names = _shapes(options.shape), options.signature or [saved.DEFAULT_SIGNATURE]
    _check_single(names, options.html)
    reports = {}
    for name in names:
        signature = model.signature(name)
        inputs = saved.example(signature, options.batch, shapes)
        function = saved.positional(signature)
        reports[name] = tfmem.explain(function, *inputs.values(), device=options.device)
    if options.html:
        reports[names[0]].html(options.html)
    for name, report in reports.items():
        _print(report.to_json() if options.json else f"{name}\n{report.text()}")


def _optimize(options: argparse.Namespace) -> None:
    from tfmem import saved
    from tfmem.report.report import write

    model = saved.load(options.model)
    shapes, names = _shapes(options.shape), options.signature or [saved.DEFAULT_SIGNATURE]
    _check_single(names, options.html or options.plan)
    if Path(options.output).exists():
        raise Error(f"{options.output} exists; name a folder that does not")
    examples = {name: saved.example(model.signature(name), options.batch, shapes) for name in names}
    made = saved.rewritten(
        model,
        examples,
        budget=parse_bytes(options.budget),
        device=options.device,
        techniques=[one for one in options.techniques.split(",") if one],
    )
    reports = {name: one.report(*examples[name].values()) for name, one in made.items()}
    saved.save(model, options.output, made, examples)
    if options.html:
        reports[names[0]].html(options.html)
    if options.plan:
        write(options.plan, reports[names[0]].plan.to_json())
    for name, report in reports.items():
        _print(report.plan.to_json() if options.json else f"{name}\n{report.plan.summary()}")


def _check_single(names: Sequence[str], written: str | None) -> None:
    if written and len(names) > 1:
        raise Error("a page or a plan is of one signature; name one --signature")


def _show(options: argparse.Namespace) -> None:
    plan = _read_plan(options.file)
    _print(plan.to_json() if options.json else plan.summary())


def _diff(options: argparse.Namespace) -> None:
    before, after = _read_plan(options.before), _read_plan(options.after)
    if options.json:
        _print(json.dumps(before.difference(after)))
        return
    for name, (old, new) in before.difference(after).items():
        _print(f"{name:<24} {old} -> {new}")


def _read_plan(path: str) -> Plan:
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, Error) as error:
        raise Error(f"cannot read the plan in {path}: {error}") from error


def _cache(options: argparse.Namespace) -> None:
    files = store.files()
    nbytes = store.nbytes_of(files)
    if options.clear:
        for path in files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise Error(f"cannot delete {path}: {error}; delete it by hand") from error
    facts = {"folder": str(store.root() or ""), "files": len(files), "bytes": nbytes}
    facts["cleared"] = options.clear
    where = facts["folder"] or f"nowhere, since {store.DIRECTORY} is empty"
    said = f"{len(files)} files, {format_bytes(nbytes)}, in {where}"
    _print(json.dumps(facts) if options.json else f"deleted {said}" if options.clear else said)


def _doctor(options: argparse.Namespace) -> None:
    from tfmem.report import doctor

    facts = doctor.examine()
    _print(json.dumps(facts) if options.json else doctor.text(facts))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
