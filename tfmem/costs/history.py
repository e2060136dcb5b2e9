"""What was measured once: seconds of a graph's nodes, the speed of a machine. Kept on disk.

A profile holds for a graph's computation wherever its nodes and variables live, and for the machine
that it was taken on. One that is damaged, or another machine's, is reported and not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import uuid
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from tfmem.costs import store
from tfmem.costs.types import Copies, Link, Measured, Rates
from tfmem.graph.ir import Graph

_log = logging.getLogger("tfmem")

_LESSONS = "lessons"
_LIFE = uuid.uuid4().hex
"""Tells this process from one that had its number before, as all first ones of containers have."""

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
    kept = told(machine, kind.__name__, *facts)
    try:
        return kind(**kept["probe"]) if kept else None
    except (KeyError, TypeError):
        _log.warning("a probe kept is damaged; it is not used")
        return None


def keep_probe(found: Link | Rates | Copies, machine: Machine, *facts: str) -> None:
    """Keeps what was probed, in this process and on disk."""
    keep_told({"probe": asdict(found)}, machine, type(found).__name__, *facts)


def told(machine: Machine, *facts: str) -> dict[str, Any] | None:
    """Fields that were kept about a machine; None if there are none."""
    return _load("probes", machine.key(*facts), machine)


def keep_told(fields: dict[str, Any], machine: Machine, *facts: str) -> None:
    """Keeps fields, JSON values, in this process and on disk."""
    _save("probes", machine.key(*facts), machine, fields)


class Lesson:
    """Bytes that steps of a graph were found to take beyond what was predicted."""

    def __init__(self, graph: Graph, machine: Machine, *facts: str) -> None:
        """Finds its place.

        Args:
          graph: as it was captured.
          machine: where the steps run.
          *facts: what else a prediction depends on.
        """
        self._machine = machine
        self._key = machine.key(fingerprint(graph), *facts)

    def nbytes(self) -> int:
        """What is known; 0 if nothing is."""
        kept = _load(_LESSONS, self._key, self._machine)
        found = kept.get("unforeseen") if kept else 0
        if not isinstance(found, int) or found < 0:
            _log.warning("what is kept of steps before is damaged; it is not used")
            return 0
        return found

    def keep(self, nbytes: int) -> None:
        """Keeps it, in this process and on disk."""
        _save(_LESSONS, self._key, self._machine, {"unforeseen": nbytes})

    def begin(self, nbytes: int) -> None:
        """Says on disk what will be known if this process dies before `end`."""
        own = {"node": platform.node(), "pid": os.getpid(), "life": _LIFE}
        store.mark(_LESSONS, self._key, json.dumps(own | {"unforeseen": nbytes}))

    def end(self) -> None:
        """Takes that back."""
        store.unmark(_LESSONS, self._key)

    def of_the_dead(self) -> int:
        """What a process on this machine said that died before `end`; 0 if none did."""
        text = store.marked(_LESSONS, self._key)
        if text is None:
            return 0
        left = json.loads(text)
        pid, found = int(left["pid"]), int(left["unforeseen"])
        is_gone = pid == os.getpid() and left.get("life") != _LIFE
        is_here = left.get("node") == platform.node()
        return found if is_here and (is_gone or not _is_alive(pid)) else 0


def _is_alive(pid: int) -> bool:
    """Whether a process runs; where that cannot be asked without harm, it is taken to."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
    store.save(kind, key, store.sealed(kind, key, json.dumps(facts)))


def _load(kind: str, key: str, machine: Machine) -> dict[str, Any] | None:
    if (kind, key) in IN_PROCESS.facts:
        return IN_PROCESS.facts[kind, key]
    path = store.path_of(kind, key)
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)["machine"]
        if found != machine.text:
            _log.warning(
                "%s was measured on another machine (%s, this is %s); it is not used, delete it",
                path,
                found,
                machine.text,
            )
            return None
        facts = json.loads(store.check_seal(kind, key, text))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("%s is damaged (%r); it is not used, delete it", path, error)
        return None
    store.touch(path)
    IN_PROCESS.facts[kind, key] = facts
    return dict(facts)
