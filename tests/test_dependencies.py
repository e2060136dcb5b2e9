"""What is imported is what pyproject.toml says is needed, and nothing else is said to be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # since Python 3.11; what is read is the same on 3.10

ROOT = Path(__file__).parent.parent
OWN = {"tfmem", "models", "tests"}

MODULES = {"absl-py": "absl", "scikit-learn": "sklearn"}
"""Packages whose module has another name."""

COMMANDS = {
    "pytest": "-m pytest",
    "pytest-xdist": "-n 3",
    "ruff": "-m ruff",
    "mypy": "-m mypy",
    "build": "-m build",
}
"""What of the extra `dev` the Makefile runs, and how."""

FOR_DEVELOPERS = {"models/bench/page.py": {"playwright"}}
"""Modules of `models/` that need more than its extra: a browser, to time the report's page."""


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def modules(requirements: list[str]) -> set[str]:
    """The modules that requirements bring; those of tfmem's own extras are not among them."""
    names = {re.split(r"[\[<>=!~; ]", one)[0] for one in requirements} - OWN
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def needed() -> set[str]:
    return modules(project()["dependencies"])


def extra(name: str) -> set[str]:
    return modules(project()["optional-dependencies"][name])


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of others that are imported anywhere in a tree, by name too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if not node.level else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_import = node.func.attr in ("import_module", "importorskip") and node.args
            first = node.args[0] if is_import else None
            names = [str(first.value)] if isinstance(first, ast.Constant) else []
        else:
            continue
        yield from {name.split(".")[0] for name in names} - OWN - set(sys.stdlib_module_names)


def optional(tree: ast.AST) -> Iterator[str]:
    """Modules that may be missing: their import stands in a `try` that expects it to fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(
            isinstance(handler.type, ast.Name)
            and handler.type.id in ("ImportError", "ModuleNotFoundError")
            for handler in node.handlers
        ):
            yield from imports(ast.Module(node.body, []))


def trees(folder: str) -> dict[str, ast.Module]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text(encoding="utf-8")) for p in files}


def imported(folder: str) -> set[str]:
    return {name for tree in trees(folder).values() for name in imports(tree)}


def may_be_missing(folder: str) -> set[str]:
    return {name for tree in trees(folder).values() for name in optional(tree)}


def test_the_wheel_depends_on_what_it_imports() -> None:
    assert needed() == imported("tfmem") - may_be_missing("tfmem")


def test_what_may_be_missing_is_an_extra() -> None:
    assert extra("plots") == may_be_missing("tfmem")


def test_the_models_need_their_extra() -> None:
    (plots,) = [one for one in project()["optional-dependencies"]["models"] if "[" in one]
    assert plots == "tfmem[plots]"
    used = set[str]()
    for file, tree in trees("models").items():
        if file.startswith("models/bench/wild_cases/"):
            continue  # in an environment of their own: requirements.txt beside them
        here = set(imports(tree)) - FOR_DEVELOPERS.get(file, set())
        missing = here - needed() - extra("plots") - extra("models")
        assert not missing, f"{file} imports {missing}, which the extra models lacks"
        used |= here
    assert extra("models") <= used


def test_tests_and_tools_need_the_extra_dev() -> None:
    assert "tfmem[models]" in project()["optional-dependencies"]["dev"]
    used = imported("tests") | set.union(*FOR_DEVELOPERS.values())
    assert used <= needed() | extra("plots") | extra("models") | extra("dev")
    tools = {MODULES.get(name, name.replace("-", "_")) for name in COMMANDS}
    assert extra("dev") <= used | tools
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(command in makefile for command in COMMANDS.values())
    assert '--editable ".[dev]"' in makefile


def test_an_optimised_function_needs_no_extra() -> None:
    others = (extra("plots") | extra("models") | extra("dev")) - {"absl", "keras"}
    code = f"""
        import sys
        sys.modules |= dict.fromkeys({sorted(others)})  # none of them can be imported
        import tensorflow as tf
        import tfmem
        print(float(tfmem.optimize(lambda x: 2.0 * x)(tf.ones([]))), tfmem.keras.MemoryBudget)
    """
    script = "\n".join(line.strip() for line in code.splitlines())
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("2.0 ")
