"""What a step costs: seconds and scratch of each node, and the speed of the link to the host."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from tfmem import devices
from tfmem.allocator import GRAIN, Requests, most_of, requests
from tfmem.bodies import Bodies, Body, inputs_shared
from tfmem.compact import ASSIGN, KEPT, READ, VIEW, compact
from tfmem.ir import Graph, Node
from tfmem.liveness import lifetimes
from tfmem.ops import facts_of
from tfmem.plan import Plan
from tfmem.program import Program, program


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
        that is above the node's outputs is its workspace.
      host_seconds: time each node runs if it is on the host; absent means as long as on the device.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, int] = field(default_factory=dict)
    to_host: float = 1e9
    from_host: float = 1e9
    latency: float = 1e-4
    contention: float = 0.0
    duplex: float = 2.0
    granularity: int = GRAIN
    requests: Mapping[str, Requests] = field(default_factory=dict)
    host_seconds: Mapping[str, float] = field(default_factory=dict)

    def seconds_on_host(self, name: str) -> float:
        """Time that a node runs if it is on the host."""
        return self.host_seconds.get(name, self.seconds.get(name, 0.0))

    def allocated(self, nbytes: int) -> int:
        """Bytes a buffer of `nbytes` takes on the device."""
        return -(-nbytes // self.granularity) * self.granularity


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
    `host_seconds` are of nodes that ran on the host, the others on the device.
    """

    seconds: Mapping[str, float]
    workspace: Mapping[str, int] | None = None
    host_seconds: Mapping[str, float] = field(default_factory=dict)


_RATES = {"GPU": Rates(1e13, 1e12, 5e-6), "CPU": Rates(5e10, 8e9, 2e-6)}
"""Of a usual device of each kind."""

_LINKS = {"GPU": Link(1.2e10, 1.2e10, 1e-5, 0.0), "CPU": Link(1.2e9, 1.2e9, 7e-4, 1.0)}
"""By kind of device: pinned memory over PCIe; gRPC over loopback, on the cores that compute."""


_STILL = (VIEW, READ, ASSIGN, KEPT)
"""Kinds of nodes that move no bytes: they give out a buffer that is there, unless the variable is
in copy-on-read mode."""


def static_costs(
    graph: Graph,
    *,
    flops: Mapping[str, float],
    bodies: Bodies | None = None,
    workspace: Mapping[str, int] | None = None,
    device: str,
    rates: Rates | None = None,
    host_rates: Rates | None = None,
) -> Costs:
    """Costs from sizes.

    Args:
      graph: what is priced.
      flops: floating-point operations of the nodes that have many; the others move bytes only.
      bodies: function bodies of While, If and Case nodes; the largest is the node's workspace.
      workspace: bytes that kernels hold while they run (see `workspace.workspace`).
      device: full name of the device.
      rates: how fast it is; default: a usual device of its kind.
      host_rates: likewise, of the host; a CPU's host is taken to be as fast as the CPU.
    """
    kind = "GPU" if devices.is_gpu(device) else "CPU"
    seconds = _seconds(graph, flops, rates or _RATES[kind])
    on_host = _seconds(graph, flops, host_rates or _RATES["CPU"]) if kind != "CPU" else {}
    made = Costs(seconds, dict(workspace or {}), host_seconds=on_host)
    asked = {}
    for name, functions in (bodies or {}).items():
        if functions and name in graph.by_name:
            caller = graph.by_name[name]
            asked[name] = [
                body_requests(caller, b, body_costs(b, device), Plan()) for b in functions
            ]
    return with_link(with_requests(made, graph, asked), _LINKS[kind])


def _seconds(graph: Graph, flops: Mapping[str, float], rates: Rates) -> dict[str, float]:
    form, seconds = compact(graph), {}
    for number, node in enumerate(graph.nodes):
        if not node.is_input:
            moved, is_still = 0, form.kind[number] in _STILL and not form.is_copy(number)
            if not is_still and not facts_of(node.op).is_shape_only:
                moved = sum(node.nbytes) + sum(map(graph.nbytes, node.inputs))
            busy = max(moved / rates.nbytes, flops.get(node.name, 0.0) / rates.flops)
            seconds[node.name] = rates.start + busy
    return seconds


def with_link(costs: Costs, link: Link) -> Costs:
    """The same costs, but for the speed of the link."""
    return replace(costs, **asdict(link))


def with_measured(costs: Costs, graph: Graph, measured: Measured) -> Costs:
    """Costs with what was measured in the place of what is known from sizes.

    A node that was not measured there takes what its size says times the factor that the measured
    nodes of its op show, or else that of all nodes.

    Args:
      costs: from sizes.
      graph: what is priced.
      measured: of its nodes, on the device and on the host.
    """
    seconds = _corrected(costs.seconds, graph, measured.seconds)
    host_seconds = _corrected(costs.host_seconds, graph, measured.host_seconds)
    workspace = dict(costs.workspace)
    if measured.workspace is not None:
        for name in measured.seconds.keys() & costs.seconds.keys() - costs.requests.keys():
            workspace[name] = measured.workspace.get(name, 0)
    return replace(costs, seconds=seconds, host_seconds=host_seconds, workspace=workspace)


def _corrected(
    guesses: Mapping[str, float], graph: Graph, measured: Mapping[str, float]
) -> dict[str, float]:
    factors: dict[str, list[float]] = {"": [1.0]}
    for node in graph.nodes:
        if node.name in measured and guesses.get(node.name):
            factor = measured[node.name] / guesses[node.name]
            factors.setdefault(node.op, []).append(factor)
            factors[""].append(factor)
    usual = {op: statistics.median(found) for op, found in factors.items()}
    return {
        name: measured.get(name, guess * usual.get(graph.by_name[name].op, usual[""]))
        for name, guess in guesses.items()
    }


def body_costs(body: Body, device: str) -> Costs:
    """Costs, from sizes, of the nodes of a function that a loop or branch runs."""
    return static_costs(
        body.graph,
        flops=body.flops,
        bodies=body.bodies,
        workspace=body.workspace,
        device=device,
    )


def body_requests(caller: Node, body: Body, costs: Costs, plan: Plan) -> Requests:
    """What a planned body asks of the allocator beside its caller's inputs."""
    steps = program(body.graph, plan)
    found = lifetimes(steps, costs.granularity)
    shared = inputs_shared(caller, body, found)
    return requests(found, *scratch(steps, costs), held=shared, kept=shared)


def scratch(steps: Program, costs: Costs) -> tuple[list[int], dict[int, Requests]]:
    """Bytes that each node of an order holds while it runs; what those that run functions ask for.

    The latter by position.
    """
    names = [steps.graph.priced[node] for node in steps.order]
    asked = {i: costs.requests[name] for i, name in enumerate(names) if name in costs.requests}
    return [costs.allocated(costs.workspace.get(name, 0)) for name in names], asked


def with_requests(costs: Costs, graph: Graph, asked: Mapping[str, Sequence[Requests]]) -> Costs:
    """Costs in which callers take what the largest of their bodies asks for."""
    largest = {name: max(bodies, key=most_of) for name, bodies in asked.items()}
    workspace = {
        name: max(0, most_of(one) - sum(map(costs.allocated, graph.by_name[name].nbytes)))
        for name, one in largest.items()
    }
    return replace(
        costs,
        workspace={**costs.workspace, **workspace},
        requests={**costs.requests, **largest},
    )
