"""Whole numbers in a graph: the counters and conditions that say how often a loop turns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import product

Number = int | None
"""A whole number or truth; None where it is not known."""


class Bounded(int):
    """The most that a number which depends on data can be, with the least."""

    least: int

    def __new__(cls, least: int, most: int) -> Bounded:
        """A number from `least` to `most`, both included."""
        made = super().__new__(cls, most)
        made.least = least
        return made

    def __repr__(self) -> str:
        return f"{self.least}..{int(self)}"


def spanning(numbers: Iterable[int]) -> int:
    """The number that some are, or the bounds that hold of all of them."""
    ends = [end for one in numbers for end in _ends(one)]
    return ends[0] if min(ends) == max(ends) else Bounded(min(ends), max(ends))


def between(op: str, operands: Sequence[int]) -> Sequence[int]:
    """What an op may give of operands between two ends, beyond what it gives at these ends.

    Args:
      op: TensorFlow's op type.
      operands: the greatest of each.
    """
    if op in ("Equal", "NotEqual"):
        return 0, 1
    if op in ("FloorMod", "Mod"):
        return 0, operands[1] - 1
    return (0,) if op in ("Abs", "Square") else ()


def _floor_div(a: int, b: int) -> Number:
    return a // b if b else None


def _floor_mod(a: int, b: int) -> Number:
    return a % b if b else None


_SAME = "Identity Cast Reshape Squeeze ExpandDims StopGradient Snapshot EnsureShape PreventGradient"

_ONE: dict[str, Callable[[int], Number]] = {
    **dict.fromkeys(_SAME.split(), operator.pos),
    "Neg": operator.neg,
    "Abs": abs,
    "Square": lambda a: a * a,
    "LogicalNot": lambda a: int(not a),
}

_TWO: dict[str, Callable[[int, int], Number]] = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": _floor_div,
    "FloorMod": _floor_mod,
    "Maximum": max,
    "Minimum": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


def number_of(op: str, inputs: Sequence[Number]) -> Number:
    """What an op of scalars gives; None where that is not known.

    A truth may be known although an input is not: nothing is true together with what is false. Of
    bounds bounds are made: each operand is taken at either end (interval arithmetic).

    Args:
      op: TensorFlow's op type.
      inputs: its operands.
    """
    if Bounded not in map(type, inputs):
        return _of_exact(op, inputs)
    ends: list[Sequence[Number]] = [(None,) if one is None else _ends(one) for one in inputs]
    found = [_of_exact(op, chosen) for chosen in product(*ends)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return spanning([*known, *between(op, [0 if one is None else int(one) for one in inputs])])


def _ends(number: int) -> Sequence[int]:
    return (number.least, int(number)) if isinstance(number, Bounded) else (number,)


def _of_exact(op: str, inputs: Sequence[Number]) -> Number:
    if op in ("LogicalAnd", "LogicalOr") and len(inputs) == 2:
        decides = int(op == "LogicalOr")
        if any(one is not None and bool(one) == bool(decides) for one in inputs):
            return decides
        return None if None in inputs else 1 - decides
    if op == "SelectV2" and len(inputs) == 3 and inputs[0] is not None:
        return inputs[1] if inputs[0] else inputs[2]
    if op == "AddN" and inputs:
        known = [one for one in inputs if one is not None]
        return sum(known) if len(known) == len(inputs) else None
    if op in _ONE and len(inputs) == 1 and inputs[0] is not None:
        return _ONE[op](inputs[0])
    if op in _TWO and len(inputs) == 2 and inputs[0] is not None and inputs[1] is not None:
        found = _TWO[op](inputs[0], inputs[1])
        return None if found is None else int(found)
    return None


def may_be_known(op: str, inputs: Sequence[bool]) -> bool:
    """Whether `number_of` tells anything, whatever the numbers of those inputs that are known.

    Args:
      op: TensorFlow's op type.
      inputs: whether each of its operands may be known.
    """
    if op in ("LogicalAnd", "LogicalOr"):
        return any(inputs)
    if op == "SelectV2":
        return all(inputs[:1]) and any(inputs[1:])
    return (op == "AddN" or op in _ONE or op in _TWO) and all(inputs)
