"""The most that is cut out of a tensor, where the places depend on data.

A slice is no larger than what it is cut from. Often more follows: `x[i * n : (i + 1) * n]` has no
more than n rows, whatever i is, for its ends differ by n. What differs by how much is found in sums
of unknown numbers (`Sum`). They wrap around as the step's own do.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfmem.bridge.graphdefs import value_of
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import constant
from tfmem.graph.ir import Value

_Place = tuple[Value, int] | None
Sum = dict[_Place, int]
"""How often each unknown number is in a sum: the element of a value; for None the number itself."""

_MOST_OPS = 8
"""Ops that are followed from a number; what is before them is unknown."""

_MASKS = ("ellipsis", "new_axis", "shrink_axis", "begin", "end")


def most_cut(op: tf.Operation, whole: Shape | None) -> Shape | None:
    """The largest shape of what `Slice` or `StridedSlice` gives; None if there is no such bound.

    Args:
      op: the node.
      whole: shape of what it is cut from, or the largest.
    """
    if whole is None:
        return None
    if op.type == "Slice":
        sizes = _elements(op.inputs[2])
        return None if len(sizes) != len(whole) else tuple(map(_at_most, whole, sizes))
    return _most_strided(op, whole)


def parts_at_most(
    whole: Shape | None, sizes: Sequence[int] | None, count: int, axis: Sequence[int] | None
) -> list[Shape | None]:
    """The largest shape of each part of a split; None if there is no such bound.

    Args:
      whole: shape of what is split, or the largest.
      sizes: of the parts at most, -1 for the rest; None if they are not known.
      count: of the parts.
      axis: along which, its only element; None if it is not known.
    """
    if whole is None or axis is None:
        return [None] * count
    place, found = axis[0] % len(whole), list[Shape | None]()
    for size in sizes or [-1] * count:
        most = whole[place] if size < 0 else min(size, whole[place])
        found.append((*whole[:place], most, *whole[place + 1 :]))
    return found


def range_size(op: tf.Operation) -> int | None:
    """How many numbers a `Range` gives whose ends are not known but for their difference."""
    if not op.inputs[0].dtype.is_integer:
        return None
    begin, end, step = (sum_at(tensor, 0) for tensor in op.inputs)
    span, stride = number_in(difference(end, begin)), number_in(step)
    if span is None or not stride or span * stride < 0:
        return None
    return -(-span // stride)


def _at_most(size: int, cut: Sum) -> int:
    known = number_in(cut)
    return size if known is None or known < 0 else min(size, known)


def _most_strided(op: tf.Operation, whole: Shape) -> Shape | None:
    begin, end, strides = map(_elements, op.inputs[1:4])
    count = len(strides)
    if not count or not len(begin) == len(end) == count:
        return None
    masks = {kind: int(op.get_attr(f"{kind}_mask")) for kind in _MASKS}

    def has(kind: str, place: int) -> bool:
        return bool(masks[kind] >> place & 1)

    ellipsis = next((place for place in range(count) if has("ellipsis", place)), count)
    added = sum(has("new_axis", place) for place in range(count) if place != ellipsis)
    spared = len(whole) - (count - added - (ellipsis < count))
    result: list[int] = []
    sizes = iter(whole)
    for place in range(count):
        if place == ellipsis:
            result += [next(sizes) for _ in range(spared)]
        elif has("new_axis", place):
            result.append(1)
        elif (size := next(sizes, None)) is None:
            return None
        elif not has("shrink_axis", place):
            first: Sum = {} if has("begin", place) else begin[place]
            last: Sum = {None: size} if has("end", place) else end[place]
            result.append(_most_between(size, difference(last, first), strides[place]))
    return (*result, *sizes)


def _most_between(size: int, span: Sum, step: Sum) -> int:
    """Most elements of a dimension between two places, some of which may count from its end.

    With a positive span there are no more than that, be they both counted from the end, cut off
    there, or one in front of the other. A negative one may be to a place counted from the end.
    """
    found, stride = number_in(span), number_in(step)
    if found is None or stride is None or found < 0 or stride < 1:
        return size
    return min(size, -(-found // stride))


def _elements(tensor: tf.Tensor) -> list[Sum]:
    count = tensor.shape.num_elements()
    return [sum_at(tensor, index) for index in range(count or 0)]


def number_in(found: Sum) -> int | None:
    """The number that a sum is, if there is nothing else in it."""
    return found.get(None, 0) if not found.keys() - {None} else None


def difference(first: Sum, second: Sum) -> Sum:
    """What is left of a sum without another."""
    return _added(first, second, -1)


def sum_at(tensor: tf.Tensor, index: int, depth: int = 0) -> Sum:
    """The sum of unknown numbers that an element of whole numbers is; at least of itself.

    Args:
      tensor: of which all elements are.
      index: of the element, as if there was one dimension.
      depth: how many ops are between it and the number that is asked for.
    """
    if (known := constant(tensor)) is not None:
        return {None: known[index]} if known[index] else {}
    op = tensor.op
    itself: Sum = {(value_of(tensor), index): 1}
    if depth == _MOST_OPS:
        return itself
    if op.type == "Pack" and op.inputs[0].shape.rank == 0:
        return sum_at(op.inputs[index], 0, depth + 1)
    if op.type in ("Identity", "Reshape", "Squeeze", "ExpandDims"):
        return sum_at(op.inputs[0], index, depth + 1)
    if op.type not in ("Add", "AddV2", "Sub", "Mul", "Neg"):
        return itself
    operands = _operands(op, index, depth + 1)
    return itself if operands is None else _computed(op.type, operands) or itself


def _operands(op: tf.Operation, index: int, depth: int) -> list[Sum] | None:
    """What is in one place of what a node of two reads, or in the only one there is."""
    counts = [tensor.shape.num_elements() for tensor in op.inputs]
    whole = op.outputs[0].shape.num_elements()
    if any(count not in (1, whole) for count in counts):
        return None
    return [
        sum_at(tensor, 0 if count == 1 else index, depth)
        for tensor, count in zip(op.inputs, counts, strict=True)
    ]


def _computed(op: str, operands: Sequence[Sum]) -> Sum | None:
    if op == "Neg":
        return _added({}, operands[0], -1)
    first, second = operands
    if op != "Mul":
        return _added(first, second, -1 if op == "Sub" else 1)
    for factor, other in ((first, second), (second, first)):
        if (times := number_in(factor)) is not None:
            return _added({}, other, times)
    return None


def _added(first: Sum, second: Sum, times: int) -> Sum:
    found = {
        place: first.get(place, 0) + times * second.get(place, 0) for place in {**first, **second}
    }
    return {place: count for place, count in found.items() if count}
