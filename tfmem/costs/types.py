"""What a step costs: seconds and scratch of each node, and the speed of the link to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tfmem.graph.bodies import Body

GRAIN = 256
"""The allocator rounds each request up to a multiple of so many bytes."""

WALLS = 3
"""Grains of the buffers that keep a free chunk apart from what lies beside it."""

HOLE = 2
"""Grains at the beginning of the largest free chunk, before what is kept apart in it: a wall, and
room to make the others."""

HANDLE_BYTES = 64
"""Bytes of TensorFlow's own: a scalar of type variant, which refers to a list or an optional."""

Requests = tuple[tuple[int, int], ...]
"""What is asked of an allocator, in order: (number of a buffer, bytes); 0 or `SWITCH` ends it."""

SWITCH = -1
"""In the place of bytes: a variable of the caller adopts the buffer, and gives its own back."""


Place = tuple[str, int, int]
"""A buffer: a node, its output or its stash behind these, and the part of it."""


class Asked(NamedTuple):
    """What the functions that a node runs ask of an allocator, in order.

    Attributes:
      events: the requests. What was there before is not asked for, and may end.
      made: (number, output, part) of each buffer that is the node's output afterwards, or the part
        of a stash, which count behind its outputs.
      given: (number, node, output, part, bytes) of each buffer that was there before and may end:
        it does if nobody else needs it.
      stays: bytes of each constant of theirs, which is made in the first step and is there from
        then on.
      is_exact: whether parts of the node's stashes that are not in `made` are not there.
    """

    events: Requests
    made: tuple[tuple[int, int, int], ...] = ()
    given: tuple[tuple[int, str, int, int, int], ...] = ()
    stays: tuple[int, ...] = ()
    is_exact: bool = False


@dataclass(frozen=True)
class Feed:
    """What another thread makes the next step's arguments from, in the device's memory meanwhile.

    Attributes:
      rows: bytes of a row of each argument, and how many a batch has.
      kept: how many batches of rows pipelines keep, such as one that shuffles them.
      taken: bytes of each part of a batch that the step takes itself; the next one is made then.
    """

    rows: Requests = ()
    kept: int = 0
    taken: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lying:
    """Where a large argument of the first step lies in a device's memory.

    Of free chunks of a size the one of the lowest address is taken, and what was an argument is
    free once the caller has let go of it.

    Attributes:
      name: of its node.
      above: how many of the free chunks have higher addresses.
      nbytes: of its chunk at least.
      most: bytes of its chunk at most: what follows begins there; 0 if nothing tells.
      is_beside: whether it begins where the one before it ends, if that has the most.
    """

    name: str
    above: int
    nbytes: int
    most: int
    is_beside: bool


class Home(NamedTuple):
    """Where a variable lies until it is placed on a host: a chunk of a device's memory."""

    name: str
    nbytes: int


Block = tuple[int | Home, ...]
"""What lies side by side in a device's memory: free chunks, by their numbers, and variables."""


@dataclass(frozen=True)
class Costs:
    """Prices of a graph's nodes on one device.

    Attributes:
      seconds: time each node runs, by name; absent means none.
      workspace: bytes a node's kernel holds only while it runs, by name; absent means none.
      to_host: bytes a second from the device to the host.
      from_host: bytes a second back.
      latency: seconds each copy takes before its first byte.
      contention: part of the time of copies and of the host's nodes for which the device's own
        nodes stand still, because they share cores.
      duplex: bytes that cross in a second when copies go both ways at once, over those of one way:
        from 1 (they share the link) to 2 (each way is a link of its own).
      granularity: every buffer takes a multiple of this many bytes on the device.
      requests: what the functions that a node runs ask of the allocator, by the node's name; what
        that is above the node's outputs is its workspace, below nothing where they are less.
      host_seconds: time each node runs if it is on the host; absent means as long as on the device.
      buffers: of nodes whose workspace is several buffers, the bytes of each in the order in which
        they are asked for, with a 0 where the outputs are.
      by_kernels: whether the device's own kernels copy, so that what comes from the host has its
        buffer as a plan has the copy begin.
      copied: bytes of each argument in the memory of a GPU's host that a step has a copy of.
      fed: what another thread makes arguments from; None if none does.
      lying: where large arguments lie, by address; of others nothing is known.
      blocks: what lies beside variables that may be placed, as far as that is told.
      lanes: how many nodes the executor runs at once at most, where nothing orders them.
      choices: among how many functions a node chooses, by its name; `requests` has what that asks
        for which takes most.
      once: names of the nodes that call one function once, as branches do and loops do not.
      unordered: names of the nodes whose kernels ask for their outputs in any order.
      asking: finds out what the functions of a node, by its name, ask for if somebody else holds
        some of what `requests` says that they alone are given: (node, output, part) of each; and
        what the one of a number asks for, where the node chooses.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, int] = field(default_factory=dict)
    to_host: float = 1e9
    from_host: float = 1e9
    latency: float = 1e-4
    contention: float = 0.0
    duplex: float = 2.0
    granularity: int = GRAIN
    requests: Mapping[str, Asked] = field(default_factory=dict)
    host_seconds: Mapping[str, float] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_kernels: bool = False
    copied: tuple[int, ...] = ()
    fed: Feed | None = None
    lying: tuple[Lying, ...] = ()
    blocks: tuple[Block, ...] = ()
    lanes: int = 1
    choices: Mapping[str, int] = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    unordered: frozenset[str] = frozenset()
    asking: Callable[[str, frozenset[Place], int | None], Asked] | None = field(
        default=None, compare=False
    )

    @cached_property
    def kernel_buffers(self) -> Mapping[str, tuple[int, ...]]:
        """What `held_by` says of each node, as allocated; absent means none."""
        names = self.workspace.keys() | self.buffers.keys()
        return {name: tuple(map(self.allocated, held_by(self, name))) for name in names}

    def seconds_on_host(self, name: str) -> float:
        """Time that a node runs if it is on the host."""
        return self.host_seconds.get(name, self.seconds.get(name, 0.0))

    def allocated(self, nbytes: int) -> int:
        """Bytes a buffer of `nbytes` takes on the device."""
        return -(-nbytes // self.granularity) * self.granularity


def held_by(known: Costs | Body, name: str) -> tuple[int, ...]:
    """Bytes of the buffers that a node's kernel holds, with a 0 where outputs are made."""
    return known.buffers.get(name) or (known.workspace.get(name, 0),)


@dataclass(frozen=True)
class Link:
    """Copies between a device and its host; the fields are those of `Costs`."""

    to_host: float
    from_host: float
    latency: float
    contention: float
    duplex: float = 2.0


@dataclass(frozen=True)
class Copies:
    """Which form of copy is the faster one, where a device has both (see `passes.transfer`)."""

    on_device: bool


@dataclass(frozen=True)
class Rates:
    """How fast a device computes.

    Attributes:
      flops: floating-point operations a second.
      nbytes: bytes read or written a second.
      start: seconds each node takes at least.
    """

    flops: float
    nbytes: float
    start: float


@dataclass(frozen=True)
class Measured:
    """What nodes took in traced steps, by name: seconds, and bytes held only while they ran.

    `workspace` is None where the allocator does not tell, else it names the nodes that held any;
    `host_seconds` are of the host, the others of the device. Of a trace the host's are those of
    every node, of whose kernel on a GPU it is the launch.
    """

    seconds: Mapping[str, float]
    workspace: Mapping[str, int] | None = None
    host_seconds: Mapping[str, float] = field(default_factory=dict)
