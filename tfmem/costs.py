"""What a step costs: seconds and scratch of each node, and the speed of the link to the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfmem.ir import Graph

GRANULARITY = 256
"""TensorFlow's BFC allocator rounds each allocation up to a multiple of this many bytes."""


@dataclass(frozen=True)
class Costs:
    """Prices of a graph's nodes on one device.

    Attributes:
      seconds: time each node runs, by name; absent means none.
      workspace: bytes a node's kernel holds only while it runs, by name; absent means none.
      to_host: bytes a second from the device to the host.
      from_host: bytes a second back.
      latency: seconds each copy takes before its first byte.
      granularity: every buffer takes a multiple of this many bytes on the device.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, int] = field(default_factory=dict)
    to_host: float = 1e9
    from_host: float = 1e9
    latency: float = 1e-4
    granularity: int = GRANULARITY

    def allocated(self, nbytes: int) -> int:
        """Bytes a buffer of `nbytes` takes on the device."""
        return -(-nbytes // self.granularity) * self.granularity


_RATES = {"GPU": (1e13, 1e12, 5e-6, 1.2e10, 1e-5), "CPU": (5e10, 8e9, 2e-6, 8e8, 3e-4)}
"""By kind of device: flops a second, bytes a second, seconds to start a node, bytes a second to and
from the host (pinned memory over PCIe; gRPC over loopback), seconds to start a copy."""


def static_costs(
    graph: Graph,
    *,
    flops: Mapping[str, float],
    bodies: Mapping[str, tuple[Graph, ...]] | None = None,
    device: str,
) -> Costs:
    """Costs from sizes alone, with the rates of a usual device of its kind.

    Args:
      graph: what is priced.
      flops: floating-point operations of the nodes that have many; the others move bytes only.
      bodies: function bodies of While, If and Case nodes; the largest is the node's workspace.
      device: full name of the device.
    """
    kind = "GPU" if "GPU" in device else "CPU"
    flop_rate, byte_rate, start, link, latency = _RATES[kind]
    seconds = {}
    for node in graph.nodes:
        if node.is_input:
            continue
        moved = sum(node.nbytes) + sum(map(graph.nbytes, node.inputs))
        seconds[node.name] = start + max(moved / byte_rate, flops.get(node.name, 0.0) / flop_rate)
    return Costs(seconds, {}, link, link, latency)
