"""Plans kept on disk, so that the same graph is planned once.

A file is found by the fingerprint of all that a plan depends on: graph, costs, what was asked for,
versions. What is read is judged again before it is believed: a plan whose simulation does not give
what the file says is reported and passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from importlib import metadata
from pathlib import Path

import platformdirs

from tfmem.costs import Costs
from tfmem.errors import Error
from tfmem.ir import Graph
from tfmem.plan import Plan
from tfmem.planning.search import Decision, Request, judge

_log = logging.getLogger("tfmem")

DIRECTORY = "TFMEM_CACHE_DIR"
"""Environment variable that names another directory than the user's cache; empty keeps nothing."""


def directory() -> Path | None:
    """Where plans are kept; None if the user wants none kept."""
    named = os.environ.get(DIRECTORY)
    if named is None:
        return Path(platformdirs.user_cache_dir("tfmem")) / "plans"
    return Path(named) / "plans" if named else None


def load(graph: Graph, costs: Costs, request: Request) -> Decision | None:
    """The plan kept for exactly this; None if there is none that can be believed."""
    path = _path(graph, costs, request)
    if path is None or not path.exists():
        return None
    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"))
        decision = judge(graph, costs, request, plan)
    except (Error, OSError, UnicodeDecodeError) as error:
        _log.warning("the plan kept in %s is damaged (%s); it is not used, delete it", path, error)
        return None
    if decision.plan != plan:
        _log.warning("the plan kept in %s is not what it says; it is not used, delete it", path)
        return None
    _log.info("the plan is taken from %s", path)
    return decision


def save(graph: Graph, costs: Costs, request: Request, plan: Plan) -> None:
    """Keeps a plan; a directory that cannot be written is reported, nothing else."""
    path = _path(graph, costs, request)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(plan.to_json(), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.warning(
            "the plan cannot be kept (%s); name a directory in %s, or set it empty",
            error,
            DIRECTORY,
        )


def _path(graph: Graph, costs: Costs, request: Request) -> Path | None:
    folder = directory()
    return folder / f"{fingerprint(graph, costs, request)}.json" if folder else None


def fingerprint(graph: Graph, costs: Costs, request: Request) -> str:
    """Of everything that a plan depends on."""
    facts = [
        str(graph),
        json.dumps(sorted(costs.seconds.items())),
        json.dumps(sorted(costs.workspace.items())),
        repr((costs.to_host, costs.from_host, costs.latency, costs.granularity)),
        repr((request.device, request.host, request.budget, request.limit, request.max_slowdown)),
        repr(sorted(request.techniques)),
        metadata.version("tfmem"),
        metadata.version("tensorflow"),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
