"""Damaged files of plans, measurements and lessons: whether any is obeyed, and all are told.

A file is kept as tfmem keeps it, spoiled, and read again as the next process would read it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tfmem.__main__ import main as command_line
from tfmem.costs import history, store
from tfmem.costs.static import static_costs
from tfmem.costs.types import Link, Measured
from tfmem.errors import Error
from tfmem.functions.decide import decided
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.request import Request
from tfmem.planning.search import choose

_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
_LAYERS = 10
OUTCOMES = ("damaged", "obeyed", "not told", "bare", "another plan")
"""What is counted of each kind of file; see `files`."""

_PLANNED = 20
"""Of so many damaged plans in the cache one is planned as a whole, beside being looked up."""

_OTHERS: tuple[Any, ...] = (None, True, 3, 1e400, -1, "text", [], [[1]], {}, {"order": 3})
_NUMBERS = (10**400, -(10**30), 1e308, 2**63, math.inf, math.nan, 1e-320)
_WRONG = ("", "  \n", "null", "[1]", '"', "{", "NaN", "[" * 100_000, "9" * 10_000, '{"a":1e999}')


def chain(layers: int = _LAYERS) -> str:
    """Forward and backward through a chain of layers, as text of a graph."""
    lines, below = [f"x = _Arg() [65536] @{_DEVICE}"], "x"
    for i in range(layers):
        lines.append(f"f{i} = Exp({below}:0) [65536] @{_DEVICE}")
        below = f"f{i}"
    for i in reversed(range(layers)):
        lines.append(f"b{i} = Mul({below}:0, f{i}:0) [65536] @{_DEVICE}")
        below = f"b{i}"
    return "\n".join([*lines, f"return {below}:0"])


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
      name: of the kind.
      path: where it lies.
      other: a file of the same kind for something else.
      read: None if nothing of a file is used, else what is; tfmem.Error where that is how a
        refusal is told.
      of_a_whole_one: what comes out if something is used.
    """

    name: str
    path: Path
    other: bytes
    read: Callable[[], Any]
    of_a_whole_one: str = "obeyed"


def files(times: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """What became of damaged files, by their kind.

    Args:
      times: how many are damaged, of all kinds together.
      seed: of the damage.

    Returns:
      Of each kind how many there were ("damaged"), of how many something was used ("obeyed"), of
      how many neither a warning nor an error named the file ("not told"), and how many raised
      something else than `tfmem.Error` ("bare"). A user's plan that is another plan once it is
      damaged is counted as "another plan": that is shown, as it is what the file says.
    """
    found: dict[str, dict[str, int]] = {}
    rng, folder = random.Random(seed), tempfile.mkdtemp(prefix="tfmem-faults-")
    try:
        with mock.patch.dict(os.environ, {store.DIRECTORY: folder}):
            kinds = [*_kept(Path(folder)), *_written(Path(folder))]
            for place, kind in enumerate(kinds):
                share = times // len(kinds) + (place < times % len(kinds))
                found[kind.name] = dict(_damaged(kind, share, rng))
    finally:
        shutil.rmtree(folder)
    return found


def _kept(folder: Path) -> Iterator[Kind]:
    """Files that tfmem keeps by itself."""
    graph, other = parse(chain()), parse(chain(_LAYERS - 1))
    costs = static_costs(graph, flops={}, device=_DEVICE)
    asked = {"device": _DEVICE, "techniques": frozenset({"order", "recompute"})}
    loose, tight = (Request(budget=budget, **asked) for budget in (10**6, 600_000))
    plan = choose(graph, costs, tight).plan
    assert plan.recomputations
    paths = {}
    for request, one in ((loose, choose(graph, costs, loose).plan), (tight, plan)):
        cache.save(graph, costs, request, one)
        paths[request] = _path("plans", cache.fingerprint(graph, costs, request))
    reads = 0

    def read_plan() -> Any:
        nonlocal reads
        reads += 1
        if reads % _PLANNED:
            return cache.load(graph, costs, tight)
        return None if decided(graph, costs, tight, {}).plan == plan else "another plan"

    yield Kind("plans kept", paths[tight], paths[loose].read_bytes(), read_plan)

    machine = history.Machine("this one")
    seconds = {node.name: 1e-3 for node in graph.nodes}
    for one in (other, graph):
        history.keep_measured(one, _DEVICE, machine, Measured(seconds, {}, {}))
    mine, others = (
        _path("profiles", machine.key(history.fingerprint(one), _DEVICE)) for one in (graph, other)
    )
    measured = history.measured_of
    yield Kind("profiles", mine, others.read_bytes(), lambda: measured(graph, _DEVICE, machine))
    for facts in ("there", "here"):
        history.keep_probe(Link(1e9, 1e9, 1e-4, 0.5), machine, facts)
    mine, others = (_path("probes", machine.key("Link", one)) for one in ("here", "there"))
    yield Kind("probes", mine, others.read_bytes(), lambda: history.probed(Link, machine, "here"))
    lessons = history.Lesson(graph, machine), history.Lesson(other, machine)
    for lesson in lessons:
        lesson.keep(12345)
        with mock.patch.object(os, "getpid", return_value=2**22 + 1):  # above what Linux gives
            lesson.begin(12345)
    mine, others = (_path("lessons", machine.key(history.fingerprint(g))) for g in (graph, other))
    yield Kind("lessons", mine, others.read_bytes(), lambda: lessons[0].nbytes() or None)
    mark, others = mine.with_suffix(".mark"), others.with_suffix(".mark")
    yield Kind("marks", mark, others.read_bytes(), lambda: lessons[0].of_the_dead() or None)


def _written(folder: Path) -> Iterator[Kind]:
    """Files that a user has written, and shows or compares."""
    graph = parse(chain())
    costs = static_costs(graph, flops={}, device=_DEVICE)
    plan = choose(graph, costs, Request(device=_DEVICE, budget=600_000)).plan
    path, same = folder / "plan.json", folder / "same.json"
    other = Plan().to_json().encode()
    for one in (path, same):
        one.write_text(plan.to_json(), encoding="utf-8")

    def shown() -> Any:
        said = io.StringIO()
        for asked in (["show", str(path)], ["diff", str(path), str(same)]):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                if command_line(["plan", *asked]):
                    raise Error(said.getvalue())
        return _read(path)

    yield Kind("plans of users", path, other, shown, "another plan")


def _read(path: Path) -> Plan:
    """A user's plan is obeyed by nobody; what is read of it must be a plan through and through."""
    plan = Plan.from_json(path.read_text(encoding="utf-8"))
    assert Plan.from_json(plan.to_json()) == plan
    assert {plan}
    return plan


def _path(kind: str, key: str) -> Path:
    path = store.path_of(kind, key)
    assert path is not None
    assert path.with_suffix(".json").exists()
    return path


def _damaged(kind: Kind, times: int, rng: random.Random) -> Counter[str]:
    found = Counter(dict.fromkeys(OUTCOMES, 0))
    whole = kind.path.read_bytes()
    assert _outcome(kind) == {kind.of_a_whole_one}
    for _ in range(times):
        _spoil(kind, whole, rng)
        found["damaged"] += 1
        found.update(_outcome(kind))
        if kind.path.is_dir():
            kind.path.rmdir()
        kind.path.write_bytes(whole)
    return found


def _outcome(kind: Kind) -> set[str]:
    """What is wrong with how a file is read."""
    told = io.StringIO()
    handler, log = logging.StreamHandler(told), logging.getLogger("tfmem")
    history.IN_PROCESS.facts.clear()
    log.addHandler(handler)
    try:
        used = kind.read()
    except Error as error:
        used = None
        told.write(str(error))
    except Exception as error:
        logging.getLogger(__name__).warning("%s: %r", kind.name, error)
        return {"bare"}
    finally:
        log.removeHandler(handler)
    if used is not None:
        return {kind.of_a_whole_one}
    return set() if str(kind.path) in told.getvalue() else {"not told"}


def _spoil(kind: Kind, whole: bytes, rng: random.Random) -> None:
    """Damages a file in one of many ways, so that it is another one afterwards."""
    if not rng.randrange(len(_WAYS) + 1):
        kind.path.unlink()
        kind.path.mkdir()
        return
    spoiled = whole
    while spoiled == whole:
        spoiled = rng.choice(_WAYS)(whole, kind.other, rng)
    kind.path.write_bytes(spoiled)


def _cut(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    end = rng.randrange(len(whole))
    return whole[:end] + bytes(rng.choice((0, 0, len(whole) - end)))  # of a disk that was full


def _flipped(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _retyped(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    return _changed(whole, rng, lambda _: rng.choice(_OTHERS))


def _recounted(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    return _changed(whole, rng, lambda _: rng.choice(_NUMBERS))


def _renamed(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    facts = json.loads(whole)
    name = rng.choice(sorted(facts))
    value = facts.pop(name)
    return json.dumps(facts | ({f"{name}_": value} if rng.random() < 0.5 else {})).encode()


def _foreign(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    return other


def _random(whole: bytes, other: bytes, rng: random.Random) -> bytes:
    return rng.choice([text.encode() for text in _WRONG] + [rng.randbytes(rng.randrange(2000))])


_WAYS = (_cut, _flipped, _retyped, _recounted, _renamed, _foreign, _random)


def _changed(whole: bytes, rng: random.Random, change: Callable[[Any], Any]) -> bytes:
    """JSON with another value at some place, deep or not."""
    facts = json.loads(whole)
    places = list(_places(facts))
    inside, key = rng.choice(places)
    inside[key] = change(inside[key])
    return json.dumps(facts).encode()


def _places(inside: Any) -> Iterator[tuple[Any, Any]]:
    pairs = inside.items() if isinstance(inside, dict) else enumerate(inside)
    for key, value in list(pairs):
        yield inside, key
        if isinstance(value, (dict, list)):
            yield from _places(value)
