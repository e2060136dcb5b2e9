"""What TensorFlow's profiler wrote: seconds of nodes, bytes that their kernels held.

The executor reports every kernel it runs as an event "node:op"; what a GPU runs for a node stands
in the plane of that GPU, with the same text beside each of its kernels. Allocators report what they
hand out and take back.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfmem.bridge.in_place import owner
from tfmem.costs.types import Measured
from tfmem.graph import device_names

_RUN = "ExecutorState::Process"
"""The event of the executor that runs nodes, one after the other."""

_OF_ALLOCATORS = _ASKED, _GIVEN_BACK = "MemoryAllocation", "MemoryDeallocation"
"""Events of TensorFlow's BFC allocators."""


def read(folder: Path, device: str, nodes: Collection[str]) -> Measured:
    """What a traced stretch of time says of the nodes of a function.

    Args:
      folder: where the profiler wrote.
      device: full name of the device whose memory is asked for.
      nodes: names of the nodes. Others may have the same, such as those of a data set's functions,
        which run meanwhile.

    Returns:
      Seconds of each node that ran in this process, of the device and of the host, and what it held
      on the device. A GPU computes while the host launches what comes next: of it its kernels count
      alone, if they were traced.
    """
    events = _without_others(list(_events(_planes(folder))), nodes)
    host, gpu = _seconds(events, is_gpu=False), _seconds(events, is_gpu=True)
    seconds = host
    if device_names.is_gpu(device) and gpu.keys() & nodes:
        seconds = {name: gpu.get(name, 0.0) for name in host.keys() | gpu.keys()}
    return Measured(seconds, _workspace(events, device), host)


class Event(NamedTuple):
    """An event that was traced.

    Attributes:
      plane: what it is traced of: the host, or a GPU.
      line: its thread.
      event: itself, without its name.
      names: what its facts are called.
      run: the number of the executor's run that it belongs to; None outside of all.
    """

    plane: Any
    line: Any
    event: Any
    names: Mapping[int, str]
    run: int | None

    @property
    def name(self) -> str:
        """What it is called: of a node "node:op"."""
        return str(self.plane.event_metadata[self.event.metadata_id].name)

    @property
    def facts(self) -> dict[str, Any]:
        """What it says beside its name and times."""
        return _facts(self.event, self.names)

    @property
    def begin(self) -> int:
        """Picoseconds."""
        return int(self.line.timestamp_ns * 1000 + self.event.offset_ps)


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
    for plane in _planes(folder):
        names = _names(plane)
        kinds = {number: kind.name for number, kind in plane.event_metadata.items()}
        is_request = {n: name == _ASKED for n, name in kinds.items() if name in _OF_ALLOCATORS}
        for line in plane.lines:
            for event in (one for one in line.events if one.metadata_id in is_request):
                facts = _facts(event, names)
                if _is_allocator_of(facts["allocator_name"], device):
                    begin = line.timestamp_ns * 1000 + event.offset_ps
                    made = HeapEvent(
                        is_request=is_request[event.metadata_id],
                        address=int(facts["addr"]),
                        requested=int(facts["requested_bytes"]),
                        given=int(facts["allocation_bytes"]),
                        in_use=int(facts["bytes_allocated"]),
                        fragmentation=float(facts["fragmentation"]),
                        node=str(facts.get("tf_op", "")),
                    )
                    found.append((begin, made))
    return [made for _, made in sorted(found, key=lambda one: one[0])]


def _planes(folder: Path) -> Iterator[Any]:
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        yield from space.planes


def _seconds(events: Iterable[Event], *, is_gpu: bool) -> dict[str, float]:
    """Seconds by node: of kernels of GPUs, or of the executor."""
    found: dict[str, float] = {}
    for one in events:
        if _is_gpu(one.plane) == is_gpu and (
            name := _node_of(_kernel_of(one) if is_gpu else one.name)
        ):
            found[name] = found.get(name, 0.0) + one.event.duration_ps * 1e-12
    return found


def _is_gpu(plane: Any) -> bool:
    return "/device:GPU" in plane.name


def _node_of(text: str) -> str:
    """The node of a text "node:op", or that which it is a part of; "" if it is none such."""
    name, _, op = text.partition(":")
    return owner(name) if op and op[0] != ":" and " " not in text else ""


def _events(planes: Iterable[Any]) -> Iterator[Event]:
    """Every event, in each thread those first that others are within."""
    for plane in planes:
        names = _names(plane)
        for line in plane.lines:
            runs: list[tuple[int | None, int]] = []  # each within the one before it, with its end
            for event in sorted(line.events, key=lambda e: (e.offset_ps, -e.duration_ps)):
                while runs and runs[-1][1] <= event.offset_ps:
                    runs.pop()
                one = Event(plane, line, event, names, runs[-1][0] if runs else None)
                if one.name == _RUN:
                    end = event.offset_ps + event.duration_ps
                    runs.append((one.facts.get("id"), end))
                yield one


def _without_others(events: Sequence[Event], nodes: Collection[str]) -> list[Event]:
    """All but those of runs that run other nodes for the most part, or began before the trace.

    The nodes of the latter are within no run.
    """
    ran: defaultdict[int | None, list[bool]] = defaultdict(list)
    for one in events:
        if (name := _node_of(one.name)) and not _is_gpu(one.plane):
            ran[one.run].append(name in nodes)
    others = {run for run, known in ran.items() if 2 * sum(known) < len(known)}
    return [one for one in events if _is_gpu(one.plane) or one.run not in others]


def _kernel_of(one: Event) -> str:
    """The node that a GPU's kernel ran for, as "node:op"; "" if none is named."""
    return str(one.facts.get("tf_op", ""))


def _names(plane: Any) -> dict[int, str]:
    """What the facts of a plane's events are called, and the texts that they refer to."""
    return {number: kind.name for number, kind in plane.stat_metadata.items()}


def _facts(event: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """What an event says beside its name and times, given the names of its plane."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else ""
        found[names[stat.metadata_id]] = names[stat.ref_value] if kind == "ref_value" else value
    return found


def _workspace(events: Iterable[Event], device: str) -> dict[str, int] | None:
    """Most bytes that each node held on a device only while it ran; None if no allocator tells.

    That is what its kernel asked for as temporary and gave back before it ended.
    """
    ends: dict[str, int] = {}
    requests: list[tuple[int, str, dict[str, Any]]] = []
    for one in events:
        named = one.name
        if named in (_ASKED, _GIVEN_BACK):
            facts = one.facts
            if _is_allocator_of(facts["allocator_name"], device):
                requests.append((one.begin, named, facts))
        elif name := _node_of(named):
            ends[name] = one.begin + one.event.duration_ps
    if not requests:
        return None
    held: dict[int, tuple[str, int, int]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for moment, named, facts in sorted(requests, key=lambda one: one[0]):
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
