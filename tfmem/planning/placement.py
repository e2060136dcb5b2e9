"""Which variables live on the host, and what runs there beside them.

Terms: a *family* is a set of variables that some op updates together (a weight and its Adam
moments), placed all or none. The *core* of a placement are the ops that touch its variables; they
must run where those live. The *region* is what may go along: light nodes that nothing but the core
and the region needs. Which of the region's nodes do go is a minimum cut: the bytes that cross
between device and host are the capacity, so that a gradient crosses once, where it is smallest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate

from tfmem.costs.types import Costs
from tfmem.graph.cut import Network
from tfmem.graph.ir import VARIABLE, Graph, Node, Value
from tfmem.graph.ops import facts_of
from tfmem.graph.topology import DisjointSets

# Constants; what others do to plans is measured by `python -m models.bench.constants`.

LEAST_PLACED_BYTES = 2**18
"""Bytes. Smaller variables stay on the device: to move them costs more than it frees."""

TRANSFER_BYTES = 2**16
"""What starting one more transfer costs, in bytes that could cross meanwhile. More of it cuts where
fewer, larger values cross."""

PARTS = (0.5, 0.75)
"""Parts of the read variables' bytes that levels between the slots and all of them place. More
levels come nearer to the least that has to leave, each at the price of a search."""

HOST, DEVICE = ("", "host"), ("", "device")
"""The two ends of the network that is cut; no node and no value is named so."""


def placeable_variables(graph: Graph, device: str, min_bytes: int) -> tuple[str, ...]:
    """Variables on the device that can go to the host, in the graph's order.

    A variable can go if every op that takes its handle only reads or updates variables (a loop that
    takes it does more). It goes if a member of its family has at least `min_bytes`, or lives
    elsewhere already.
    """
    variables = [n.name for n in graph.nodes if n.op == VARIABLE]
    chosen: set[str] = set()
    for family in _families(graph, variables):
        members = [graph.by_name[name] for name in family]
        users = {u for n in members for u in graph.consumers.get(Value(n.name), ())}
        goes = any(n.nbytes[0] >= min_bytes or n.device != device for n in members)
        if goes and all(facts_of(graph.by_name[user].op).uses_variable for user in users):
            chosen.update(family)
    return tuple(n for n in variables if n in chosen and graph.by_name[n].device == device)


def _families(graph: Graph, variables: Sequence[str]) -> list[list[str]]:
    """Variables that some op takes together, each set in the order given."""
    number = {name: i for i, name in enumerate(variables)}
    families = DisjointSets(len(variables))
    for variable in variables:
        for name in graph.consumers.get(Value(variable), ()):
            for handle in _handles(graph, graph.by_name[name]):
                if handle in number:
                    families.join(number[variable], number[handle])
    members: dict[int, list[str]] = {}
    for variable in variables:
        members.setdefault(families.find(number[variable]), []).append(variable)
    return list(members.values())


def placement_levels(graph: Graph, device: str) -> list[tuple[str, ...]]:
    """Sets of variables that may live on the host, each a superset of the one before.

    First none; then those of which no node of the device would read anything (an optimizer's slots,
    whose update goes beside them: the cut of ZeRO-Offload, arXiv 2101.06840); then `PARTS` of the
    others, by bytes, those that are read least often; then all.
    """
    movable = placeable_variables(graph, device, LEAST_PLACED_BYTES)
    beside = moved_nodes(graph, movable)
    readers = dict.fromkeys(movable, 0)
    for name, variable in beside.items():
        for value in graph.by_name[name].values:
            users = graph.consumers.get(value, ())
            readers[variable] += sum(user not in beside for user in users)
    families = _families(graph, movable)
    slots = [f for f in families if not any(readers[name] for name in f)]
    others = [f for f in families if any(readers[name] for name in f)]
    others.sort(key=lambda family: max(readers[name] for name in family))
    nbytes = [sum(graph.by_name[name].nbytes[0] for name in family) for family in others]
    parts = [
        [one for one, filled in zip(others, accumulate(nbytes), strict=True) if filled <= most]
        for most in (sum(nbytes) * part for part in PARTS)
    ]
    chosen = ([], slots, *(slots + part for part in parts), families)
    levels = [frozenset(name for family in level for name in family) for level in chosen]
    return [tuple(n for n in movable if n in level) for level in dict.fromkeys(levels)]


def variables_on(graph: Graph, host: str) -> tuple[str, ...]:
    """Variables that live on the host already."""
    return tuple(n.name for n in graph.nodes if n.op == VARIABLE and n.device == host)


def moved_nodes(
    graph: Graph, variables: Iterable[str], costs: Costs | None = None
) -> dict[str, str]:
    """Nodes that run on the host with these variables: {node: the variable that it is beside}.

    Args:
      graph: of the nodes.
      variables: what lives on the host.
      costs: by which the cut takes the fewest seconds of copies and of the region; None for that
        which copies the fewest bytes, wherever the region is faster.
    """
    beside: dict[str, str] = {}
    for variable in variables:
        for name in graph.consumers.get(Value(variable), ()):
            beside.setdefault(name, variable)
    region = _region(graph, beside)
    for group in _components(graph, region, beside):
        for name in _host_side(graph, group, beside, costs):
            region[name] = True
    for node in reversed(graph.nodes):
        if region.get(node.name):
            users = (user for user in graph.successors[node.name] if user in beside)
            if user := next(users, None):  # some are waited for alone, by what stays
                beside[node.name] = beside[user]
    return beside


def _handles(graph: Graph, node: Node) -> list[str]:
    return [v.node for v in node.inputs if graph.by_name[v.node].op == VARIABLE]


def _region(graph: Graph, core: dict[str, str]) -> dict[str, bool]:
    """Light nodes that only the core and the region need: {name: False}, filled by the cut."""
    returned = {value.node for value in graph.outputs}
    region: dict[str, bool] = {}
    for node in reversed(graph.nodes):
        facts = facts_of(node.op)
        users = graph.successors[node.name]
        if (
            facts.is_light
            and node.name not in core
            and node.name not in returned
            and users
            and all(user in core or user in region for user in users)
        ):
            region[node.name] = False
    return region


def _components(graph: Graph, region: dict[str, bool], core: dict[str, str]) -> list[list[str]]:
    """The region, cut into parts that share no value."""
    position = graph.position
    parts = DisjointSets(len(graph))
    for node in graph.nodes:
        for value in node.values:
            readers = [name for name in graph.consumers.get(value, ()) if name in region]
            readers += [node.name] if node.name in region else []
            for other in readers[1:]:
                parts.join(position[readers[0]], position[other])
    groups: dict[int, list[str]] = {}
    for name in sorted(region, key=position.__getitem__):
        groups.setdefault(parts.find(position[name]), []).append(name)
    return list(groups.values())


def _host_side(
    graph: Graph, group: list[str], core: dict[str, str], costs: Costs | None
) -> set[str]:
    """The nodes of one part of the region that go to the host.

    Minimum cut, drawn from the host to the device so that of two equal cuts the one with more nodes
    on the host is taken: those hold no memory of the device.
    """
    inside, network = set(group), Network()
    for name in group:
        if costs is not None:
            network.add(name, DEVICE, _nanoseconds(costs.seconds_on_host(name)))
            network.add(HOST, name, _nanoseconds(costs.seconds.get(name, 0.0)))
        for value in graph.by_name[name].values:
            _add_value(network, graph, value, inside, core, costs)
        for value in dict.fromkeys(graph.by_name[name].inputs):
            if value.node not in inside:
                _add_value(network, graph, value, inside, core, costs)
    on_device = network.target_side(HOST, DEVICE)
    return {name for name in group if name not in on_device}


def _nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


def _add_value(
    network: Network,
    graph: Graph,
    value: Value,
    inside: set[str],
    core: dict[str, str],
    costs: Costs | None,
) -> None:
    """Adds what it costs if a value is made on one side and read on the other.

    A node on the host takes its readers along: nothing of the region goes there and back.
    """
    to_host = to_device = graph.nbytes(value) + TRANSFER_BYTES
    if costs is not None:
        nbytes = graph.nbytes(value)
        to_host = _nanoseconds(costs.latency + nbytes / costs.to_host)
        to_device = _nanoseconds(costs.latency + nbytes / costs.from_host)
    readers = graph.consumers.get(value, ())
    if value.node in core:
        for reader in readers:
            if reader in inside:
                network.add(HOST, ("in", value), to_device)
                network.add(("in", value), reader)
        return
    if value.node not in inside and any(reader in core for reader in readers):
        return
    producer: Hashable = value.node if value.node in inside else DEVICE
    network.add(("out", value), producer, to_host)
    for reader in readers:
        if reader in inside:
            network.add(reader, ("out", value))
            if value.node in inside:
                network.add(value.node, reader)
        elif reader in core:
            network.add(HOST, ("out", value))
