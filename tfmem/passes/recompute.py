"""Compute values again instead of keeping them."""

from __future__ import annotations

from dataclasses import dataclass

from tfmem.graph.clones import with_clones
from tfmem.graph.ir import Graph
from tfmem.graph.verify import verify
from tfmem.plan import Recomputation


@dataclass(frozen=True, slots=True)
class Recompute:
    """Clones nodes for their late users.

    Before::

        x ---> a ---> b ... y
               \\___________/

    After ``Recomputation("a", ("y",))``::

        x ---> a ---> b ... y
         \\                  /
          a/clone1 ---------/

    Assumes that the cloned nodes are pure, and that the plan's order, which `reorder` and
    `linearise` make of it, keeps each clone back until it is wanted: a control input that the
    original does not have is also what stops TensorFlow from merging the two.
    """

    recomputations: tuple[Recomputation, ...]

    def __call__(self, graph: Graph) -> Graph:
        cloned = with_clones(graph, self.recomputations)
        verify(cloned)
        return cloned
