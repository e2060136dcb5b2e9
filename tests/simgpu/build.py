"""Builds the simulated GPU, once for each TensorFlow, compiler and source.

    python -m tests.simgpu.build

prints the path of the library, which stays in the user's cache (`$XDG_CACHE_HOME`, by default
~/.cache).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path

SOURCE = Path(__file__).parent / "source"

TENSORFLOW = "2.21"
"""Its C++ interface is private, and another one in each version."""

FLAGS = (
    "-O2", "-fPIC", "-std=c++17", "-Wall", "-Wno-sign-compare", "-Wno-deprecated-declarations",
    "-Wno-interference-size", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64",
)  # fmt: skip
"""The last two as TensorFlow's wheel was built: else its classes have another layout."""

LIBRARIES = ("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2")


class CannotBuildError(Exception):
    """There is no simulated GPU here; the message says why."""


def library() -> Path:
    """The library, which is built if it was not yet.

    Raises:
      CannotBuildError: this is not Linux on x86-64, TensorFlow is not the one that it is for, or
        there is no g++, or it ended with an error.
    """
    compiler = _compiler()
    version = metadata.version("tensorflow")
    if version.rsplit(".", 1)[0] != TENSORFLOW:
        raise CannotBuildError(f"it is for TensorFlow {TENSORFLOW}, and this is {version}")
    folder = _cache() / f"{version}-{_digest(compiler)}"
    found = folder / "simgpu.so"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.exists():
                _build(compiler, found)
    return found


def _compiler() -> str:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CannotBuildError(f"it is for Linux on x86-64, and this is {platform.platform()}")
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise CannotBuildError("there is no g++; install it, or name another one by CXX")
    return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfmem-simgpu"


def _digest(compiler: str) -> str:
    """Of what the library is made with and from."""
    said = subprocess.run([compiler, "--version"], check=True, capture_output=True).stdout
    found = hashlib.sha256(said + repr(FLAGS).encode() + str(_tensorflow()).encode())
    for file in sorted(SOURCE.iterdir()):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _tensorflow() -> Path:
    spec = util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuildError("there is no TensorFlow")
    return Path(spec.submodule_search_locations[0])


def _build(compiler: str, library: Path) -> None:
    """Compiles all files as one: TensorFlow's headers take five seconds each time they are read."""
    tensorflow = _tensorflow()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        source, made = Path(folder, "simgpu.cc"), f"{folder}/simgpu.so"
        files = sorted(SOURCE.glob("*.cc"))
        source.write_text("".join(f'#include "{file}"\n' for file in files))
        where = ("-isystem", str(tensorflow / "include"), f"-L{tensorflow}")
        runs = (f"-Wl,-rpath,{tensorflow}", *LIBRARIES)
        _run((compiler, *FLAGS, "-shared", "-o", made, str(source), *where, *runs))
        os.replace(made, library)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(
            f"{' '.join(command[:1])} ended with an error: {done.stderr[-2000:]}"
        )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{library()}\n")
    except CannotBuildError as error:
        sys.exit(f"no simulated GPU: {error}")
