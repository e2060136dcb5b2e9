"""Minimum cuts of small networks (SciPy's maximum flow)."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

_MOST_BITS = 30
"""SciPy takes capacities of 32 bits and cuts off longer ones without a word."""


class Network:
    """Edges with capacities between nodes of any kind."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._capacity: dict[tuple[int, int], int | None] = {}

    def add(self, source: Hashable, target: Hashable, capacity: int | None = None) -> None:
        """Sets an edge's capacity, a whole number; None for an edge that is never cut."""
        self._capacity[self._numbered(source), self._numbered(target)] = capacity

    def target_side(self, source: Hashable, target: Hashable) -> set[Hashable]:
        """The side of `target` in the minimum cut; of equal cuts that with fewest nodes there.

        Where capacities add up to more than 2**30 times what divides all of them, they are rounded
        down to coarser units, by less than 2**-29 of their sum each.
        """
        source_number, target_number = map(self._numbered, (source, target))
        capacity = self._matrix()
        left = capacity - maximum_flow(capacity, source_number, target_number).flow
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        reach = breadth_first_order(left.T.tocsr(), target_number, return_predecessors=False)
        names = list(self._number)
        return {names[number] for number in reach}

    def _numbered(self, end: Hashable) -> int:
        return self._number.setdefault(end, len(self._number))

    def _matrix(self) -> csr_array:
        finite = [capacity for capacity in self._capacity.values() if capacity]
        unit = math.gcd(*finite) or 1
        shift = max(0, (sum(finite) // unit).bit_length() - _MOST_BITS)
        cut = {ends: _scaled(c, unit, shift) for ends, c in self._capacity.items() if c is not None}
        never = sum(cut.values()) + 1
        data = [cut.get(ends, never) for ends in self._capacity]
        pairs = np.array(list(self._capacity), np.int32).reshape(-1, 2).T
        count = len(self._number)
        return csr_array((np.array(data, np.int32), tuple(pairs)), shape=(count, count))


def _scaled(capacity: int, unit: int, shift: int) -> int:
    """A capacity in coarser units; one that is not 0 does not become 0."""
    return max(int(capacity > 0), capacity // unit >> shift)
