"""Small files kept in the user's cache: plans, profiles."""

from __future__ import annotations

import logging
import os
import sys
from importlib import metadata
from pathlib import Path

import platformdirs

_log = logging.getLogger("tfmem")

DIRECTORY = "TFMEM_CACHE_DIR"
"""Environment variable that names another directory than the user's cache; empty keeps nothing."""


def root() -> Path | None:
    """The folder of all files, there or not; None if the user wants nothing kept."""
    named = os.environ.get(DIRECTORY)
    if named == "":
        return None
    return Path(named) if named else Path(platformdirs.user_cache_dir("tfmem"))


def files() -> list[Path]:
    """Every file kept."""
    folder = root()
    return sorted(folder.glob("*/*.json")) if folder else []


def path_of(kind: str, key: str) -> Path | None:
    """The file of a kind with a key, there or not; None if the user wants nothing kept."""
    folder = root()
    return folder / kind / f"{key}.json" if folder else None


def save(kind: str, key: str, text: str) -> None:
    """Writes a file whole or not at all; a directory that cannot be written is only reported."""
    path = path_of(kind, key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.warning(
            "%s cannot be kept (%s); name a directory in %s, or set it empty",
            kind,
            error,
            DIRECTORY,
        )


def version_of(package: str) -> str:
    """The version of a package that is loaded, or else installed; "" if it is neither."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
