"""The batch of a step: arguments, and what it takes itself from iterators of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tfmem.bridge.capture import Captured
from tfmem.bridge.effects import NEXT
from tfmem.bridge.inputs import is_variable
from tfmem.graph.ir import Value


def rows(captured: Captured) -> tuple[tuple[int, int], ...]:
    """Bytes of a row of each component, and how many it has by its first dimension."""
    found = []
    for item, shape in zip(captured.inputs, captured.shapes, strict=False):  # variables follow
        if not is_variable(item) and (nbytes := captured.graph.nbytes(Value(item.name))):
            count = (shape or (1,))[0] or 1
            found.append((nbytes // count, count))
    return *found, *((nbytes // count, count) for nbytes, count in _taken(captured))


def taken(captured: Captured) -> tuple[int, ...]:
    """Bytes of each component that a step takes itself, outside of loops and branches."""
    return tuple(nbytes for nbytes, _ in _taken(captured))


def _taken(captured: Captured) -> Iterator[tuple[int, int]]:
    """Bytes of each component that a step takes itself, and how many rows it has."""
    for node in captured.graph.nodes:
        if node.op not in NEXT or node.name not in captured.node_defs:
            continue
        shapes = captured.node_defs[node.name].attr["output_shapes"].list.shape
        described = zip(node.nbytes, shapes, captured.dtypes[node.name], strict=False)
        for nbytes, shape, dtype in described:
            row = dtype.size * prod(dimension.size for dimension in shape.dim[1:])
            if nbytes:
                yield nbytes, nbytes // row if shape.dim and 0 < row <= nbytes else 1
