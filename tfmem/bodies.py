"""The functions that loops, branches and calls run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfmem.ir import Graph, Node, Value


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


def charged_elsewhere(caller: Node, body: Body, allocated: Callable[[int], int]) -> int:
    """Bytes of a body's peak that count as its caller's inputs and outputs already.

    A branch reads the node's inputs themselves. A loop does so in its first turn only: from then on
    the variables of the loop are buffers of their own, but for those handed on unchanged.
    `allocated` says what a buffer of so many bytes takes on the device.
    """
    sizes = list(caller.nbytes)
    for argument in body.graph.nodes:
        is_same = not caller.op.endswith("While") or Value(argument.name) in body.graph.outputs
        if argument.is_input and is_same:
            sizes.append(argument.nbytes[0])
    return sum(map(allocated, sizes))
