"""Which orders are looked at beside one another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tfmem.planning.candidates import COMPARED, Candidates, _faster


@dataclass
class Known:
    """Candidates whose peak and seconds under each of the limits are known."""

    peak_bytes: int
    seconds: Mapping[int, float]

    @property
    def unlimited(self) -> Any:
        return SimpleNamespace(peak_bytes=self.peak_bytes)

    def limit(self, number: int) -> int:
        return number

    def seconds_within(self, limit: int) -> float:
        return self.seconds[limit]


def seconds(*each: float) -> Mapping[int, float]:
    return dict(zip(COMPARED, each, strict=True))


@pytest.mark.parametrize(
    ("little", "shrinking", "expected"),
    [
        # An unrolled LSTM with its weights on the host: 28 MB in 1.1 s, or less at all costs.
        ((math.inf, math.inf, math.inf, 1.1), (math.inf, math.inf, 5.6, 4.8), ["much", "little"]),
        ((math.inf, math.inf, math.inf, 1.1), (math.inf, math.inf, 5.6, 1.15), ["much"]),
        ((math.inf, 1.3, 1.2, 1.1), (math.inf, 1.5, 1.4, 1.3), ["little"]),
        ((math.inf,) * 4, (math.inf,) * 4, ["little"]),
    ],
)
def test_an_order_that_takes_little_by_itself_is_looked_at_beside_one_that_can_be_made_smaller(
    little: tuple[float, ...], shrinking: tuple[float, ...], expected: list[str]
) -> None:
    found = {"little": Known(28, seconds(*little)), "much": Known(107, seconds(*shrinking))}
    made: list[Candidates] = list(found.values())  # type: ignore[arg-type]
    chosen = _faster(made)
    assert [name for one in chosen for name, known in found.items() if one is known] == expected
