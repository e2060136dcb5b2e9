"""Topological orders, and what they are made of: nodes counted down until they are ready.

Nodes are numbers; `before` names those that a node waits for, `after` those that wait for it.
Everything but `post_order` is Kahn's algorithm: the orders differ in which ready node is next.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, TypeVar

Before = Iterable[Collection[int]]
"""The nodes that each node waits for, each once."""

After = Sequence[Iterable[int]]
"""The nodes that wait for each node, each once."""

Name = TypeVar("Name", bound=Hashable)


class Countdown:
    """How many of the nodes that each node waits for are still to be taken.

    Attributes:
      left: that count, by node; a node is ready at 0.
      after: the nodes that wait for each node, each once.
    """

    def __init__(self, left: Iterable[int], after: After) -> None:
        self.left, self.after = list(left), after

    def ready(self) -> list[int]:
        """The nodes that wait for none."""
        return [node for node, count in enumerate(self.left) if not count]

    def take(self, node: int) -> list[int]:
        """Takes a node; the nodes that are ready because of it, in the order of `after`."""
        left, found = self.left, []
        for follower in self.after[node]:
            left[follower] -= 1
            if not left[follower]:
                found.append(follower)
        return found


def first_ready_first(before: Before, after: After) -> list[int]:
    """The node that became ready first is next: a queue."""
    countdown, order = Countdown(map(len, before), after), []
    queue = deque(countdown.ready())
    while queue:
        order.append(queue.popleft())
        queue.extend(countdown.take(order[-1]))
    return order


def last_ready_first(before: Before, after: After) -> list[int]:
    """The node that became ready last is next: a stack."""
    countdown, order = Countdown(map(len, before), after), []
    stack = countdown.ready()[::-1]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(countdown.take(order[-1])))
    return order


def least_first(before: Before, after: After, keys: Sequence[Any]) -> list[int]:
    """The ready node with the least key is next; shorter than the graph if that has a cycle."""
    countdown, order = Countdown(map(len, before), after), []
    heap = [(keys[node], node) for node in countdown.ready()]
    heapq.heapify(heap)
    while heap:
        order.append(heapq.heappop(heap)[1])
        for node in countdown.take(order[-1]):
            heapq.heappush(heap, (keys[node], node))
    return order


def post_order(roots: Iterable[Name], before: Callable[[Name], Sequence[Name]]) -> list[Name]:
    """Each root in turn, and before each node what it waits for, the first named first."""
    done: dict[Name, None] = {}
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [other for other in before(node) if other not in done]
            if missing and node not in done:
                stack.extend(reversed(missing))
            else:
                done.setdefault(stack.pop())
    return list(done)


class DisjointSets:
    """Sets of numbers that are joined until they are one (union-find, with path halving)."""

    def __init__(self, count: int = 0) -> None:
        self._parent = list(range(count))

    def add(self) -> int:
        """A new number, in a set of its own."""
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def find(self, number: int) -> int:
        """The number that stands for the set that a number is in."""
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def join(self, first: int, second: int) -> None:
        """Joins the sets of two numbers; what stands for the first's stands for both."""
        self._parent[self.find(second)] = self.find(first)
