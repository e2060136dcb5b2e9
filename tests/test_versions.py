"""The versions that are tested, which stand in three places, and the table of their runs."""

from __future__ import annotations

import re

import pytest

from tests import versions
from tfmem.report import doctor


def test_the_project_allows_what_the_doctor_calls_tested() -> None:
    project = (versions.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert tuple(doctor.TESTED) == versions.PYTHONS
    assert f'requires-python = ">={versions.PYTHONS[0]},<{after(versions.PYTHONS[-1])}"' in project
    oldest, newest = versions.TENSORFLOWS[0], after(versions.TENSORFLOWS[-1])
    assert f'"tf-keras>={oldest},<{newest}"' in project

    # One line of bounds for each of two groups of Pythons; wheels say where the newest one begins.
    stated = re.findall(r'^    "tensorflow>=(.+),<(.+); python_version(.+)"', project, re.MULTILINE)
    assert stated == [
        (doctor.TESTED["3.10"][0], newest, "<'3.12'"),
        (doctor.TESTED["3.12"][0], newest, ">='3.12'"),
    ]
    assert doctor.TESTED["3.11"] == doctor.TESTED["3.10"]
    assert {last for _, last in doctor.TESTED.values()} == {versions.TENSORFLOWS[-1]}


def after(version: str) -> str:
    major, minor = version.split(".")
    return f"{major}.{int(minor) + 1}"


@pytest.mark.parametrize(
    ("python", "tensorflow", "said"),
    [
        ("3.10.1", "2.16.2", ""),
        ("3.13.0", "2.21.0", ""),
        ("3.11.7", None, ""),
        ("3.9.1", "2.16.2", "not with 3.9.1"),
        ("3.14.0", "2.21.0", "not with 3.14.0"),
        ("3.12.1", "2.18.0", "TensorFlow 2.19 to 2.21, not on 2.18.0"),
        ("3.10.1", "2.22.0-rc0", "not on 2.22.0-rc0"),
    ],
)
def test_the_doctor_warns_of_other_versions(python: str, tensorflow: str | None, said: str) -> None:
    advice = doctor._untested({"python": python, "tensorflow": tensorflow})
    assert len(advice) == bool(said)
    assert said in "".join(advice)


def test_the_table_has_a_row_for_what_ran_and_for_what_could_not() -> None:
    ran = {
        "combination": "3.11:2.16",
        "date": "2026-11-22",
        "revision": "abc",
        **{"python": "3.11.7", "tensorflow": "2.16.2", "keras": "3.1", "numpy": "1.26"},
        **{"passed": 3, "failed": 1, "skipped": 0, "seconds": 9, "failures": ["tests.test_a::b"]},
    }
    could_not = {
        "combination": "3.13:2.16",
        "date": "2026-11-23",
        "revision": "abd",
        "reason": "No matching distribution",
    }
    text = versions.page([ran, could_not])
    assert "2026-11-23" in text.split("|")[0]
    assert "| 3.11.7 | 2.16.2 | 3.1 |  | 1.26 | 3 | 1 | 0 | 9 | 2026-11-22 | abc |" in text
    assert "| 3.13 | 2.16 |  |  |  | No matching distribution |" in text
    assert text.endswith("- 3.11:2.16: `tests.test_a::b`\n")
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1
