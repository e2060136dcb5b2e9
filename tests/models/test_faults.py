"""What breaks beside tfmem, a few times each; `python -m models.bench.faults` does it often."""

from __future__ import annotations

from models.bench.faults_files import files


def test_damaged_files_are_told_and_not_obeyed() -> None:
    for kind, found in files(150, seed=1).items():
        assert found["damaged"] == 25, kind
        assert (found["obeyed"], found["not told"], found["bare"]) == (0, 0, 0), kind
