"""Plans kept on disk: found again, never believed blindly."""

from __future__ import annotations

import ast
import dataclasses
import errno
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tfmem
from tests.planning.test_search import RECOMPUTE, budgets, costs_of
from tests.support.graphs import DEVICE, training_chain
from tfmem.costs import history, store
from tfmem.costs.types import Rates
from tfmem.plan import Plan
from tfmem.planning import cache
from tfmem.planning.request import Request
from tfmem.planning.search import choose

pytestmark = pytest.mark.usefixtures("empty_cache")

GRAPH = training_chain(16, 4096)
PACKAGE = Path(tfmem.__file__).parent
COSTS = costs_of(GRAPH)
REQUEST = Request(device=DEVICE, budget=budgets(GRAPH, 0.7)[0], techniques=RECOMPUTE)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return choose(GRAPH, COSTS, REQUEST).plan


@pytest.fixture
def file(plan: Plan) -> Path:
    cache.save(GRAPH, COSTS, REQUEST, plan)
    path = store.path_of("plans", cache.fingerprint(GRAPH, COSTS, REQUEST))
    assert path is not None
    assert path.exists()
    return path


def test_a_plan_is_found_again(plan: Plan, file: Path) -> None:
    found = cache.load(GRAPH, COSTS, REQUEST)
    assert found is not None
    assert found.plan == plan
    assert found.after.peak_bytes <= found.plan.peak_bytes


def test_a_plan_for_an_allocator_that_may_grow_is_found_among_other_holes(plan: Plan) -> None:
    much = 16 * 2**20
    here = dataclasses.replace(REQUEST, may_grow=True, room=(much,))
    elsewhere = dataclasses.replace(here, room=(10_000, 6_000, much))
    cache.save(GRAPH, COSTS, here, choose(GRAPH, COSTS, here).plan)
    found = cache.load(GRAPH, COSTS, elsewhere)
    assert found is not None
    assert found.keeps(REQUEST.budget)
    assert cache.load(GRAPH, COSTS, dataclasses.replace(here, room=(4096,))) is None
    unknown = dataclasses.replace(here, room=None)
    assert cache.fingerprint(GRAPH, COSTS, unknown) != cache.fingerprint(GRAPH, COSTS, here)


@pytest.mark.parametrize("change", ["graph", "costs", "budget", "techniques"])
def test_another_question_is_another_file(file: Path, change: str) -> None:
    graph = training_chain(16, 8192) if change == "graph" else GRAPH
    costs = dataclasses.replace(COSTS, to_host=1.0) if change == "costs" else COSTS
    request = REQUEST
    if change == "budget":
        request = dataclasses.replace(REQUEST, budget=12345678)
    if change == "techniques":
        request = dataclasses.replace(REQUEST, techniques=frozenset({"order"}))
    assert cache.load(graph, costs, request) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: text.replace('"index": 1', '"index": 7'), "is damaged"),
        (lambda text: "{}", "is damaged"),
        (lambda text: text.replace('"peak_bytes": ', '"peak_bytes": 1'), "not what it says"),
    ],
)
def test_a_damaged_or_foreign_file_is_reported_and_not_obeyed(
    file: Path, damage, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = damage(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert cache.load(GRAPH, COSTS, REQUEST) is None
    assert message in caplog.text
    assert str(file) in caplog.text


def test_another_plan_in_the_place_of_one_is_not_obeyed(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a plan of the same graph, whole, and predicts what it gives."""
    only_order = dataclasses.replace(REQUEST, budget=2 * budgets(GRAPH, 1)[0])
    cache.save(GRAPH, COSTS, only_order, choose(GRAPH, COSTS, only_order).plan)
    other = store.path_of("plans", cache.fingerprint(GRAPH, COSTS, only_order))
    assert other is not None
    file.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert cache.load(GRAPH, COSTS, only_order) is not None
        assert not caplog.text
        assert cache.load(GRAPH, COSTS, REQUEST) is None
    assert f"{file} is damaged" in caplog.text


def test_a_folder_in_the_place_of_a_plan_is_reported(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.unlink()
    file.mkdir()
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert cache.load(GRAPH, COSTS, REQUEST) is None
    assert f"{file} is damaged" in caplog.text


@pytest.mark.parametrize("written", [0, 40])
def test_a_full_disk_is_reported_and_leaves_nothing(
    plan: Plan, written: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:written])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write)
    with caplog.at_level(logging.WARNING, "tfmem"):
        cache.save(GRAPH, COSTS, REQUEST, plan)
        store.mark("lessons", key(1), "{}")
    assert "No space left on device" in caplog.text
    folder = store.root()
    assert folder is not None
    assert not [one for one in folder.rglob("*") if one.is_file()]


def test_a_directory_that_cannot_be_written_is_reported(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(store.DIRECTORY, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tfmem"):
        cache.save(GRAPH, COSTS, REQUEST, plan)
    assert "cannot be kept" in caplog.text


def test_another_planner_plans_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PLANNER", "another")
    assert cache.load(GRAPH, COSTS, REQUEST) is None


def test_a_changed_byte_is_another_planner(tmp_path: Path) -> None:
    package = tmp_path / "tfmem"
    shutil.copytree(PACKAGE, package)
    assert cache.planner_of(package) == cache.PLANNER
    (package / "api.py").write_text("")  # decides nothing
    assert cache.planner_of(package) == cache.PLANNER
    changed = []
    for name in cache.DECIDES:
        assert (PACKAGE / name).exists(), name
        inner = sorted((package / name).rglob("*.py"))
        for path in inner or [package / name]:
            source = path.read_bytes()
            path.write_bytes(source.replace(b"a", b"b", 1) or b"#")
            changed.append(cache.planner_of(package))
            path.write_bytes(source)
    (package / "planning" / "more.py").write_text("")
    changed.append(cache.planner_of(package))
    assert len({cache.PLANNER, *changed}) == 1 + len(changed) > 40


def test_a_package_in_an_archive_is_the_same_planner(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", PACKAGE.parent, "tfmem")
    code = "from tfmem.planning import cache; print(cache.__file__, cache.PLANNER)"
    environment = os.environ | {"PYTHONPATH": archive}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    where, found = subprocess.run([sys.executable, "-c", code], check=True, **run).stdout.split()
    assert where.startswith(archive)
    assert found == cache.PLANNER


def imported(path: Path) -> set[Path]:
    """Modules of the package that one imports at any level, as files."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    parts = [name.split(".")[1:] for name in names if name.startswith("tfmem.")]
    return {file for one in parts if (file := PACKAGE.joinpath(*one).with_suffix(".py")).exists()}


def test_all_that_planning_imports_is_part_of_the_planner() -> None:
    keeps = {PACKAGE / "planning" / "cache.py", PACKAGE / "costs" / "store.py"}
    reached, left = set[Path](), set((PACKAGE / "planning").rglob("*.py")) - keeps
    while left:
        reached |= left
        left = {file for path in left for file in imported(path)} - reached
    names = {path.relative_to(PACKAGE).as_posix() for path in reached}
    assert {"planning/search.py", "simulation/simulate.py", "graph/ir.py", "plan.py"} <= names
    hashed = {path for name in cache.DECIDES for path, _ in cache._sources(PACKAGE / name, name)}
    missing = names - hashed
    assert not missing, f"planning imports {missing}; add them to cache.DECIDES"


# --- the bound


def key(number: int) -> str:
    return f"{number:032x}"


def keep(kind: str, number: int, nbytes: int = 100) -> Path:
    """A file that is a second newer than that of the number before it."""
    store.save(kind, key(number), "x" * nbytes)
    path = store.path_of(kind, key(number))
    assert path is not None
    if path.exists():
        os.utime(path, (1e9 + number, 1e9 + number))
    return path


def test_the_oldest_files_go_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BOUND", 450)
    paths = [keep("plans", number) for number in range(20)]
    assert store.files() == paths[-4:]
    assert store.nbytes_of(paths) == 400
    assert not keep("plans", 20, 451).exists()
    assert store.files() == paths[-4:]
    large = keep("plans", 21, 450)
    assert store.files() == [large]


def test_plans_go_before_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BOUND", 400)
    probe, profile = keep("probes", 1), keep("profiles", 2)
    plans = [keep("plans", number) for number in (3, 4, 5)]
    assert set(store.files()) == {probe, profile, *plans[1:]}
    more = [keep("profiles", number) for number in (6, 7, 8)]
    assert set(store.files()) == {probe, *more}


def test_a_plan_that_is_used_is_new_again(file: Path) -> None:
    os.utime(file, (1e9, 1e9))
    assert cache.load(GRAPH, COSTS, REQUEST) is not None
    assert time.time() - file.stat().st_mtime < 60


def test_files_of_others_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    history.keep_probe(Rates(1.0, 1.0, 1.0), history.Machine("a Cray-1"))
    (kept,) = store.files()
    assert kept.parent.name == "probes"
    folder = keep("plans", 1).parent
    old = 1e9
    others = [folder / "mine.json", folder.parent / "mine" / f"{key(2)}.json"]
    writing, abandoned = (folder / f"{key(n)}.{key(n)}.part" for n in (3, 4))
    for path in (*others, writing, abandoned):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * 1000)
        if path != writing:
            os.utime(path, (old, old))
    monkeypatch.setattr(store, "BOUND", 100)
    newest = keep("plans", 5)
    assert store.files() == [newest]
    assert all(path.exists() for path in (*others, writing))
    assert not abandoned.exists()


def test_a_file_that_another_process_deletes_was_never_there(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = store.files()
    file.unlink()
    monkeypatch.setattr(store, "files", lambda: gone)
    monkeypatch.setattr(store, "BOUND", 100)
    with caplog.at_level(logging.WARNING, "tfmem"):
        assert cache.load(GRAPH, COSTS, REQUEST) is None
        assert keep("plans", 1).exists()
        assert store.nbytes_of(gone) == 0
    assert not caplog.text


def test_processes_keep_the_bound_together() -> None:
    code = """
import sys
from pathlib import Path
from tfmem.costs import store
store.BOUND = 2000
for number in range(int(sys.argv[1]), int(sys.argv[1]) + 300):
    key = f"{number % 500:032x}"
    store.save("plans", key, "x" * 100)
    try:
        assert store.path_of("plans", key).read_text() == "x" * 100
    except FileNotFoundError:  # the other process has kept twenty since
        pass
"""
    run = [sys.executable, "-c", code]
    both = [
        subprocess.Popen([*run, start], stderr=subprocess.PIPE, text=True) for start in ("0", "250")
    ]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, "")
    found = store.files()
    assert 1500 <= store.nbytes_of(found) <= 2000
    assert not list(found[0].parent.glob("*.part"))


def test_an_empty_name_keeps_nothing(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.DIRECTORY, "")
    cache.save(GRAPH, COSTS, REQUEST, plan)
    assert store.path_of("plans", "key") is None
    assert cache.load(GRAPH, COSTS, REQUEST) is None
