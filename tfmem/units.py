"""Amounts of memory as text."""

from __future__ import annotations

import numbers
import re

from tfmem.errors import Error

_UNITS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(amount: float | str, what: str = "budget") -> int:
    """Bytes from a whole number or from text such as ``"6GiB"``, ``"800MB"``, ``"1.5 GiB"``.

    GiB is 2**30 bytes, GB is 10**9. Whole numbers of other types are taken, too, such as ``6e9``
    and ``numpy.int64``.

    Raises:
      tfmem.Error: the text is no amount, the number is not whole, or the amount is not positive.
    """
    if isinstance(amount, str):
        nbytes = _from_text(amount, what)
    elif isinstance(amount, numbers.Real) and not isinstance(amount, bool) and amount % 1 == 0:
        nbytes = int(amount)
    else:
        raise Error(f"{what}={amount!r}: pass an int (bytes) or text such as '6GiB' or '800MB'")
    if nbytes <= 0:
        raise Error(f"{what}={amount!r}: must be more than zero bytes")
    return nbytes


def _from_text(text: str, what: str) -> int:
    match = _AMOUNT.fullmatch(text)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise Error(
            f"{what}={text!r} is no amount of memory; write a number and one of "
            "B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
        )
    return int(float(match[1]) * units[match[2].lower()])


def format_bytes(nbytes: float) -> str:
    """Bytes for people: ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"
