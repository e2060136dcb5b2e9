"""What the notes name is there, and they keep their form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tfmem"


def test_the_notes_are_short() -> None:
    assert len((ROOT / "BUILD_NOTES.md").read_bytes()) <= 8 * 1024


def test_measured_figures_that_are_named_are_there() -> None:
    texts = [ROOT / "README.md", ROOT / "BUILD_NOTES.md", ROOT / "RESULTS.md"]
    texts += [*(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
    named = set()
    for text in texts:
        named |= set(re.findall(r"docs/measured/[\w-]+\.md", text.read_text(encoding="utf-8")))
    assert named
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_the_files_that_answer_a_newcomer_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| [^|]*\? \| (.*) \|$", text, re.MULTILINE)
    assert len(answers) == 12
    for answer in answers:
        paths = list(paths_in(answer))
        assert paths, f"no file answers: {answer}"
        (folder, *_) = [path for path in paths if path.endswith("/")] or [""]
        for path in paths:
            places = (PACKAGE / path, ROOT / path, PACKAGE / folder / path)
            assert any(place.exists() for place in places), f"CONTRIBUTING.md: there is no {path}"


def test_the_files_that_the_notes_name_are_there() -> None:
    """But for other projects' own, which stand in the first cell of a row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rest = text.partition("## What this house took")[2]
    assert rest
    for path in paths_in(re.sub(r"^\| [^|]* \|", "", rest, flags=re.MULTILINE)):
        places = (PACKAGE / path, ROOT / path)
        assert any(place.exists() for place in places), f"CONTRIBUTING.md: there is no {path}"


def paths_in(text: str) -> Iterator[str]:
    return (found for found in re.findall(r"`([^`\s]+)`", text) if found.endswith((".py", "/")))


def test_the_index_of_decisions_lists_each_with_its_title_and_status() -> None:
    folder = ROOT / "docs" / "decisions"
    written = {}
    for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.md")):
        title, _, status = path.read_text(encoding="utf-8").splitlines()[:3]
        assert title.startswith(f"# {path.name[:4]} "), f"{path.name} begins with {title!r}"
        assert re.fullmatch(r"Status: \d{4}-\d\d-\d\d, \w.*\.", status), f"{path.name}: {status}"
        written[path.name] = title[7:], status.removeprefix("Status: ").removesuffix(".")
    index = (folder / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+?)\) \| (.*?) \| (.*) \|$", index, re.MULTILINE)
    assert {name: (title, status) for _, name, title, status in rows} == written
    assert [number for number, *_ in rows] == [name[:4] for name in written]
