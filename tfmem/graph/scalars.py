"""Whole numbers in a graph: the counters and conditions that say how often a loop turns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

Number = int | None
"""A whole number or truth; None where it is not known."""


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

    A truth may be known although an input is not: nothing is true together with what is false.

    Args:
      op: TensorFlow's op type.
      inputs: its operands.
    """
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
