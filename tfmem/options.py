"""The keyword arguments of `tfmem.optimize`, checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfmem.budget import parse_bytes
from tfmem.errors import Error
from tfmem.planning.strategy import TECHNIQUES, Strategy

PROFILES = ("auto", "static", "measured")
"""Where costs may come from."""


@dataclass(frozen=True)
class Options:
    """What `tfmem.optimize` was asked for; see there."""

    budget: int | None = None
    device: str | None = None
    host: str | None = None
    techniques: frozenset[str] = frozenset(TECHNIQUES)
    max_slowdown: float | None = None
    strategy: Strategy | None = None
    profile: str = "auto"


def checked_options(
    *,
    budget: int | str | None,
    device: str | None,
    host: str | None,
    techniques: Iterable[str] | None,
    max_slowdown: float | None,
    strategy: Strategy | None,
    profile: str,
) -> Options:
    """The options, in one form whichever way they were written.

    Raises:
      tfmem.Error: one of them cannot be meant, whatever the function and the machine are.
    """
    return Options(
        budget=None if budget is None else parse_bytes(budget),
        device=device,
        host=host,
        techniques=_checked_techniques(techniques),
        max_slowdown=_checked_slowdown(max_slowdown),
        strategy=_checked_strategy(strategy),
        profile=_checked_profile(profile),
    )


def _checked_techniques(techniques: Iterable[str] | None) -> frozenset[str]:
    if techniques is None:
        return frozenset(TECHNIQUES)
    chosen = frozenset([techniques] if isinstance(techniques, str) else techniques)
    unknown = sorted(map(str, chosen - frozenset(TECHNIQUES)))
    if unknown:
        raise Error(f"techniques={unknown}: unknown; choose from {', '.join(TECHNIQUES)}")
    return chosen


def _checked_slowdown(max_slowdown: float | None) -> float | None:
    if max_slowdown is not None and not max_slowdown >= 1:
        raise Error(f"max_slowdown={max_slowdown!r}: must be a factor of at least 1")
    return max_slowdown


def _checked_strategy(strategy: Any) -> Strategy | None:
    if strategy is not None and not callable(getattr(strategy, "decide", None)):
        raise Error(f"strategy={strategy!r} is no strategy; pass one such as tfmem.TensorFlowMem()")
    return strategy  # type: ignore[no-any-return]


def _checked_profile(profile: str) -> str:
    if profile not in PROFILES:
        raise Error(f"profile={profile!r}: use one of {', '.join(PROFILES)}")
    return profile
