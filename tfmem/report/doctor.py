"""What this machine is, as tfmem sees it: versions, devices, limits, allocators, a GPU's link."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shutil
from collections.abc import Mapping
from typing import Any

import tfmem
from tfmem.costs import store
from tfmem.errors import Error
from tfmem.functions import pricing
from tfmem.graph import device_names
from tfmem.runtime import devices, host, memory
from tfmem.simulation import allocator
from tfmem.units import format_bytes

TESTED = {
    "3.10": ("2.16", "2.21"),
    "3.11": ("2.16", "2.21"),
    "3.12": ("2.19", "2.21"),
    "3.13": ("2.20", "2.21"),
}
"""The oldest and the newest TensorFlow that the tests pass with (docs/measured/versions.md), for
each Python; pyproject.toml says the same."""

_PACKAGES = ("tensorflow", "keras", "tf-keras", "numpy")


def examine() -> dict[str, Any]:
    """Facts about the machine, plain data; `advice` says what could be better.

    Devices, and a GPU's link to the host, are probed, some seconds each the first time.
    """
    scarce = devices.scarce()
    facts: dict[str, Any] = {
        "versions": {
            "python": platform.python_version(),
            "tfmem": tfmem.__version__,
            **{name: _version(name) for name in _PACKAGES},
            "tensorflow": store.version_of("tensorflow") or None,  # of any package that brings it
        },
        "devices": [_device(name) for name in devices.names()],
        "scarce": scarce,
        "memory_free_bytes": host.free_bytes(devices.full_name("CPU:0")),
        "link": _link(scarce),
        "cache": _cache(),
        "is_compiled": allocator.IS_COMPILED,
    }
    facts["advice"] = _advice(facts)
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device(name: str) -> dict[str, Any]:
    used: int | None = None
    with contextlib.suppress(Error):  # it keeps no statistics
        used, _ = memory.memory_info(name)
    rates = pricing.rates_of(name) if device_names.is_local(name) else None
    return {
        "name": name,
        "limit_bytes": memory.device_limit(name) if device_names.is_local(name) else None,
        "keeps_statistics": used is not None,
        "used_bytes": used,
        "gflops": rates and rates.flops / 1e9,
        "gigabytes_per_second": rates and rates.nbytes / 1e9,
    }


def _link(device: str) -> dict[str, Any] | None:
    if "/device:CPU:" in device:
        return None
    link = pricing.link_of(device, devices.full_name("CPU:0"))
    if link is None:
        return None
    return {
        "to_host_gigabytes_per_second": link.to_host / 1e9,
        "from_host_gigabytes_per_second": link.from_host / 1e9,
        "latency_seconds": link.latency,
    }


def _cache() -> dict[str, Any]:
    files = store.files()
    folder = store.root()
    free = shutil.disk_usage(folder).free if folder and folder.exists() else None
    return {
        "folder": str(folder) if folder else None,
        "files": len(files),
        "bytes": store.nbytes_of(files),
        "disk_free_bytes": free,
    }


def _advice(facts: dict[str, Any]) -> list[str]:
    advice = _untested(facts["versions"])
    scarce = next(one for one in facts["devices"] if one["name"] == facts["scarce"])
    if not scarce["keeps_statistics"]:
        advice.append(
            f"{scarce['name']} keeps no statistics, so peaks are predicted only: set "
            "TF_CPU_ALLOCATOR_USE_BFC=true before TensorFlow is imported"
        )
    if "/device:CPU:" in scarce["name"]:
        advice.append(
            "there is no GPU, so nothing can be swapped or placed on a host but within "
            "tfmem.host_process()"
        )
    if facts["cache"]["folder"] is None:
        advice.append(f"plans are not kept on disk, since {store.DIRECTORY} is empty")
    if not facts["is_compiled"]:
        advice.append(
            "plans take up to twice as long to find, for there was no C compiler when tfmem was "
            "installed: `pip install --force-reinstall --no-deps --no-cache-dir tfmem` with one"
        )
    return advice


def _untested(versions: Mapping[str, str | None]) -> list[str]:
    """A warning if Python or TensorFlow is outside the range that is tested."""
    python, tensorflow = versions["python"], versions["tensorflow"]
    name = ".".join((python or "").split(".")[:2])
    if name not in TESTED:
        return [f"tfmem is tested with Python {', '.join(TESTED)}, not with {python}"]
    oldest, newest = TESTED[name]
    if tensorflow is None or _minor(oldest) <= _minor(tensorflow) <= _minor(newest):
        return []
    return [
        f"with Python {name} tfmem is tested on TensorFlow {oldest} to {newest}, not on "
        f"{tensorflow}, whose private parts may be others"
    ]


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def text(facts: dict[str, Any]) -> str:
    """The facts for people."""
    lines = [f"{name:<12} {found or 'not installed'}" for name, found in facts["versions"].items()]
    if facts["memory_free_bytes"]:
        lines.append(f"{'memory':<12} {format_bytes(facts['memory_free_bytes'])} free")
    for one in facts["devices"]:
        limit = format_bytes(one["limit_bytes"]) if one["limit_bytes"] else "no limit"
        has_used = one["keeps_statistics"]
        used = f"{format_bytes(one['used_bytes'])} used" if has_used else "no statistics"
        lines.append(f"{one['name']}: {limit}, {used}")
        if one["gflops"]:
            lines.append(
                f"{'':<12} {one['gflops']:.0f} GFLOP/s, {one['gigabytes_per_second']:.1f} GB/s"
            )
    if link := facts["link"]:
        lines.append(
            f"{'link':<12} {link['to_host_gigabytes_per_second']:.1f} GB/s to the host, "
            f"{link['from_host_gigabytes_per_second']:.1f} GB/s back, "
            f"{1e6 * link['latency_seconds']:.0f} us latency"
        )
    cache = facts["cache"]
    lines.append(
        f"{'cache':<12} {cache['folder'] or 'none'}: {cache['files']} files, "
        f"{format_bytes(cache['bytes'])}"
    )
    return "\n".join([*lines, *(f"advice: {one}" for one in facts["advice"])])
