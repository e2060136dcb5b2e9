"""The import rules of the design: who may know whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tfmem

PACKAGE = Path(tfmem.__file__).parent
TOUCHES_PRIVATE_PARTS = {
    "arguments",
    "capture",
    "graphdefs",
    "grappler",
    "inference",
    "kernels",
    "measure",
    "profiler",
    "rebuild",
    "tracing",
    "variables",
}
KNOWS_TENSORFLOW = TOUCHES_PRIVATE_PARTS | {
    "api",
    "devices",
    "doctor",
    "host",
    "host_server",
    "keras",
    "request",
    "saved",
    "signature",
}


def modules() -> dict[str, Path]:
    files = PACKAGE.rglob("*.py")
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in files}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("module", modules())
def test_private_tensorflow_stays_in_its_rooms(module: str) -> None:
    used = {name for name in imports(modules()[module]) if name.startswith("tensorflow")}
    if module not in KNOWS_TENSORFLOW:
        assert not used, f"{module} is meant to be free of TensorFlow"
    if module not in TOUCHES_PRIVATE_PARTS:
        private = {name for name in used if name.startswith("tensorflow.")}
        assert not private, f"{module} may use public TensorFlow only"


def test_deciding_and_doing_do_not_know_each_other() -> None:
    for module, path in modules().items():
        used = imports(path)
        if module.startswith("planning"):
            assert not {n for n in used if n.startswith(("tfmem.passes", "tfmem.graph.edit"))}, (
                module
            )
        if module.startswith("passes"):
            assert not {n for n in used if n.startswith("tfmem.planning")}, module


def test_ops_and_ir_know_nothing_above_them() -> None:
    above = {"tfmem.plan", "tfmem.simulation.liveness", "tfmem.costs", "tfmem.simulation.simulate"}
    for module in ("ir", "ops", "text", "verify", "edit"):
        assert above.isdisjoint(imports(modules()[module])), module


def test_import_loads_no_tensorflow() -> None:
    code = "import sys, tfmem; sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
