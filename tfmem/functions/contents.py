"""A captured function with what its loops and branches keep for their gradients."""

from __future__ import annotations

from dataclasses import replace

from tfmem.bridge.capture import Captured
from tfmem.costs.types import GRAIN
from tfmem.graph.bodies import Body
from tfmem.simulation.contents import studied


def with_contents(captured: Captured) -> Captured:
    """The function with graphs that say what lists and optionals refer to.

    Raises:
      UnsupportedFunctionError: a loop keeps memory in each turn, and nothing bounds how many.
    """
    top = Body(
        captured.graph,
        workspace=captured.workspace,
        bodies=captured.bodies,
        numbers=captured.numbers,
        returns=captured.graph.outputs,
    )
    found = studied(top, GRAIN)
    return replace(captured, graph=found.graph, bodies=found.bodies)
