"""The tutorial runs as it stands, and what is built can be installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.memory
def test_the_tutorial_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 5
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "memory.html").stat().st_size > 50_000
    assert "what a budget would cost" in done.stdout
    assert "least reachable peak" in done.stdout


def test_every_message_in_troubleshooting_is_one_that_tfmem_gives() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tfmem/**/*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", code)  # texts that stand on several lines
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    titles = "\n".join(line for line in text.splitlines() if line.startswith("**"))
    messages = re.findall(r"\*\*(.+?)\*\*", titles)
    assert len(messages) > 30
    for message in messages:
        for part in message.split("..."):
            assert part.strip(" ,;") in said, message


def test_a_wheel_is_whole_where_nothing_else_of_the_repository_is(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    source = tmp_path / "source"  # the build leaves files in its folder, and takes old ones along
    shutil.copytree(ROOT / "tfmem", source / "tfmem")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, cwd=tmp_path, env=environment)
    (wheel,) = tmp_path.glob("tfmem-*.whl")
    with zipfile.ZipFile(wheel) as parts:
        (name,) = [name for name in parts.namelist() if name.endswith(".dist-info/METADATA")]
        stated = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", parts.read(name).decode(), re.M)
    needs = [package for package, rest in stated if "extra ==" not in rest]
    assert set(needs) == {"tensorflow", "numpy", "scipy", "platformdirs", "tqdm"}

    clean = tmp_path / "clean"
    venv.create(clean, with_pip=True)
    python = clean / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, cwd=tmp_path, env=environment)
    (site,) = clean.glob("lib/python*/site-packages")
    # What tfmem needs is not installed again: it is found where it is, without links to here.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))

    code = (
        "import tfmem; from tfmem.report import page; print(tfmem.__file__, len(page.render('{}')))"
    )
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    where, size = subprocess.run([python, "-c", code], **run).stdout.split()
    assert Path(where).is_relative_to(clean)
    assert int(size) > 50_000
    said = subprocess.run([clean / "bin" / "tfmem", "--version"], **run).stdout
    assert said.startswith("tfmem ")
