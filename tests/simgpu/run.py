"""Runs a Python program with the simulated GPU in the place of a real one.

    python -m tests.simgpu.run train.py ...
    python -m tests.simgpu.run -m models.bench gpu ...

What the variables `SIMGPU_...` say goes before what is usual (README.md). What tfmem learns is kept
in a folder of its own, which is deleted.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.simgpu.build import CannotBuildError
from tests.simgpu.device import Capabilities, environment

_KEEP = "from tests.simgpu.device import keep_probes; keep_probes({!r})"


def learn(known: Capabilities, variables: Mapping[str, str]) -> None:
    """Lets tfmem know what a device is capable of, in the folder that the variables name."""
    code = _KEEP.format(dataclasses.asdict(known))
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, check=True)


def main(arguments: list[str]) -> int:
    """Runs it; the exit status is the program's."""
    if not arguments:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="tfmem-simgpu-") as folder:
        try:
            found = environment(Path(folder))
        except CannotBuildError as error:
            sys.exit(f"no simulated GPU: {error}")
        variables = {**os.environ, **found, **_given()}
        learn(_capabilities(variables), variables)
        return subprocess.run([sys.executable, *arguments], env=variables, check=False).returncode


def _given() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SIMGPU_")}


def _capabilities(variables: dict[str, str]) -> Capabilities:
    """What the variables say."""
    names = Capabilities().variables
    fields = [field.name for field in dataclasses.fields(Capabilities)]
    return Capabilities(
        **{field: float(variables[name]) for field, name in zip(fields, names, strict=True)}
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
