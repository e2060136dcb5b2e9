"""A graph in one order, seen as a problem of eviction: sizes, storages, uses, prices.

A *storage* is what a value and its views share, numbered by the value that was made first. All
rehearsals of one graph in one order share one problem, which none of them changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tfmem.costs.types import Costs
from tfmem.graph.compact import ASSIGN, KEPT, PLAIN, READ, TINY, UPDATE, VIEW, Compact


class EvictionProblem:
    """What rehearsals of one graph in one order have in common.

    Lists are indexed by node, by value, or by storage (a value's number, too).

    Attributes:
      form: the graph.
      costs: its prices.
      order: nodes of the device, as they are to run.
      on_host: whether each node runs, or each variable lives, on the host.
      seconds: of each node.
      scratch: bytes that each node holds while it runs.
      size: bytes of each value as allocated.
      fixed_bytes: what is in use for the whole step: inputs, variables, constants.
      storage: of each value; -1 for what is there for the whole step.
      values: of each storage.
      storages_read: those that each node reads, each once, but for what stays.
      storages_made: those that each node makes.
      readers: nodes of the order that read each storage, or a view of it; one entry for each value.
      uses: positions in the order at which each storage is read, each once.
      is_sent: whether the host reads each storage, so that it crosses in any case.
      begins: seconds at which each position begins, if nothing runs twice; one more at the end.
      stays: whether each storage stays once it is made: what the function returns, and tiny values
        that come from the host, for which kernels would wait behind all that is on its way back.
      contents: of the variables that each node reads: (bytes, when they are updated).
      fixed: values that nothing is gained by evicting, or that no pass can name.
      once: views that may not be made again, and views of these.
      unsent: values that no copy may stand for: stashes, which no node gives out, and what comes
        with what a kernel passes to its gradient, which rounds otherwise without it.
      through: storages that each node reads through another node, which passes them on: it cannot
        be given a clone, and so runs once more only while they are there.
      may_repeat: whether each node may run once more.
      given: storages that are there as the step begins, and die in it.
      first_bytes: what is in use as it begins.
      arguments: values that the caller gives, variables not among them.
    """

    def __init__(
        self, form: Compact, costs: Costs, order: Sequence[int], on_host: Sequence[bool]
    ) -> None:
        self.form, self.costs, self.order, self.on_host = form, costs, list(order), on_host
        self.seconds = [costs.seconds.get(name, 0.0) for name in form.priced]
        self.scratch = [costs.allocated(costs.workspace.get(name, 0)) for name in form.priced]
        self.size = [costs.allocated(nbytes) for nbytes in form.nbytes]
        asked = (costs.requests[name] for name in form.priced if name in costs.requests)
        self.fixed_bytes = sum(costs.copied)
        self.fixed_bytes += sum(nbytes for one in asked for nbytes in one.stays)
        self.storage = self._storages()
        self.values: list[list[int]] = [[] for _ in self.size]
        for value, storage in enumerate(self.storage):
            if storage >= 0:
                self.values[storage].append(value)
        self.readers: list[list[int]] = [[] for _ in self.size]
        self.uses: list[list[int]] = [[] for _ in self.size]
        self.is_sent = [False] * len(self.size)
        self.begins = list(itertools.accumulate((self.seconds[n] for n in order), initial=0.0))
        self.storages_read = [self._storages_of(reads) for reads in form.reads]
        self.storages_made = [
            [value for value in self.outputs(node) if self.storage[value] == value]
            for node in range(len(form.names))
        ]
        self._find_uses()
        self.stays = [False] * len(self.size)
        for value in form.returned | set(filter(self._is_cheap_to_keep, form.from_host)):
            if self.storage[value] >= 0:
                self.stays[self.storage[value]] = True
        passing = {form.first[n] for n, value in form.passed.items() if form.uses[value]}
        self.unsent = passing | form.stashes.keys()
        crossing = (value for value in self.unsent if self.is_sent[value])
        self.once = self._once()
        viewed = (self.storage[value] for value in self.once)
        self.through = [self._through(node) for node in range(len(form.names))]
        self.fixed = {*form.pinned, *form.passed.values(), *crossing, *viewed}
        self.fixed.update(*self.through)
        self.given = [v for v, s in enumerate(self.storage) if s == v and self._is_given(v)]
        self.first_bytes = self.fixed_bytes + sum(self.size[storage] for storage in self.given)
        handles = {form.handle(number) for number in range(len(form.variable_nodes))}
        inputs = {value for value, node in enumerate(form.producer) if form.is_input[node]}
        self.arguments = inputs - handles
        self.contents = self._contents()
        self.may_repeat = [self._may_repeat(node) for node in range(len(form.names))]
        self._children: dict[int, tuple[int, ...]] = {}

    def outputs(self, node: int) -> range:
        """The values that a node makes."""
        return range(self.form.first[node], self.form.first[node + 1])

    def children(self, storage: int) -> tuple[int, ...]:
        """Storages that are computed from one, each once."""
        if storage not in self._children:
            found = (self.storage[v] for n in self.readers[storage] for v in self.outputs(n))
            others = dict.fromkeys(child for child in found if child not in (-1, storage))
            self._children[storage] = tuple(others)
        return self._children[storage]

    def _storages_of(self, values: Sequence[int]) -> list[int]:
        found = dict.fromkeys([self.storage[value] for value in values])
        found.pop(-1, None)
        return list(found)

    def _storages(self) -> list[int]:
        form, storage = self.form, [-1] * len(self.size)
        for node, kind in enumerate(form.kind):
            for value in self.outputs(node):
                if kind == VIEW:
                    storage[value] = storage[form.source[node]]
                elif kind == PLAIN or (kind == READ and form.is_copy(node)):
                    storage[value] = value
                elif kind == KEPT and not self.on_host[node]:
                    self.fixed_bytes += self.size[value]
                if self.on_host[node] and kind in (READ, VIEW, PLAIN):
                    storage[value] = value
        for variable in form.variable_nodes:
            if not self.on_host[variable]:
                self.fixed_bytes += self.size[form.first[variable]]
        return storage

    def _contents(self) -> list[list[tuple[int, float]]]:
        """A clone that runs after the update needs the old contents, which then are a copy."""
        form = self.form
        updated = [math.inf] * len(form.variable_nodes)
        for position, node in enumerate(self.order):
            if form.kind[node] in (UPDATE, ASSIGN):
                for variable in form.variables[node]:
                    updated[variable] = min(updated[variable], self.begins[position])
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
                storage = self.storage[value]
                if storage >= 0:
                    self.readers[storage].append(node)
                    if self.uses[storage][-1:] != [position]:
                        self.uses[storage].append(position)
        for node, is_on_host in enumerate(self.on_host):
            for value in form.reads[node] if is_on_host else ():
                storage = self.storage[value]
                if storage >= 0 and not self.on_host[form.producer[storage]]:
                    self.is_sent[storage] = True

    def _is_cheap_to_keep(self, value: int) -> bool:
        return self.form.nbytes[value] <= TINY

    def _is_given(self, value: int) -> bool:
        return self.form.is_input[self.form.producer[value]]

    def _once(self) -> set[int]:
        """Views that may not be made again, as of what comes back they would be; views of these."""
        found: set[int] = set()
        for value, storage in enumerate(self.storage):
            node = self.form.producer[value]
            is_view = storage not in (-1, value)
            if is_view and (not self.form.may_repeat[node] or self.form.source[node] in found):
                found.add(value)
        return found

    def _through(self, node: int) -> set[int]:
        form, inputs = self.form, self.form.predecessors[node]
        found = (value for value in form.reads[node] if form.producer[value] not in inputs)
        return {self.storage[value] for value in found} - {-1}

    def _may_repeat(self, node: int) -> bool:
        form, outputs = self.form, self.outputs(node)
        if len(outputs) > 1 and not form.pinned.isdisjoint(outputs):
            return False  # a clone would make anew what somebody still refers to
        if not self.once.isdisjoint(form.reads[node]):
            return False  # the buffer may be gone by then, and what is made anew has no such view
        if self.on_host[node] or not form.may_repeat[node] or form.kind[node] not in (PLAIN, VIEW):
            return False
        return not any(self.is_sent[value] for value in outputs)
