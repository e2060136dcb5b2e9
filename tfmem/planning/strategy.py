"""What a strategy is: a value with one method, so that several can be tried and the best kept."""

from __future__ import annotations

from typing import Protocol

from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph
from tfmem.plan import Plan


class Strategy(Protocol):
    """Decides what is done to a graph."""

    def decide(
        self, graph: Graph, costs: Costs, *, device: str, host: str, techniques: frozenset[str]
    ) -> Plan:
        """A plan, its predictions not yet filled in.

        Args:
          graph: the captured graph.
          costs: bytes and seconds of its nodes.
          device: the device whose memory is scarce.
          host: the device that takes what leaves it; "" rules swap and place out.
          techniques: subset of `TECHNIQUES` that may be used.
        """
        ...

    def may_place(self, nbytes: int) -> bool:
        """Whether a variable of this size would be placed, were it met."""
        ...
