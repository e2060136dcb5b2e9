"""What TensorFlow's profiler wrote: seconds of nodes, bytes that their kernels held.

The executor reports every kernel it runs as an event "node:op"; what a GPU runs for a node stands
in the plane of that GPU, with the same text beside each of its kernels. Allocators report what they
hand out and take back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfmem.costs.types import Measured
from tfmem.graph import device_names

_ASKED, _GIVEN_BACK = "MemoryAllocation", "MemoryDeallocation"
"""Events of TensorFlow's BFC allocators."""


def read(folder: Path, device: str) -> Measured:
    """What a traced stretch of time says.

    Args:
      folder: where the profiler wrote.
      device: full name of the device whose memory is asked for.

    Returns:
      Seconds of each node that ran in this process, and what it held on the device.
    """
    planes = list(_planes(folder))
    return Measured(_seconds(planes), _workspace(planes, device))


@dataclass(frozen=True)
class HeapEvent:
    """A chunk that a BFC allocator handed out or took back.

    Attributes:
      is_request: whether it was handed out.
      address: where it begins.
      requested: bytes that were asked for.
      given: bytes of the chunk.
      in_use: bytes of all chunks that are handed out, after this.
      fragmentation: part of the regions' free bytes, after this, that is not in their largest free
        chunk.
      node: the node whose kernel asked for it, as "node:op"; "" where it is given back.
    """

    is_request: bool
    address: int
    requested: int
    given: int
    in_use: int
    fragmentation: float
    node: str


def heap_events(folder: Path, device: str) -> list[HeapEvent]:
    """What the allocator of a device handed out and took back in a traced stretch, in order.

    Args:
      folder: where the profiler wrote, which traced at level 3.
      device: full name of the device.
    """
    found: list[tuple[int, HeapEvent]] = []
    for plane, line, event in _events(_planes(folder)):
        named = plane.event_metadata[event.metadata_id].name
        if named not in (_ASKED, _GIVEN_BACK):
            continue
        facts = _facts(plane, event)
        if _is_allocator_of(facts["allocator_name"], device):
            made = HeapEvent(
                is_request=named == _ASKED,
                address=int(facts["addr"]),
                requested=int(facts["requested_bytes"]),
                given=int(facts["allocation_bytes"]),
                in_use=int(facts["bytes_allocated"]),
                fragmentation=float(facts["fragmentation"]),
                node=str(facts.get("tf_op", "")),
            )
            found.append((line.timestamp_ns * 1000 + event.offset_ps, made))
    return [made for _, made in sorted(found, key=lambda one: one[0])]


def _planes(folder: Path) -> Iterator[Any]:
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        yield from space.planes


def _seconds(planes: Iterable[Any]) -> dict[str, float]:
    """Seconds by node; where a GPU ran kernels for a node, those alone."""
    host: dict[str, float] = {}
    gpu: dict[str, float] = {}
    for plane, _, event in _events(planes):
        is_gpu = "/device:GPU" in plane.name
        found = gpu if is_gpu else host
        named = plane.event_metadata[event.metadata_id].name
        text = _kernel_of(plane, event) if is_gpu else named
        name, _, op = text.partition(":")
        if op and op[0] != ":" and " " not in text:
            found[name] = found.get(name, 0.0) + event.duration_ps * 1e-12
    return {**host, **gpu}


def _events(planes: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Every event, with its plane and its line."""
    return (
        (plane, line, event) for plane in planes for line in plane.lines for event in line.events
    )


def _kernel_of(plane: Any, event: Any) -> str:
    """The node that a GPU's kernel ran for, as "node:op"; "" if none is named."""
    return str(_facts(plane, event).get("tf_op", ""))


def _facts(plane: Any, event: Any) -> dict[str, Any]:
    """What an event says beside its name and times."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else ""
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found


def _workspace(planes: Iterable[Any], device: str) -> dict[str, int] | None:
    """Most bytes that each node held on a device only while it ran; None if no allocator tells.

    That is what its kernel asked for as temporary and gave back before it ended.
    """
    ends: dict[str, int] = {}
    events: list[tuple[int, str, dict[str, Any]]] = []
    for plane, line, event in _events(planes):
        begin = line.timestamp_ns * 1000 + event.offset_ps
        named = plane.event_metadata[event.metadata_id].name
        if named in (_ASKED, _GIVEN_BACK):
            facts = _facts(plane, event)
            if _is_allocator_of(facts["allocator_name"], device):
                events.append((begin, named, facts))
        elif ":" in named:
            ends[named.partition(":")[0]] = begin + event.duration_ps
    if not events:
        return None
    held: dict[int, tuple[str, int, int]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for moment, named, facts in sorted(events, key=lambda one: one[0]):
        if named == _GIVEN_BACK and facts["addr"] in held:
            node, nbytes, begin = held.pop(facts["addr"])
            if moment <= ends.get(node, moment):
                changes.setdefault(node, []).extend(((begin, nbytes), (moment, -nbytes)))
        elif named == _ASKED and facts.get("region_type") == "temp":
            held[facts["addr"]] = facts["tf_op"], int(facts["requested_bytes"]), moment
    return {
        node: max(itertools.accumulate(nbytes for _, nbytes in sorted(found)))
        for node, found in changes.items()
    }


def _is_allocator_of(name: str, device: str) -> bool:
    """Whether a BFC allocator, by its name, is that of a device."""
    if device_names.is_gpu(device):
        return name == f"GPU_{device.rsplit(':', 1)[1]}_bfc"
    return "cpu" in name.lower()
