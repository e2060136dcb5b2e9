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

from collections.abc import Iterable
from dataclasses import dataclass, field

from tfmem.costs.types import Costs
from tfmem.graph.compact import ASSIGN, HANDLE, KEPT, READ, UPDATE, VIEW, Compact
from tfmem.graph.ir import Graph


@dataclass(slots=True)
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

    def timeline(self, order: Iterable[int]) -> list[int]:
        """Bytes alive while each node of an order runs."""
        left = [len(readers) for readers in self.readers]
        stays, size, ghost, maker = self.stays, self.size, self.is_ghost, self.maker
        has_run = [False] * len(self.makes)
        alive, timeline = 0, []
        for node in order:
            taken = -1
            for source, output in self.takes[node]:
                if left[source] == 1 and not stays[source]:
                    taken = output
                    break
            after = during = alive
            for buffer in self.makes[node]:
                pending = left[buffer] - (node in self.readers[buffer] if ghost[buffer] else 0)
                is_made = left[buffer] or stays[buffer] or not ghost[buffer]
                if buffer != taken and is_made:
                    during += size[buffer]
                if pending or stays[buffer]:
                    after += size[buffer]
            timeline.append(during + self.scratch[node])
            for buffer in self.reads[node]:
                left[buffer] -= 1
                made = not ghost[buffer] or has_run[maker[buffer]]
                if not left[buffer] and not stays[buffer] and made:
                    after -= size[buffer]
            has_run[node] = True
            alive = after
        return timeline


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
