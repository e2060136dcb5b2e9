"""Bytes and counts, as people write and read them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def parse_bytes(text: str) -> int:
    """Bytes from text such as "600MB" or "1.5 GiB".

    Raises:
      ValueError: the text is no such size.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size in bytes; write it as 600MB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def show_bytes(nbytes: int | None) -> str:
    """Bytes in MB (10^6); "-" for None."""
    return "-" if nbytes is None else f"{nbytes / 1e6:,.1f} MB"


def show_count(count: float | None) -> str:
    """A count with its magnitude: 12.3 M; "-" for None."""
    if count is None:
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:g}"


def show_seconds(seconds: float | None) -> str:
    """Seconds to three digits; "-" for None."""
    return "-" if seconds is None else f"{seconds:.3g} s"
