"""The functions that loops, branches and calls run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tfmem.graph.ir import Graph, Value

BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
"""Ops that choose among their functions by their first input, which these do not get."""

LOOPS = ("While", "StatelessWhile")
"""Ops that run their second function as long as their first one gives true."""

STACKING_OPS = ("TensorListStack", "TensorListConcatV2")
"""Ops that make one tensor of all elements of a list."""


class Leaf(NamedTuple):
    """A tensor that is given to a function.

    Attributes:
      node: whose output it is, or in whose stash it lies, in the graph around the caller; "" if it
        has no name there.
      index: of that output; stashes count behind the outputs.
      part: which buffer of the stash it is.
      nbytes: of its buffer as allocated; 0 if it takes no memory there, or another's.
      is_kept: whether others hold it too while the function runs.
      number: its value, where it is one whole number that is known, or its bounds.
    """

    node: str = ""
    index: int = 0  # type: ignore[assignment]  # tuple.index is never wanted here
    part: int = 0
    nbytes: int = 0
    is_kept: bool = False
    number: int | None = None


class Items(NamedTuple):
    """A list or an optional that is given to a function.

    Attributes:
      handle: the scalar that refers to it.
      items: its elements.
    """

    handle: Leaf
    items: tuple[Argument, ...]


Argument = Leaf | Items | None
"""What a function is given; None for a resource, and for an element that was never set."""


@dataclass(frozen=True)
class Body:
    """A function that a While, If, Case or call node runs.

    Attributes:
      graph: its nodes; inputs first. Its outputs are those that somebody reads, once `contents` has
        found that out.
      function: its name in the library.
      flops: operations of each node that has many.
      workspace: bytes that each node's kernel holds while it runs.
      buffers: of nodes whose workspace is several buffers, the bytes of each, as in `Costs`.
      bodies: of its own nodes.
      numbers: value of each small node that gives one whole number or truth, or its bounds; of one
        that makes a list of a tensor, how many elements that list gets.
      returns: all that it returns, if that is more than the graph's outputs.
      arguments: the caller's inputs when it runs this function, once `contents` has found them out.
      resizable: names of its inputs that are variables which may be assigned other shapes.
      turns: how many of its runs may overlap, as turns of a loop do unless it is rewritten.
    """

    graph: Graph
    function: str = ""
    flops: Mapping[str, float] = field(default_factory=dict)
    workspace: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bodies: Mapping[str, tuple[Body, ...]] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    returns: tuple[Value, ...] = ()
    arguments: tuple[Argument, ...] | None = None
    resizable: frozenset[str] = frozenset()
    turns: int = 1

    @property
    def results(self) -> tuple[Value, ...]:
        """All that it returns, whether somebody reads it or not."""
        return self.returns or self.graph.outputs


Bodies = Mapping[str, tuple[Body, ...]]
"""The bodies of each node that runs any, in the order of the op's attributes."""
