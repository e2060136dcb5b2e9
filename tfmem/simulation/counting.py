"""How often a loop turns: its whole numbers alone, run until its condition is false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfmem.graph.ir import Node, Value
from tfmem.graph.scalars import Number, number_of

MOST_TURNS = 100_000
"""Turns that are counted: part of a second. Of a loop that turns more often, or whose condition
depends on what is not known here, nothing is said."""


@dataclass(frozen=True)
class Numbers:
    """What a function does with whole numbers.

    Attributes:
      given: its inputs.
      known: values that are the same in every run.
      steps: (value, op, operands) of the others that are numbers if their operands are, in order.
      outputs: what it returns.
    """

    given: Sequence[Value]
    known: Mapping[Value, int]
    steps: Sequence[tuple[Value, str, Sequence[Value]]]
    outputs: Sequence[Value]

    def run(self, inputs: Sequence[Number]) -> list[Number]:
        """The numbers that it returns; None for what is not known."""
        found: dict[Value, Number] = dict(self.known)
        found.update(zip(self.given, inputs, strict=True))
        for value, op, operands in self.steps:
            found[value] = number_of(op, [found.get(one) for one in operands])
        return [found.get(value) for value in self.outputs]

    def needed(self, outputs: set[int]) -> tuple[Numbers, set[int]]:
        """What some of its outputs take, and the inputs that these depend on."""
        values = {self.outputs[index] for index in outputs}
        steps = []
        for value, op, operands in reversed(self.steps):
            if value in values:
                steps.append((value, op, operands))
                values.update(operands)
        inputs = {index for index, value in enumerate(self.given) if value in values}
        return Numbers(self.given, self.known, steps[::-1], self.outputs), inputs


def numbers_of(
    nodes: Sequence[Node], known: Mapping[str, int], outputs: Sequence[Value]
) -> Numbers:
    """What a function does with whole numbers.

    Args:
      nodes: its nodes, in a topological order.
      known: numbers that nodes give, by name.
      outputs: what it returns.
    """
    steps = [
        (Value(node.name), node.op, node.inputs)
        for node in nodes
        if len(node.nbytes) == 1 and not node.is_input and node.name not in known
    ]
    given = [Value(node.name) for node in nodes if node.is_input]
    return Numbers(given, {Value(name): n for name, n in known.items()}, steps, outputs)


def turns_of(condition: Numbers, body: Numbers, inputs: Sequence[Number]) -> int | None:
    """How often a loop turns, or at most; None where nothing tells.

    Args:
      condition: of the loop.
      body: of the loop.
      inputs: the numbers that it begins with.
    """
    condition, needed = condition.needed({0})
    while True:
        _, more = body.needed(needed)
        if more <= needed:
            break
        needed |= more
    body, _ = body.needed(needed)
    now = list(inputs)
    for turn in range(MOST_TURNS):
        (goes_on,) = condition.run(now)
        if goes_on == 0:
            return turn
        after = body.run(now)
        if goes_on is None and all(after[i] == now[i] for i in needed):
            return None  # no later turn can tell more
        now = [one if i in needed else None for i, one in enumerate(after)]
    return None
