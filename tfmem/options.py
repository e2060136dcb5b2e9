"""The keyword arguments of `tfmem.optimize`, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfmem.errors import Error
from tfmem.planning.request import TECHNIQUES, Bounds
from tfmem.planning.strategy import Strategy
from tfmem.units import parse_bytes

PROFILES = ("auto", "static", "measured")
"""Where costs may come from."""


@dataclass(frozen=True, kw_only=True)
class Options(Bounds):
    """What `tfmem.optimize` was asked for; see there."""

    devices: tuple[str | None, ...] = (None,)
    hosts: tuple[str | None, ...] = (None,)
    strategy: Strategy | None = None
    profile: str = "auto"
    watch: bool = True


def checked_options(
    *,
    budget: float | str | None = None,
    device: str | Sequence[str] | None = None,
    host: str | Sequence[str] | None = None,
    techniques: Iterable[str] | None = None,
    max_slowdown: float | None = None,
    strategy: Strategy | None = None,
    profile: str = "auto",
    watch: bool = True,
) -> Options:
    """The options, in one form whichever way they were written.

    Raises:
      tfmem.Error: one of them cannot be meant, whatever the function and the machine are.
    """
    devices, hosts = _checked_devices(device, host)
    return Options(
        budget=None if budget is None else parse_bytes(budget),
        devices=devices,
        hosts=hosts,
        techniques=_checked_techniques(techniques),
        max_slowdown=_checked_slowdown(max_slowdown),
        strategy=_checked_strategy(strategy),
        profile=_checked_profile(profile, len(devices)),
        watch=_checked_watch(watch),
    )


def _checked_devices(
    device: str | Sequence[str] | None, host: str | Sequence[str] | None
) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """Scarce devices, and the host of each."""
    devices = (device,) if device is None or isinstance(device, str) else tuple(device)
    hosts = (host,) * len(devices) if host is None or isinstance(host, str) else tuple(host)
    if not devices:
        raise Error("device=[] names no device; leave it out for the one that is there")
    if len(hosts) != len(devices):
        raise Error(
            f"host={list(hosts)} has {len(hosts)} devices where device={list(devices)} has "
            f"{len(devices)}; name a host for each, or one for all"
        )
    if len(set(devices)) != len(devices):
        raise Error(f"device={list(devices)}: a device comes twice; name each once")
    return devices, hosts


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


def _checked_profile(profile: str, devices: int) -> str:
    if profile == "measured" and devices > 1:
        raise Error("profile='measured' traces the steps of one device; use 'auto' for several")
    if profile not in PROFILES:
        raise Error(f"profile={profile!r}: use one of {', '.join(PROFILES)}")
    return profile


def _checked_watch(watch: Any) -> bool:
    if not isinstance(watch, bool):
        raise Error(f"watch={watch!r}: pass True or False")
    return watch
