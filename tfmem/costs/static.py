"""Prices from sizes, and what was measured put in their place."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from tfmem.costs.types import Costs, Link, Measured, Rates
from tfmem.graph.compact import KEPT, READ, VIEW
from tfmem.graph.device_names import is_gpu
from tfmem.graph.ir import Graph, Node
from tfmem.graph.ops import facts_of

_RATES = {"GPU": Rates(1e13, 1e12, 5e-6), "CPU": Rates(5e10, 8e9, 2e-6)}
"""Operations and bytes a second, and seconds at least, of a usual device of each kind: an order of
magnitude, for where nothing may be probed (`profile="static"`)."""

_LINKS = {"GPU": Link(1.2e10, 1.2e10, 1e-5, 0.0), "CPU": Link(1.2e9, 1.2e9, 7e-4, 1.0)}
"""By kind of device: pinned memory over PCIe; gRPC over loopback, on the cores that compute."""

_IN_THREADS = 4
"""Outputs from which on a kernel that splits makes each in a thread of its own."""

_STILL = (VIEW, READ, KEPT)
"""Kinds of nodes that move no bytes: they give out a buffer that is there, unless the variable is
in copy-on-read mode."""


def static_costs(
    graph: Graph,
    *,
    flops: Mapping[str, float],
    workspace: Mapping[str, int] | None = None,
    buffers: Mapping[str, tuple[int, ...]] | None = None,
    device: str,
    rates: Rates | None = None,
    host_rates: Rates | None = None,
) -> Costs:
    """Costs from sizes.

    Args:
      graph: what is priced.
      flops: floating-point operations of the nodes that have many; the others move bytes only.
      workspace: bytes that kernels hold while they run (see `workspace.workspace`).
      buffers: of those that hold several buffers, as in `Costs`.
      device: full name of the device.
      rates: how fast it is; default: a usual device of its kind.
      host_rates: likewise, of the host; a CPU's host is taken to be as fast as the CPU.
    """
    kind = "GPU" if is_gpu(device) else "CPU"
    seconds = _seconds(graph, flops, rates or _RATES[kind])
    on_host = _seconds(graph, flops, host_rates or _RATES["CPU"]) if kind != "CPU" else {}
    made = Costs(
        seconds,
        dict(workspace or {}),
        host_seconds=on_host,
        buffers=dict(buffers or {}),
        unordered=frozenset(_unordered(graph) if kind == "CPU" else ()),
    )
    return with_link(made, _LINKS[kind])


def _unordered(graph: Graph) -> Iterator[str]:
    """Nodes whose kernels ask for their outputs in any order, some of them larger than others.

    On a CPU `SplitV` makes four and more outputs in threads of their own, as long as there are some
    thousand numbers for each and no more than 180 Ki; here, whatever there is. Source:
    `tensorflow/core/kernels/split_v_op.cc`, TensorFlow 2.21.
    """
    for node in graph.nodes:
        if node.op == "SplitV" and len(node.nbytes) >= _IN_THREADS and len({*node.nbytes}) > 1:
            yield node.name


def _seconds(graph: Graph, flops: Mapping[str, float], rates: Rates) -> dict[str, float]:
    form, seconds = graph.form, {}
    for number, node in enumerate(graph.nodes):
        if not node.is_input:
            is_still = form.kind[number] in _STILL and not form.is_copy(number)
            is_still |= facts_of(node.op).is_shape_only
            moved = 0 if is_still else _bytes_moved(graph, node)
            busy = max(moved / rates.nbytes, flops.get(node.name, 0.0) / rates.flops)
            seconds[node.name] = rates.start + busy
    return seconds


def _bytes_moved(graph: Graph, node: Node) -> int:
    """What a kernel reads and writes."""
    facts, read = facts_of(node.op), list(map(graph.nbytes, node.inputs))
    made = sum(node.nbytes)
    if node.op == "AddN":  # adds by eights to its output
        return made + sum(read) + 2 * made * ((len(read) - 2) // 8)
    if facts.is_sparse:
        handles = {facts.reads, *facts.writes}
        others = [nbytes for i, nbytes in enumerate(read) if i not in handles]
        return 2 * made + sum(others) + 2 * len(facts.writes) * max(others, default=0)
    is_overwritten = node.op == "AssignVariableOp"
    return made + sum(read) + (0 if is_overwritten else sum(read[i] for i in facts.writes))


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
    workspace, buffers = dict(costs.workspace), dict(costs.buffers)
    if measured.workspace is not None:
        for name in measured.seconds.keys() & costs.seconds.keys() - costs.requests.keys():
            workspace[name] = measured.workspace.get(name, 0)
            if workspace[name] != costs.workspace.get(name, 0):
                buffers.pop(name, None)
    return replace(
        costs, seconds=seconds, host_seconds=host_seconds, workspace=workspace, buffers=buffers
    )


def _corrected(
    guesses: Mapping[str, float], graph: Graph, measured: Mapping[str, float]
) -> dict[str, float]:
    factors: dict[str, list[float]] = {"": [1.0]}
    for node in graph.nodes:
        if node.name in measured and guesses.get(node.name):
            factor = measured[node.name] / guesses[node.name]
            factors.setdefault(node.op, []).append(factor)
            factors[""] += [factor] * bool(factor)  # an op without a kernel tells of no other
    usual = {op: statistics.median(found) for op, found in factors.items()}
    return {
        name: measured.get(name, guess * usual.get(graph.by_name[name].op, usual[""]))
        for name, guess in guesses.items()
    }
