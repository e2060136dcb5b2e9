"""What a rehearsal looks things up in: the storages that may leave, and sets of neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfmem.planning.eviction.problem import NEVER


class Groups:
    """Sets of neighbouring nodes that are to run again, with their seconds (union-find)."""

    def __init__(self) -> None:
        self.parent = [0]
        self.seconds = [0.0]

    def add(self, seconds: float) -> int:
        self.parent.append(len(self.parent))
        self.seconds.append(seconds)
        return len(self.parent) - 1

    def find(self, group: int) -> int:
        parent = self.parent
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    def join(self, first: int, second: int) -> None:
        first, second = self.find(first), self.find(second)
        if first != second:
            self.parent[second] = first
            self.seconds[first] += self.seconds[second]


class Crowd:
    """The storages that may leave, in arrays, so that the least score is found at once."""

    def __init__(self, patience: float, smallest: int = 1) -> None:
        self.patience, self.smallest = patience, smallest
        self.place: dict[int, int] = {}
        self.roots = np.zeros(1024, np.int64)
        self.weight = np.zeros(1024)  # price / bytes
        self.due = np.zeros(1024)
        self.nbytes = np.zeros(1024)

    def __len__(self) -> int:
        return len(self.place)

    def put(self, root: int, nbytes: int, due: float, price: float) -> None:
        place = self.place.get(root)
        if place is None:
            place = self.place[root] = len(self.place)
            if place == len(self.roots):
                for name in ("roots", "weight", "due", "nbytes"):
                    setattr(self, name, np.resize(getattr(self, name), 2 * place))
        self.roots[place] = root
        self.nbytes[place] = max(1, nbytes)
        self.weight[place] = price / max(1, nbytes)
        self.due[place] = due

    def rescore(self, root: int, score: float, clock: float) -> None:
        place = self.place[root]
        self.weight[place] = score * float(self._gap(self.due[place], clock))

    def take(self, root: int) -> None:
        place = self.place.pop(root, None)
        if place is None:
            return
        last = len(self.place)
        if place != last:
            for array in (self.roots, self.weight, self.due, self.nbytes):
                array[place] = array[last]
            self.place[int(self.roots[place])] = place

    def _gap(self, due: Any, clock: float) -> Any:
        """What scores are divided by: the time until the next use, to the power of patience."""
        return np.clip(due - clock, 1e-9, 1e30) ** self.patience

    def least(self, clock: float) -> tuple[int, float]:
        """The storage with the least score, and that; -1 if there is none."""
        count = len(self.place)
        if not count:
            return -1, NEVER
        gap = self._gap(self.due[:count], clock)
        with np.errstate(invalid="ignore"):
            score = self.weight[:count] / gap
        place = int(np.argmin(np.where(np.isnan(score), np.inf, score)))
        return int(self.roots[place]), float(score[place])
