"""What rehearsals of one graph in one order have in common: sizes, storages, uses, prices.

A *storage* is what a value and its views share, named by the value that was made first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfmem.costs.types import Costs
from tfmem.graph.compact import ASSIGN, KEPT, PLAIN, READ, UPDATE, VIEW, Compact

NEVER = float("inf")


class Stage:
    """What rehearsals of one graph in one order have in common.

    Attributes:
      form: the graph.
      order: nodes of the device.
      fixed_bytes: what is in use for the whole step: inputs, variables, constants.
    """

    def __init__(
        self, form: Compact, costs: Costs, order: Sequence[int], away: Sequence[bool]
    ) -> None:
        self.form, self.costs, self.order, self.away = form, costs, list(order), away
        self.seconds = [costs.seconds.get(name, 0.0) for name in form.priced]
        self.scratch = [costs.allocated(costs.workspace.get(name, 0)) for name in form.priced]
        self.size = [costs.allocated(nbytes) for nbytes in form.nbytes]
        self.fixed_bytes = 0
        self.root = self._roots()
        self.members: list[list[int]] = [[] for _ in self.size]
        for value, root in enumerate(self.root):
            if root >= 0:
                self.members[root].append(value)
        self.readers: list[list[int]] = [[] for _ in self.size]
        self.uses: list[list[int]] = [[] for _ in self.size]  # of each storage, by position
        self.is_sent = [False] * len(self.size)
        self.began = np.concatenate(([0.0], np.cumsum([self.seconds[node] for node in order])))
        self._find_uses()
        self.stays = [False] * len(self.size)
        for value in form.returned:
            if self.root[value] >= 0:
                self.stays[self.root[value]] = True
        self.contents = self._contents()
        self.may_repeat = [self._may_repeat(node) for node in range(len(form.names))]

    def _roots(self) -> list[int]:
        """The storage of each value; -1 for what is there for the whole step."""
        form, root = self.form, [-1] * len(self.size)
        for node, kind in enumerate(form.kind):
            values = range(form.first[node], form.first[node + 1])
            for value in values:
                if kind == VIEW:
                    root[value] = root[form.source[node]]
                elif kind == PLAIN or (kind == READ and form.is_copy(node)):
                    root[value] = value
                elif kind == KEPT and not self.away[node]:
                    self.fixed_bytes += self.size[value]
                if self.away[node] and kind in (READ, VIEW, PLAIN):
                    root[value] = value
        for variable in form.variable_nodes:
            if not self.away[variable]:
                self.fixed_bytes += self.size[form.first[variable]]
        return root

    def _contents(self) -> list[list[tuple[int, float]]]:
        """For each node, the contents of variables that it reads: (bytes, when they are updated).

        A node that runs again after the update needs the old contents, which then are a copy.
        """
        form = self.form
        updated = [NEVER] * len(form.variable_nodes)
        for position, node in enumerate(self.order):
            if form.kind[node] in (UPDATE, ASSIGN):
                for variable in form.variables[node]:
                    updated[variable] = min(updated[variable], float(self.began[position]))
        shared: dict[int, tuple[int, float]] = {}  # by value that shares a variable's buffer
        contents = []
        for node, kind in enumerate(form.kind):
            read = [shared[value] for value in form.reads[node] if value in shared]
            first = form.first[node]
            if kind == READ and not form.is_copy(node):
                shared[first] = (self.size[first], updated[form.variables[node][0]])
            elif kind == VIEW and read:
                shared[first] = read[0]
            contents.append(read)
        return contents

    def _find_uses(self) -> None:
        form = self.form
        for position, node in enumerate(self.order):
            for value in dict.fromkeys(form.reads[node]):
                root = self.root[value]
                if root >= 0:
                    self.readers[root].append(node)
                    if self.uses[root][-1:] != [position]:
                        self.uses[root].append(position)
        for node, is_away in enumerate(self.away):
            for value in form.reads[node] if is_away else ():
                root = self.root[value]
                if root >= 0 and not self.away[form.producer[root]]:
                    self.is_sent[root] = True

    def _may_repeat(self, node: int) -> bool:
        form = self.form
        if self.away[node] or not form.may_repeat[node] or form.kind[node] not in (PLAIN, VIEW):
            return False
        return not any(self.is_sent[form.first[node] : form.first[node + 1]])
