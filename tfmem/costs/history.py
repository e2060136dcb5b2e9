"""What was measured once: seconds of a graph's nodes, the speed of a machine. Kept on disk.

A profile holds for a graph's computation wherever its nodes and variables live, and for the machine
that it was taken on. One that is damaged, or another machine's, is reported and not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from tfmem.costs import store
from tfmem.costs.types import Copies, Link, Measured, Rates
from tfmem.graph.ir import Graph

_log = logging.getLogger("tfmem")

Probed = TypeVar("Probed", Link, Rates, Copies)


@dataclass(frozen=True)
class Machine:
    """What measured times depend on: the hardware, TensorFlow."""

    text: str

    def key(self, *facts: str) -> str:
        """Of something measured on this machine."""
        return hashlib.sha256("\n".join((self.text, *facts)).encode()).hexdigest()[:32]


def measured_of(graph: Graph, device: str, machine: Machine) -> Measured | None:
    """What a graph's nodes were measured to take; None if there is nothing that can be used."""
    kept = _load("profiles", machine.key(fingerprint(graph), device), machine)
    if not kept or "seconds" not in kept:
        return None
    found = Measured(kept["seconds"], kept.get("workspace"), kept.get("host_seconds", {}))
    tables = (found.seconds, found.workspace or {}, found.host_seconds)
    if not all(isinstance(t, dict) and all(map(_is_amount, t.values())) for t in tables):
        _log.warning("a profile kept is damaged; it is not used")
        return None
    return found


def keep_measured(graph: Graph, device: str, machine: Machine, measured: Measured) -> None:
    """Keeps what a graph's nodes were measured to take, in this process and on disk."""
    known = {
        field: table and {name: value for name, value in table.items() if name in graph.by_name}
        for field, table in asdict(measured).items()
    }
    _save("profiles", machine.key(fingerprint(graph), device), machine, known)


def probed(kind: type[Probed], machine: Machine, *facts: str) -> Probed | None:
    """What was probed for such facts; None if there is nothing that can be used."""
    kept = _load("probes", machine.key(kind.__name__, *facts), machine)
    try:
        return kind(**kept["probe"]) if kept else None
    except (KeyError, TypeError):
        _log.warning("a probe kept is damaged; it is not used")
        return None


def keep_probe(found: Link | Rates | Copies, machine: Machine, *facts: str) -> None:
    """Keeps what was probed, in this process and on disk."""
    key = machine.key(type(found).__name__, *facts)
    _save("probes", key, machine, {"probe": asdict(found)})


def unforeseen(graph: Graph, machine: Machine, *facts: str) -> int:
    """Bytes that steps of a graph were found to take beyond what was predicted; 0 if none were.

    Args:
      graph: as it was captured.
      machine: where they ran.
      *facts: what else the prediction depended on.
    """
    kept = _load("lessons", machine.key(fingerprint(graph), *facts), machine)
    found = kept.get("unforeseen") if kept else 0
    if not isinstance(found, int) or found < 0:
        _log.warning("what is kept of steps before is damaged; it is not used")
        return 0
    return found


def keep_unforeseen(nbytes: int, graph: Graph, machine: Machine, *facts: str) -> None:
    """Keeps what steps of a graph take beyond predictions, in this process and on disk."""
    key = machine.key(fingerprint(graph), *facts)
    _save("lessons", key, machine, {"unforeseen": nbytes})


def fingerprint(graph: Graph) -> str:
    """Of what a graph computes, not of where."""
    lines = (f"{n.name} {n.op} {n.nbytes} {' '.join(map(str, n.inputs))}" for n in graph.nodes)
    facts = (store.version_of("tensorflow"), *lines)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and value >= 0


class Kept:
    """What this process has measured or read, by kind and key, so that a file is read once.

    It holds for a machine, and so for the process: every function that is priced looks here first.
    """

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], dict[str, Any]] = {}


IN_PROCESS = Kept()
"""That of this process."""


def _save(kind: str, key: str, machine: Machine, facts: dict[str, Any]) -> None:
    facts = {"machine": machine.text, **facts}
    IN_PROCESS.facts[kind, key] = facts
    store.save(kind, key, json.dumps(facts))


def _load(kind: str, key: str, machine: Machine) -> dict[str, Any] | None:
    if (kind, key) in IN_PROCESS.facts:
        return IN_PROCESS.facts[kind, key]
    path = store.path_of(kind, key)
    if path is None:
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        found = facts["machine"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged (%r); it is not used, delete it", path, error)
        return None
    if found != machine.text:
        _log.warning(
            "%s was measured on another machine (%s, this is %s); it is not used",
            path,
            found,
            machine.text,
        )
        return None
    store.touch(path)
    IN_PROCESS.facts[kind, key] = facts
    return dict(facts)
