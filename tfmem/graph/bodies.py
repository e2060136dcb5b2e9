"""The functions that loops, branches and calls run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfmem.graph.ir import Graph


@dataclass(frozen=True)
class Body:
    """A function that a While, If, Case or call node runs.

    Attributes:
      graph: its nodes; inputs first.
      function: its name in the library.
      flops: operations of each node that has many.
      workspace: bytes that each node's kernel holds while it runs.
      bodies: of its own nodes.
    """

    graph: Graph
    function: str = ""
    flops: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, int] = field(default_factory=dict)
    bodies: Mapping[str, tuple[Body, ...]] = field(default_factory=dict)


Bodies = Mapping[str, tuple[Body, ...]]
"""The bodies of each node that runs any, in the order of the op's attributes."""
