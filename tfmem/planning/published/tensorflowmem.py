"""TensorFlowMem's fixed policy: no budget, no cost model, everything by distance in partitions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfmem.costs.types import Costs
from tfmem.errors import Error
from tfmem.graph.ir import Graph
from tfmem.plan import Placement, Plan, Transfer, moved_with
from tfmem.planning.order.in_flight import widest_window
from tfmem.planning.order.memory_order import depth_first, memory_order
from tfmem.planning.placement import moved_nodes, placeable_variables, variables_on
from tfmem.planning.published.distance import distant_evictions
from tfmem.planning.published.fetches import placements
from tfmem.planning.published.partitions import Partitions

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class TensorFlowMem:
    """The published system's policy (J. Wei, Carnegie Mellon University, 2019).

    The order is cut into partitions. A value whose next use is more than `swap_distance` partitions
    away is copied to the host in its producer's partition and comes back one partition before its
    use; uses in the same or the next partition share the copy. A partition closes only when its
    copies have landed. Variables live on the host, with one copy for each group of uses, and are
    updated there.

    Attributes:
      partition_size: ops in a partition (n; 10 or 20 in the published system).
      swap_distance: partitions between two uses through which a value stays (d).
      lead: partitions before its use at which a value starts its way back.
      open_partitions: partitions that may be in progress at once: a copy must have landed when
        this many more have started.
      min_swap_bytes: smaller values stay; moving them costs more than it frees.
      min_place_bytes: variables smaller than this stay with their families.
      order: "memory" for tfmem's memory-aware order, "depth_first" for the published one.
      window: nodes that may be in flight out of order; 1 runs them one by one. The published
        system's is ``partition_size * open_partitions``. None takes as many as hardly cost memory,
        but 1 where values are copied, for then the order is what bounds the copies in flight.
    """

    partition_size: int = 10
    swap_distance: int = 2
    lead: int = 1
    open_partitions: int = 1
    min_swap_bytes: int = MIB
    min_place_bytes: int = 256 * KIB
    order: str = "memory"
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("partition_size", "swap_distance", "open_partitions", "window"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise Error(f"TensorFlowMem({name}={given}): must be at least 1")
        if self.order not in ("memory", "depth_first"):
            raise Error(f"TensorFlowMem(order={self.order!r}): use 'memory' or 'depth_first'")
        if self.lead >= self.swap_distance:
            raise Error(
                f"TensorFlowMem(lead={self.lead}, swap_distance={self.swap_distance}): a value "
                "would be back before it left; make lead the smaller"
            )

    def may_place(self, nbytes: int) -> bool:
        """Whether a variable of this size would be placed on the host."""
        return nbytes >= self.min_place_bytes

    def decide(
        self, graph: Graph, costs: Costs, *, device: str, host: str, techniques: frozenset[str]
    ) -> Plan:
        """A plan by the fixed policy, its predictions not yet filled in (see `Strategy`)."""
        order: tuple[str, ...] = ()
        if "order" in techniques:
            order = self._order(graph, costs, device)
            graph = Graph(tuple(graph.by_name[name] for name in order), graph.outputs)
        placed = self._placements(graph, device, host, techniques)
        moved = moved_with(placed)
        evictions: tuple[Transfer, ...] = ()
        if host and "swap" in techniques:
            evictions, placed = self._evictions(graph, device, moved, placed)
        plan = Plan(
            order=order,
            window=self.window or 1,
            evictions=evictions,
            placements=placed,
            device=device,
            host=host,
        )
        if self.window is None and order and not plan.transfers:
            plan = replace(plan, window=widest_window(graph, costs, plan))
        return plan

    def _order(self, graph: Graph, costs: Costs, device: str) -> tuple[str, ...]:
        if self.order == "depth_first":
            return depth_first(graph)
        return memory_order(graph, costs, device)

    def _partitions(self, graph: Graph, device: str, away: frozenset[str]) -> Partitions:
        return Partitions(graph, device, self.partition_size, away)

    def _placements(
        self, graph: Graph, device: str, host: str, techniques: frozenset[str]
    ) -> tuple[Placement, ...]:
        if not host:
            return ()
        variables = variables_on(graph, host)
        if "place" in techniques:
            variables += placeable_variables(graph, device, self.min_place_bytes)
        beside = moved_nodes(graph, variables)
        return placements(
            self._partitions(graph, device, frozenset(beside)),
            variables,
            beside,
            lead=self.lead,
            pace=self.open_partitions,
            min_bytes=self.min_swap_bytes,
        )

    def _evictions(
        self,
        graph: Graph,
        device: str,
        moved: frozenset[str],
        placed: tuple[Placement, ...],
    ) -> tuple[tuple[Transfer, ...], tuple[Placement, ...]]:
        """Evictions; those of values that a placement sends anyway become part of it."""
        found = {
            transfer.value: transfer
            for transfer in distant_evictions(
                self._partitions(graph, device, moved),
                distance=self.swap_distance,
                lead=self.lead,
                pace=self.open_partitions,
                min_bytes=self.min_swap_bytes,
            )
        }
        merged = tuple(
            replace(
                placement,
                transfers=tuple(found.pop(t.value, t) for t in placement.transfers),
            )
            for placement in placed
        )
        return tuple(found.values()), merged
