"""Plans kept on disk, so that the same graph is planned once.

A file is found by the fingerprint of all that a plan depends on: graph, costs, what was asked for,
the planner itself. What is read is judged again before it is believed: a plan whose simulation does
not give what the file says is reported and passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING

from tfmem.costs import store
from tfmem.costs.types import Costs
from tfmem.errors import Error
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.judge import judge
from tfmem.planning.request import Decision, Request

if TYPE_CHECKING:
    from importlib.abc import Traversable  # elsewhere from Python 3.14 on

_log = logging.getLogger("tfmem")

DECIDES = (
    "graph",
    "costs/types.py",
    "costs/static.py",
    "simulation",
    "planning",
    "plan.py",
    "units.py",
    "errors.py",
)
"""Folders and files of the package whose code decides or judges a plan."""


def planner_of(package: Traversable) -> str:
    """What the planner of a package is: a fingerprint of the sources that decide a plan.

    Files that are not there count as nothing: a frozen program may have no sources.
    """
    whole = hashlib.sha256()
    for name in DECIDES:
        for path, source in _sources(package / name, name):
            whole.update(f"{path} {len(source)}\n".encode() + source)
    return whole.hexdigest()


def _sources(place: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of a file of Python, or of those in a folder and its folders."""
    if place.is_dir():
        for one in sorted(place.iterdir(), key=lambda one: one.name):
            yield from _sources(one, f"{path}/{one.name}")
    elif path.endswith(".py") and place.is_file():
        yield path, place.read_bytes()


PLANNER = planner_of(resources.files("tfmem"))
"""Of this process; read with this module, so that it is of the sources that run."""


def load(
    graph: Graph, costs: Costs, request: Request, bodies: Bodies | None = None
) -> Decision | None:
    """The plan kept for exactly this; None if there is none that can be believed.

    What an allocator has free that may grow is other in each process: the plan has to keep the
    budget there, too, and has other peaks.
    """
    key = fingerprint(graph, costs, request, bodies)
    path = store.path_of("plans", key)
    if path is None:
        return None
    try:
        plan = Plan.from_json(store.check_seal("plans", key, path.read_text(encoding="utf-8")))
        decision = judge(graph, costs, request, plan, bodies)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Error, OSError, ValueError) as error:
        _log.warning("the plan kept in %s is damaged (%s); it is not used, delete it", path, error)
        return None
    if request.may_grow and request.room is not None:
        if plan.is_noop or not decision.keeps(request.budget):
            return None
        peaks = decision.plan.peak_bytes, decision.plan.baseline_peak_bytes
        plan = replace(plan, peak_bytes=peaks[0], baseline_peak_bytes=peaks[1])
    if decision.plan != plan:
        _log.warning("the plan kept in %s is not what it says; it is not used, delete it", path)
        return None
    store.touch(path)
    _log.info("the plan is taken from %s", path)
    return decision


def save(
    graph: Graph, costs: Costs, request: Request, plan: Plan, bodies: Bodies | None = None
) -> None:
    """Keeps a plan; a directory that cannot be written is reported, nothing else."""
    key = fingerprint(graph, costs, request, bodies)
    store.save("plans", key, store.sealed("plans", key, plan.to_json()))


def fingerprint(graph: Graph, costs: Costs, request: Request, bodies: Bodies | None = None) -> str:
    """Of everything that a plan depends on; SciPy cuts graphs, NumPy sums up.

    What is free in an allocator that may grow is left out, but for whether it is known.
    """
    free: tuple[object, ...] = request.room, costs.lying, costs.blocks
    if request.may_grow:
        free = (request.room is not None,)
    facts = [
        str(graph),
        json.dumps(sorted(costs.seconds.items())),
        json.dumps(sorted(costs.workspace.items())),
        json.dumps(sorted(costs.buffers.items())),
        repr((costs.to_host, costs.from_host, costs.latency, costs.contention, costs.duplex)),
        repr((costs.by_kernels, costs.copied)),
        repr((costs.granularity, costs.fed, costs.lanes)),
        json.dumps(sorted(costs.host_seconds.items())),
        json.dumps(sorted(costs.requests.items())),
        repr([(n.name, n.stashes, n.holds, n.same) for n in graph.nodes if n.stashes or n.holds]),
        repr([(n.name, n.passed, n.last, n.inplace, n.lent, n.rows) for n in graph.nodes]),
        repr((request.device, request.host, request.budget, free, request.max_slowdown)),
        repr((sorted(request.techniques), request.bytes_beside, request.bytes_unforeseen)),
        *_texts(bodies or {}),
        PLANNER,
        *map(store.version_of, ("tfmem", "tensorflow", "numpy", "scipy")),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _texts(bodies: Bodies) -> Iterator[str]:
    for caller, functions in sorted(bodies.items()):
        for body in functions:
            yield f"{caller} {sorted(body.workspace.items())} {sorted(body.flops.items())}"
            yield repr(sorted(body.buffers.items()))
            yield str(body.graph)
            yield repr((body.arguments, body.turns, sorted(body.numbers.items())))
            yield repr([(n.stashes, n.holds, n.same) for n in body.graph.nodes])
            yield repr([(n.passed, n.last, n.inplace, n.lent, n.rows) for n in body.graph.nodes])
            yield from _texts(body.bodies)
