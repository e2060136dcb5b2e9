"""The import rules of the design: who may know whom, and what may be private, global or long."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tfmem"

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
)
FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("tfmem", "models", "tests")
    for path in (ROOT / folder).rglob("*.py")
)

KNOWS_TENSORFLOW = (
    "tfmem.api",
    "tfmem.bridge",
    "tfmem.costs.probes",
    "tfmem.costs.profiler",
    "tfmem.functions.arguments",
    "tfmem.functions.failures",
    "tfmem.functions.resolve",
    "tfmem.functions.signature",
    "tfmem.functions.watched",
    "tfmem.keras",
    "tfmem.runtime.asking",
    "tfmem.runtime.creation",
    "tfmem.runtime.devices",
    "tfmem.runtime.buffers",
    "tfmem.runtime.caches",
    "tfmem.runtime.chunks",
    "tfmem.runtime.copies",
    "tfmem.runtime.heap",
    "tfmem.runtime.host",
    "tfmem.runtime.host_server",
    "tfmem.runtime.memory",
    "tfmem.runtime.snapshot",
    "tfmem.runtime.variables",
    "tfmem.saved",
)
"""Folders and modules that import TensorFlow."""

LIBRARIES = ("tensorflow", "keras", "tf_keras")

KNOWS_PRIVATE_PARTS = ("tfmem.bridge",)
"""Folders and modules that use what TensorFlow and Keras do not offer."""

MAY_IMPORT = {
    "tfmem.errors": (),
    "tfmem.units": ("tfmem.errors",),
    "tfmem.graph": ("tfmem.errors", "tfmem.graph"),
    "tfmem.plan": ("tfmem.errors", "tfmem.graph", "tfmem.units"),
    "tfmem.costs.types": ("tfmem.graph",),
    "tfmem.costs.static": ("tfmem.costs.types", "tfmem.graph"),
    "tfmem.simulation": (
        "tfmem.costs.static",
        "tfmem.costs.types",
        "tfmem.errors",
        "tfmem.graph",
        "tfmem.plan",
        "tfmem.simulation",
        "tfmem.units",
    ),
    "tfmem.passes": ("tfmem.errors", "tfmem.graph", "tfmem.passes", "tfmem.plan"),
    "tfmem.planning": (
        "tfmem.costs.static",
        "tfmem.costs.store",
        "tfmem.costs.types",
        "tfmem.errors",
        "tfmem.graph",
        "tfmem.plan",
        "tfmem.planning",
        "tfmem.simulation",
        "tfmem.units",
    ),
    "tfmem.bridge": (
        "tfmem.bridge",
        "tfmem.costs.types",
        "tfmem.errors",
        "tfmem.graph",
        "tfmem.runtime.caches",
        "tfmem.runtime.devices",
    ),
    "tfmem.runtime": (
        "tfmem.bridge.asked",
        "tfmem.bridge.connection",
        "tfmem.bridge.elements",
        "tfmem.bridge.forks",
        "tfmem.bridge.handles",
        "tfmem.bridge.kernels",
        "tfmem.bridge.limits",
        "tfmem.bridge.traces",
        "tfmem.costs.types",
        "tfmem.errors",
        "tfmem.graph.device_names",
        "tfmem.runtime",
        "tfmem.units",
    ),
    "tfmem.costs": ("tfmem.bridge.traces", "tfmem.costs", "tfmem.graph"),
    "tfmem.functions": (
        "tfmem.bridge",
        "tfmem.costs",
        "tfmem.errors",
        "tfmem.functions",
        "tfmem.graph",
        "tfmem.options",
        "tfmem.passes",
        "tfmem.plan",
        "tfmem.planning",
        "tfmem.runtime",
        "tfmem.simulation",
        "tfmem.units",
    ),
    "tfmem.report.report": (
        "tfmem.errors",
        "tfmem.graph.ir",
        "tfmem.plan",
        "tfmem.report.page",
        "tfmem.report.plots",
        "tfmem.simulation.simulate",
        "tfmem.units",
    ),
    "tfmem.report.page": (),
    "tfmem.report.plots": ("tfmem.errors", "tfmem.report.report"),
}
"""What of tfmem a folder or module may import; the others may import anything."""

MAY_NOT_IMPORT = {"tfmem.planning": ("tfmem.graph.edit",)}
"""What is left out of that."""

LOADS_NO_TENSORFLOW = [
    module
    for module in MODULES
    if module.startswith(
        ("tfmem.graph", "tfmem.passes", "tfmem.plan", "tfmem.simulation", "tfmem.units")
    )
] + ["tfmem.costs.static", "tfmem.costs.store", "tfmem.report.report", "tfmem.report.plots"]

STANDARD_PRIVATE = {"os._exit"}
"""Names of Python itself that only look private."""

MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 60


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def is_within(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def imported(module: str) -> set[str]:
    """What a module imports, wherever in it: modules, or names of modules."""
    found: set[str] = set()
    for node in ast.walk(tree(file_of(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: name the module in full"
            source = str(node.module)
            for alias in node.names:
                name = f"{source}.{alias.name}"
                is_module = name in MODULES or f"{name}.__init__" in MODULES
                found.add(name if is_module else source)
    return found


def fine(breaches: Iterable[str]) -> bool:
    """True if a rule is broken nowhere; otherwise the test fails and names every place."""
    found = list(breaches)
    assert not found, "\n".join(found)
    return True


# --- who may know whom


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_what_it_may(room: str) -> None:
    may, may_not = MAY_IMPORT[room], MAY_NOT_IMPORT.get(room, ())
    within = [module for module in MODULES if is_within(module, [room])]
    assert within, f"there is no {room}"
    assert fine(
        f"{module} imports {name}"
        for module in within
        for name in sorted(imported(module))
        if is_within(name, ["tfmem"]) and (not is_within(name, may) or is_within(name, may_not))
    )


def test_tensorflow_is_imported_where_it_may() -> None:
    assert fine(
        f"{module} is meant to be free of TensorFlow, and imports {name}"
        for module in MODULES
        if not is_within(module, KNOWS_TENSORFLOW)
        for name in sorted(imported(module))
        if is_within(name, LIBRARIES)
    )


def test_private_parts_are_imported_where_they_may() -> None:
    assert fine(
        f"{module} imports {name}"
        for module in MODULES
        if not is_within(module, KNOWS_PRIVATE_PARTS)
        for name in sorted(imported(module))
        if is_within(name, LIBRARIES) and name != "tensorflow"
    )


@pytest.mark.parametrize("room", KNOWS_TENSORFLOW)
def test_no_room_is_listed_without_need(room: str) -> None:
    names = {n for module in MODULES if is_within(module, [room]) for n in imported(module)}
    assert "tensorflow" in names, f"{room} imports no TensorFlow; take it off the list"


def test_planning_passes_and_plain_data_load_no_tensorflow() -> None:
    names = [module.removesuffix(".__init__") for module in LOADS_NO_TENSORFLOW]
    code = f"import sys, {', '.join(names)}; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_no_tensorflow() -> None:
    code = "import sys, tfmem; sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- private attributes


def test_private_attributes_are_used_where_they_may() -> None:
    assert fine(
        f"{module}:{line}: {text} is private to another module, or to TensorFlow"
        for module in MODULES
        if not is_within(module, KNOWS_PRIVATE_PARTS)
        for line, text in private_attributes(tree(file_of(module)))
    )


def private_attributes(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of names that begin with `_` and that the module does not define: line, text."""
    own = set(defined(module))
    for line, text, name in attributes(module):
        is_private = name.startswith("_") and not name.endswith("__")
        is_tensorflows = text.startswith(("tf.__internal__", "tf.python", "tf.core"))
        if is_tensorflows or (is_private and name not in own and text not in STANDARD_PRIVATE):
            yield line, text


def defined(module: ast.Module) -> Iterator[str]:
    """Names that a module gives to classes, functions, variables and attributes of its objects."""
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) in ("self", "cls") else []


def attributes(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Attributes that are read, set or asked for by name: line, text, name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node), node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            name = node.args[1]
            by_name = ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr")
            if by_name and isinstance(name, ast.Constant):
                yield node.lineno, ast.unparse(node), str(name.value)


# --- state


def test_state_has_an_owner() -> None:
    """No name of a module is bound anew, and none begins as something to be filled later."""
    assert fine(
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for node in ast.walk(tree(file_of(module)))
        if isinstance(node, ast.Global)
    )
    assert fine(
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for node in tree(file_of(module)).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_to_be_filled(node.value)
    )


PROCESS_WIDE = {
    "tfmem.bridge.forks._fork": "whether the process is a fork, which lacks TensorFlow's threads",
    "tfmem.bridge.grappler._MADE": "graphs that Grappler made, whoever asks for them again",
    "tfmem.bridge.instances._search": "what Python's collector leaves out, and nobody looks for",
    "tfmem.bridge.rebuild._serial": "names of functions, which TensorFlow has one table of",
    "tfmem.costs.history.IN_PROCESS": "what was measured or read, so that a file is read once",
    "tfmem.costs.profiler.PROFILER": "TensorFlow's profiler, of which there is one",
    "tfmem.runtime.host._connected": "the host process that TensorFlow's context is connected to",
    "tfmem.runtime.memory._earlier": "peaks from before a step, of the allocator's one counter",
    "tfmem.functions.layouts.layouts": "plans that share the free memory of a device",
    "tfmem.runtime.memory._claims": "devices whose memory was claimed at once",
    "tfmem.runtime.locks._planning": "which thread plans: others would count what it tries",
    "tfmem.runtime.chunks._seers": "sessions, which are costly to make",
    "tfmem.runtime.regions.regions": "where a device's free chunks were found to begin",
    "tfmem.runtime.variables._record": "moves of variables, and those in pinned memory",
}
"""State that belongs to the process because what it stands for does."""


def test_state_of_the_process_is_listed() -> None:
    found = {
        f"{module}.{ast.unparse(node.targets[0])}"
        for module in MODULES
        for node in tree(file_of(module)).body
        if isinstance(node, ast.Assign) and has_state(node.value, tree(file_of(module)))
    }
    assert found == set(PROCESS_WIDE)


def has_state(value: ast.expr, module: ast.Module) -> bool:
    """Whether a value is an object of a class of the module that has attributes of its own."""
    if not isinstance(value, ast.Call):
        return False
    (own,) = [
        one
        for one in module.body
        if isinstance(one, ast.ClassDef) and one.name == ast.unparse(value.func)
    ] or [None]
    if own is None:
        return False
    return any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in own.body)


def is_to_be_filled(value: ast.expr | None) -> bool:
    if value is None:
        return False
    if isinstance(value, (ast.List, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    made = ("set()", "list()", "dict()", "itertools.count()")
    kinds = ("defaultdict(", "collections.", "weakref.", "threading.", "contextvars.")
    return ast.unparse(value) in made or ast.unparse(value).startswith(kinds)


# --- length, and exceptions from the linter's rules


def test_a_file_is_short_or_says_why_not() -> None:
    assert fine(
        f"{file} has {lines} lines; split it along its meaning, or say 'Long because' at its top"
        for file in FILES
        if (lines := len((ROOT / file).read_text(encoding="utf-8").splitlines())) > MOST_LINES
        and "Long because" not in (ast.get_docstring(tree(file)) or "")
    )


def test_a_function_fits_a_screen() -> None:
    assert fine(
        f"{file}: {node.name} has {lines} lines"
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    )


def test_an_exception_from_a_rule_of_the_linter_has_a_reason() -> None:
    mark = "# " + "noqa"
    assert fine(
        f"{file}:{number}: write '{mark}: RULE - reason'"
        for file in FILES
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1)
        if mark in line and not re.search(rf"{mark}: [A-Z]+\d+ - \S", line)
    )
