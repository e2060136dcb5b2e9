"""How many bytes are alive after which nodes have run: the model in which orders are searched.

Let S be the set of nodes that have run. Which buffers are alive then, and so how many bytes,
depends on S alone and not on the order within S; that is what makes orders comparable piece by
piece. A buffer is alive if its maker is in S and a reader (of it or of any view of it) is not.

A kernel that works in place changes nothing after it has run, only the bytes while it runs. An
update of a variable makes a buffer of the variable's size which the remaining readers of the old
contents keep alive; if there are none it makes nothing (a *ghost*). Whatever stays for the whole
step in every order (inputs, variables, constants) is left out: it shifts all orders alike.
`liveness` is exact and judges; this model is for comparing thousands of alternatives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tfmem.costs.types import Costs
from tfmem.graph.compact import ASSIGN, HANDLE, KEPT, READ, UPDATE, VIEW, Compact
from tfmem.graph.ir import Graph

_Numbers = NDArray[np.int64]


@dataclass
class Pressure:
    """Buffers by number, and what each node does with them.

    Attributes:
      graph: the nodes.
      size: bytes of each buffer.
      stays: whether a buffer, once made, stays to the end.
      is_ghost: whether a buffer is made only if a reader is left.
      maker: node that makes each buffer, or -1.
      readers: nodes that read each buffer or a view of it.
      makes: buffers each node makes.
      reads: buffers each node reads, each once.
      takes: (input, output) buffers where a node can work in place.
      scratch: workspace of each node.
    """

    graph: Compact
    size: list[int] = field(default_factory=list)
    stays: list[bool] = field(default_factory=list)
    is_ghost: list[bool] = field(default_factory=list)
    maker: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    takes: list[list[tuple[int, int]]] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)

    def add(self, maker: int, size: int, *, is_ghost: bool = False) -> int:
        """A new buffer."""
        self.size.append(size)
        self.stays.append(False)
        self.is_ghost.append(is_ghost)
        self.maker.append(maker)
        self.readers.append([])
        return len(self.size) - 1

    def timeline(self, order: Sequence[int]) -> list[int]:
        """Bytes alive while each node of an order of all nodes runs."""
        return self._tables.timeline(np.asarray(order, np.int64)).tolist()  # type: ignore[no-any-return]

    @cached_property
    def added_first(self) -> Sequence[int]:
        """What each node adds to the bytes alive if it runs before all others."""
        added = []
        for node, (makes, reads) in enumerate(zip(self.makes, self.reads, strict=True)):
            change = 0
            for b in makes:
                if self.stays[b] or any(reader != node for reader in self.readers[b]):
                    change += self.size[b]
            for b in reads:
                if len(self.readers[b]) == 1 and not self.stays[b] and not self.is_ghost[b]:
                    change -= self.size[b]
            added.append(change)
        return added

    @cached_property
    def released_last(self) -> Sequence[int]:
        """What each node takes from the bytes alive if it runs after all others."""
        released = []
        for node, (makes, reads) in enumerate(zip(self.makes, self.reads, strict=True)):
            change = 0
            for b in makes:
                if self.stays[b] or (self.readers[b] and not self.is_ghost[b]):
                    change -= self.size[b]
            for b in reads:
                is_own = self.is_ghost[b] and self.maker[b] in (-1, node)
                if not self.stays[b] and not is_own:
                    change += self.size[b]
            released.append(change)
        return released

    @cached_property
    def _tables(self) -> _Tables:
        return _Tables.of(self)


@dataclass(frozen=True)
class _Tables:
    """A finished `Pressure` in arrays; rows of `made`, `read` and `takes` are (node, buffer, ...).

    Attributes:
      size, stays, is_ghost, maker, scratch: as in `Pressure`.
      made: each buffer that a node makes.
      read: each reader of a buffer.
      takes: each input that a node can work in, and the output, in their order.
    """

    size: _Numbers
    stays: NDArray[np.bool_]
    is_ghost: NDArray[np.bool_]
    maker: _Numbers
    scratch: _Numbers
    made: _Numbers
    read: _Numbers
    takes: _Numbers

    @classmethod
    def of(cls, model: Pressure) -> _Tables:
        return cls(
            np.asarray(model.size, np.int64),
            np.asarray(model.stays, np.bool_),
            np.asarray(model.is_ghost, np.bool_),
            np.asarray(model.maker, np.int64),
            np.asarray(model.scratch, np.int64),
            _rows(((node, b) for node, some in enumerate(model.makes) for b in some), 2),
            _rows(((node, b) for b, some in enumerate(model.readers) for node in some), 2),
            _rows(((node, *pair) for node, some in enumerate(model.takes) for pair in some), 3),
        )

    def timeline(self, order: _Numbers) -> _Numbers:
        """See `Pressure.timeline`."""
        count = len(order)
        place = np.empty(count + 1, np.int64)
        place[order], place[-1] = np.arange(count), -1  # of no node too
        last = np.full(len(self.size), -1)  # reader of each buffer
        np.maximum.at(last, self.read[:, 1], place[self.read[:, 0]])
        begin = place[self.maker]
        is_read = last > begin  # after the node that makes it, which a ghost need not be
        stays = (self.maker >= 0) & (self.stays | is_read)
        ends = is_read & ~self.stays
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, begin[stays] + 1, self.size[stays])
        np.add.at(change, last[ends] + 1, -self.size[ends])
        during = np.cumsum(change)[:-1] + self.scratch[order]
        node, buffer = self.made.T
        is_made = ~self.is_ghost[buffer] | self.stays[buffer] | (last[buffer] >= place[node])
        is_made &= buffer != self._taken(place, last)[node]
        np.add.at(during, place[node[is_made]], self.size[buffer[is_made]])
        return during

    def _taken(self, place: _Numbers, last: _Numbers) -> _Numbers:
        """The output of each node that is its input's buffer, or -1."""
        taken = np.full(len(place), -1)
        node, source, output = self.takes[::-1].T  # the first that can is written last
        can = (last[source] == place[node]) & ~self.stays[source]
        taken[node[can]] = output[can]
        return taken


def _rows(rows: Iterable[tuple[int, ...]], columns: int) -> _Numbers:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64).reshape(-1, columns)


def pressure(graph: Graph, costs: Costs, device: str) -> Pressure:
    """The model of a graph on a device."""
    form = graph.form
    model = Pressure(form)
    near = {"", device}
    on_device = [not device or node.device in near for node in graph.nodes]
    buffer = [-1] * len(form.nbytes)
    contents = [-1] * len(form.variable_nodes)
    for node in range(len(form.names)):
        model.makes.append([])
        model.takes.append([])
        scratch = costs.allocated(costs.workspace.get(form.priced[node], 0))
        model.scratch.append(scratch if on_device[node] else 0)
        read = list(dict.fromkeys(buffer[value] for value in form.reads[node]))
        model.reads.append([b for b in read if b >= 0])
        _add_outputs(model, node, buffer, contents, costs)
        for b in model.reads[node]:
            model.readers[b].append(node)
    for value in form.returned:
        if buffer[value] >= 0:
            model.stays[buffer[value]] = True
    return model


def _add_outputs(
    model: Pressure, node: int, buffer: list[int], contents: list[int], costs: Costs
) -> None:
    form = model.graph
    kind, values = form.kind[node], range(form.first[node], form.first[node + 1])
    variables = form.variables[node]
    if kind == HANDLE and form.is_input[node]:
        contents[variables[0]] = model.add(-1, 0, is_ghost=True)
    elif kind == VIEW or (kind == READ and not form.is_copy(node)):
        shared = buffer[form.source[node]] if kind == VIEW else contents[variables[0]]
        buffer[values.start : values.stop] = [shared] * len(values)
        if kind == READ:
            model.reads[node].append(shared)
    elif kind not in (HANDLE, KEPT):
        maker = -1 if form.is_input[node] else node  # an input is there in every order
        for value in values:
            buffer[value] = model.add(maker, costs.allocated(form.nbytes[value]))
            if maker >= 0:
                model.makes[node].append(buffer[value])
        _add_takeover(model, node, buffer, contents)
    if kind in (UPDATE, ASSIGN):
        for variable in variables:
            _add_update(model, node, variable, contents, costs)


def _add_takeover(model: Pressure, node: int, buffer: list[int], contents: list[int]) -> None:
    form = model.graph
    read = [buffer[value] for value in form.reads[node]]
    for value in form.takes[node]:
        if read.count(buffer[value]) == 1 and 0 <= buffer[value] not in contents:
            model.takes[node].append((buffer[value], buffer[form.taker[node]]))


def _add_update(
    model: Pressure, node: int, variable: int, contents: list[int], costs: Costs
) -> None:
    form = model.graph
    if variable in form.copied:  # in place: `bridge.in_place`
        return
    size = costs.allocated(form.nbytes[form.handle(variable)])
    old = contents[variable]
    model.size[old], model.maker[old] = size, node
    model.makes[node].append(old)
    contents[variable] = model.add(-1, 0, is_ghost=True)
