"""Small files kept in the user's cache: plans, profiles, probes, lessons. Their folder has a bound.

Several processes may keep and read files at once: a file is there whole or not at all, and one that
another process deletes meanwhile is as if it had never been there. Each says what its content sums
up to, so that one that was damaged, or that lies in another's place, is known as such.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import platformdirs

_log = logging.getLogger("tfmem")

DIRECTORY = "TFMEM_CACHE_DIR"
"""Environment variable that names another directory than the user's cache; empty keeps nothing."""

KINDS = ("plans", "profiles", "probes", "lessons")
"""Folders of files, in the order in which they are given up: a plan is made again by planning, a
measurement only by measuring."""

BOUND = 256 * 2**20
"""Most bytes of all files. Plans have 23 to 124 kB (32 that work on the models had left,
2026-11-22), so thousands fit. Each save looks at all files: 0.13 s for 3,000 of them."""

_ABANDONED = 3600.0
"""Seconds after which a file that is still being written has no writer any more."""

_SEAL = re.compile(r'\{"sum": "([0-9a-f]{64})", ')

_KEY = "[0-9a-f]" * 32
"""Names of files: nothing else that lies in a directory of the user's is listed or deleted."""


def root() -> Path | None:
    """The folder of all files, there or not; None if the user wants nothing kept."""
    named = os.environ.get(DIRECTORY)
    if named == "":
        return None
    return Path(named) if named else Path(platformdirs.user_cache_dir("tfmem"))


def files() -> list[Path]:
    """Every file kept."""
    return [*_found(".json"), *_found(".mark")]


def nbytes_of(paths: Iterable[Path]) -> int:
    """Bytes of files; 0 for those that are gone."""
    return sum(found.st_size for path in paths if (found := _stat(path)))


def path_of(kind: str, key: str) -> Path | None:
    """The file of a kind (of `KINDS`) with a key (32 hexadecimal digits), there or not; None if the
    user wants nothing kept."""
    folder = root()
    return folder / kind / f"{key}.json" if folder else None


def sealed(kind: str, key: str, text: str) -> str:
    """An object of JSON, with one field more that says what all of this sums up to."""
    return f'{{"sum": "{_sum(kind, key, text)}", {text[1:]}'


def check_seal(kind: str, key: str, text: str) -> str:
    """What was sealed.

    Raises:
      ValueError: it is not what was sealed under this kind and key.
    """
    seal = _SEAL.match(text)
    inner = "{" + text[seal.end() :] if seal else ""
    if seal is None or seal[1] != _sum(kind, key, inner):
        raise ValueError("its content is not what it says")
    return inner


def _sum(kind: str, key: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {key} {text}".encode(errors="surrogatepass")).hexdigest()


def save(kind: str, key: str, text: str) -> None:
    """Writes a file whole or not at all, and deletes the oldest others that are above the bound.

    A directory that cannot be written is only reported.
    """
    path, data = path_of(kind, key), text.encode()
    if path is None or len(data) > BOUND:
        return
    try:
        _write(path, data)
    except OSError as error:
        _log.warning(
            "%s cannot be kept (%s); name a directory in %s, or set it empty",
            kind,
            error,
            DIRECTORY,
        )
        return
    _shrink(path)


def mark(kind: str, key: str, text: str) -> None:
    """Keeps a note for as long as something lasts; it is found later only if that did not end.

    A directory that cannot be written keeps none.
    """
    path = path_of(kind, key)
    if path is not None:
        with contextlib.suppress(OSError):
            _write(path.with_suffix(".mark"), sealed(kind, key, text).encode())


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    part = path.with_suffix(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        _delete(part)
        raise


def marked(kind: str, key: str) -> str | None:
    """The note that is there, if any; one that cannot be read is only reported."""
    path = path_of(kind, key)
    if path is None:
        return None
    note = path.with_suffix(".mark")
    try:
        return check_seal(kind, key, note.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("the note in %s is damaged (%s); it is not used, delete it", note, error)
        return None


def unmark(kind: str, key: str) -> None:
    """Deletes a note."""
    path = path_of(kind, key)
    if path is not None:
        _delete(path.with_suffix(".mark"))


def touch(path: Path) -> None:
    """Makes a file the newest, since it was of use."""
    with contextlib.suppress(OSError):  # deleted meanwhile, or another user's
        os.utime(path)


def _shrink(new: Path) -> None:
    """Deletes the oldest files, kind by kind, until the rest is within the bound; never `new`.

    What is being written has another name and is left alone, unless its writer has died.
    """
    found = {path: facts for path in files() if (facts := _stat(path))}
    above = sum(facts.st_size for facts in found.values()) - BOUND
    oldest = sorted((KINDS.index(p.parent.name), found[p].st_mtime_ns, p) for p in found)
    for _, _, path in oldest:
        if above > 0 and path != new and _delete(path):
            above -= found[path].st_size
    for part in _found(".*.part"):
        facts = _stat(part)
        if facts and time.time() - facts.st_mtime > _ABANDONED:
            _delete(part)


def _found(ending: str) -> list[Path]:
    folder = root()
    if folder is None:
        return []
    return [one for kind in KINDS for one in sorted(folder.glob(f"{kind}/{_KEY}{ending}"))]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # deleted meanwhile
        return None


def _delete(path: Path) -> bool:
    """Whether the file is gone: one that is open cannot be deleted everywhere."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def version_of(package: str) -> str:
    """The version of a package that is loaded, or else installed; "" if it is neither."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
