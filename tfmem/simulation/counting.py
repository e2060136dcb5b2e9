"""How often a loop turns: its whole numbers alone, run until its condition is false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfmem.graph.bodies import BRANCHES, Body
from tfmem.graph.ir import Value
from tfmem.graph.scalars import Bounded, Number, may_be_known, number_of, spanning

MOST_TURNS = 100_000
"""Turns that are counted: part of a second. Of a loop that turns more often, or whose condition
depends on what is not known here, nothing is said."""


@dataclass(frozen=True, repr=False)
class Numbers:
    """What a function does with whole numbers.

    Attributes:
      given: its inputs.
      known: values that are the same in every run.
      steps: (value, op, operands) of the others that are numbers if their operands are, in order.
      branches: what the functions of steps that choose among some do.
      outputs: what it returns.
    """

    given: Sequence[Value]
    known: Mapping[Value, int]
    steps: Sequence[tuple[Value, str, Sequence[Value]]]
    branches: Mapping[Value, Sequence[Numbers]]
    outputs: Sequence[Value]

    def run(self, inputs: Sequence[Number]) -> list[Number]:
        """The numbers that it returns; None for what is not known."""
        found: dict[Value, Number] = dict(self.known)
        found.update(zip(self.given, inputs, strict=True))
        for value, op, operands in self.steps:
            numbers = [found.get(one) for one in operands]
            if value in self.branches:
                found[value] = self._chosen(value, op, *numbers)
            else:
                found[value] = number_of(op, numbers)
        return [found.get(value) for value in self.outputs]

    def may_tell(self, inputs: Sequence[bool]) -> list[bool]:
        """Which outputs `run` may know, given which inputs are known."""
        found = dict.fromkeys(self.known, True)
        found.update(zip(self.given, inputs, strict=True))
        for value, op, operands in self.steps:
            known = [found.get(one, False) for one in operands]
            if value in self.branches:
                found[value] = any(one.may_tell(known[1:])[0] for one in self.branches[value])
            else:
                found[value] = may_be_known(op, known)
        return [found.get(value, False) for value in self.outputs]

    def _chosen(self, value: Value, op: str, which: Number, *inputs: Number) -> Number:
        """What a branch gives: the one that is taken, or all of them alike."""
        branches = self.branches[value]
        if which is not None:
            # The functions of an If stand in the order true, false.
            place = int(not which) if op.endswith("If") else min(max(which, 0), len(branches) - 1)
            branches = branches[place : place + 1]
        given = {one.run(inputs)[0] for one in branches}
        return given.pop() if len(given) == 1 else None

    def needed(self, outputs: set[int]) -> tuple[Numbers, set[int]]:
        """What some of its outputs take, and the inputs that these depend on."""
        values = {self.outputs[index] for index in outputs}
        steps = []
        for value, op, operands in reversed(self.steps):
            if value in values:
                steps.append((value, op, operands))
                values.update(operands)
        inputs = {index for index, value in enumerate(self.given) if value in values}
        return replace(self, steps=steps[::-1]), inputs


def numbers_of(body: Body) -> Numbers:
    """What a function does with whole numbers."""
    nodes, known = body.graph.nodes, body.numbers
    steps = [
        (Value(node.name), node.op, node.inputs)
        for node in nodes
        if len(node.nbytes) == 1 and not node.is_input and node.name not in known
    ]
    return Numbers(
        given=[Value(node.name) for node in nodes if node.is_input],
        known={Value(name): number for name, number in known.items()},
        steps=steps,
        branches={
            value: [numbers_of(one) for one in body.bodies[value.node]]
            for value, op, _ in steps
            if op in BRANCHES and value.node in body.bodies
        },
        outputs=body.results,
    )


def turns_of(condition: Numbers, body: Numbers, inputs: Sequence[Number]) -> int | None:
    """How often a loop turns, or bounds of that; None where nothing tells.

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
    now, seen = list(inputs), set[tuple[bool, ...]]()
    fewest: int | None = None
    for turn in range(MOST_TURNS):
        (goes_on,) = condition.run(now)
        if goes_on == 0:
            return spanning([turn, turn if fewest is None else fewest])
        if isinstance(goes_on, Bounded) and fewest is None:
            fewest = turn
        if goes_on is None and not _may_end(condition, body, now, seen):
            return None
        after = body.run(now)
        if goes_on is None and all(after[i] == now[i] for i in needed):
            return None  # no later turn can tell more
        now = [one if i in needed else None for i, one in enumerate(after)]
    return None


def _may_end(
    condition: Numbers, body: Numbers, now: Sequence[Number], seen: set[tuple[bool, ...]]
) -> bool:
    """Whether the condition may be known in this turn or a later one.

    Args:
      now: the loop's variables.
      seen: which of them were known in turns for which the answer was yes; it is added to.
    """
    known, asked = tuple(one is not None for one in now), set[tuple[bool, ...]]()
    while known not in seen:
        if known in asked:
            return False
        asked.add(known)
        if condition.may_tell(known)[0]:
            break
        known = tuple(body.may_tell(known))
    seen |= asked
    return True
