"""Buffers and their lifetimes for (graph, plan): the only place that computes them.

A *buffer* is storage shared by one or more values: through views, through kernels that take over
an input's buffer, through variables. A lifetime is an interval of *positions*: places in the order
of the nodes that run on the device, both ends included. The rules, as TensorFlow has them:

- A value's buffer is made as its node starts and dies as the last node that reads it, or any view
  of it, ends. A value nobody reads dies as its node ends.
- A kernel takes an input's buffer over if that buffer has the output's size and the kernel holds
  the only reference to it at that moment.
- Function inputs and constants stay for the whole step; so do variables, unless on the host.
  What the function returns stays to the end.
- A read of a variable shares its buffer. An update happens in place, unless a read is still alive:
  then the variable moves to a fresh copy, and the old buffer dies with its readers. Assignment
  adopts the value's buffer; where the handle has no bytes, the variable is a caller's, which counts
  one buffer for it before and after. A variable that is accessed by rows anywhere
  (`Facts.is_sparse`) is in copy-on-read mode: each read makes a copy, and so does each dense update
  of the original; a rewritten function makes those in place (`bridge.in_place`).
- A value that crosses to the host is held until the copy has landed; what comes back is a new
  buffer, from just after its trigger to its last user.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfmem.graph.compact import ASSIGN, KEPT, PLAIN, READ, UPDATE, VIEW
from tfmem.graph.ir import Graph, Value
from tfmem.simulation.program import Program

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lifetimes:
    """Every buffer of a program; the arrays are indexed by buffer.

    Attributes:
      program: what was replayed.
      start: first position at which the buffer is resident.
      end: last position; never before `start`.
      nbytes: what it takes, rounded up to the allocator's granularity.
      owner: number of the value it was made for.
      on_host: whether it lives on the host.
      takeovers: for a buffer that was taken over, (position, value number) of each new owner.
      variables: for each variable, its buffer before the step and that after it.
      returned: buffers of what the function returns.
      buffers: of each value; -1 for none.
      turn: by which those that begin together are asked for in order; None for their numbers.
    """

    program: Program
    start: Array
    end: Array
    nbytes: Array
    owner: Array
    on_host: npt.NDArray[np.bool_]
    takeovers: Mapping[int, Sequence[tuple[int, int]]]
    variables: Sequence[tuple[int, int]] = ()
    returned: frozenset[int] = frozenset()
    buffers: Sequence[int] = ()
    turn: Array | None = None

    def is_input(self, buffer: int) -> bool:
        """Whether a buffer was there before the step, and stays: an input's or a variable's."""
        form, number = self.program.graph, int(self.owner[buffer])
        if number >= len(form.producer):
            return False
        node = form.producer[number]
        return form.is_input[node] and form.kind[node] != PLAIN

    def name(self, buffer: int) -> str:
        """The node of the value that a buffer was made for."""
        return self.program.value(int(self.owner[buffer])).node

    def is_constant(self, buffer: int) -> bool:
        """Whether a buffer is a constant's, which is made once, before the first step."""
        form, number = self.program.graph, int(self.owner[buffer])
        if number >= len(form.producer):
            return False
        node = form.producer[number]
        return form.kind[node] == KEPT and not form.is_input[node]

    def timeline(self, *, host: bool = False) -> Array:
        """Bytes resident at each position, on the device or on the host; one position at least."""
        length = max(1, len(self.program.order))
        chosen = self.on_host == host
        change = np.bincount(self.start[chosen], self.nbytes[chosen], length + 1)
        change -= np.bincount(self.end[chosen] + 1, self.nbytes[chosen], length + 1)
        return np.cumsum(change[:length]).astype(np.int64)

    def alive(self, position: int) -> list[tuple[Value, int]]:
        """The buffers on the device at a position by their owner then, largest first."""
        here = (self.start <= position) & (position <= self.end) & ~self.on_host & (self.nbytes > 0)
        found = []
        for buffer in np.flatnonzero(here).tolist():
            owner = int(self.owner[buffer])
            for since, value in self.takeovers.get(buffer, ()):
                owner = value if since <= position else owner
            found.append((self.program.value(owner), int(self.nbytes[buffer])))
        return sorted(found, key=lambda item: -item[1])


def owner(graph: Graph, value: Value) -> Value:
    """The value whose buffer a value shares through views: itself, or a variable's handle."""
    form = graph.form
    return form.value(form.root(form.number_of(value)))


def lifetimes(
    program: Program,
    granularity: int,
    held: Mapping[int, Sequence[int]] | None = None,
    window: int = 1,
) -> Lifetimes:
    """Replays a program and gives the lifetime of every buffer.

    Args:
      program: what is replayed.
      granularity: every buffer takes a multiple of this many bytes.
      held: for each position, the copies to the host (indices of `Program.copies`) that have
        landed when it ends; until then each holds its source. Those not named hold to the end.
      window: how many neighbouring nodes, constants not counted, may run out of order. With more
        than one, a buffer is taken over only if no other reader of it can still be running; where
        each buffer lies is still that of the strict order.
    """
    replay = Liveness(program, granularity, window)
    nodes, position = len(program.graph.names), 0
    is_input, on_host, held = program.graph.is_input, program.on_host, held or {}
    for step in program.sequence:
        if step >= nodes:
            replay.copy(step - nodes)
            continue
        replay.run(step, on_host[step])
        if not is_input[step] and not on_host[step]:
            for copy in held.get(position, ()):
                replay.release(replay.buffer[program.copies[copy].source])
            replay.position = position = position + 1
            replay.ordered += program.graph.kind[step] != KEPT
    return replay.finish()


class Liveness:
    """The state of a replay: who refers to which buffer, and what has been seen of each.

    Attributes:
      ordered: how many nodes have run that an order holds: all but constants.
      shared: buffers that somebody outside of the program holds, too: nothing takes them over.
    """

    shared: Container[int] = ()

    def __init__(self, program: Program, granularity: int, window: int) -> None:
        self.program, self.graph, self.uses = program, program.graph, program.uses
        self.sizes = [-(-nbytes // granularity) * granularity for nbytes in program.nbytes]
        self.position, self.ordered, self.window = 0, 0, window
        self.buffer = [-1] * len(self.sizes)  # of each value
        self.variable = [-1] * len(self.graph.variable_nodes)  # buffer of each variable
        self.initial = list(self.variable)  # the same before the step
        self.refs: list[int] = []  # the rest is indexed by buffer
        self.start: list[int] = []
        self.end: list[int] = []
        self.owner: list[int] = []
        self.on_host: list[bool] = []
        self.takeovers: dict[int, list[tuple[int, int]]] = {}
        self.disturbed: dict[int, int] = {}  # where a reader last let go; views that are read none

    def make(self, value: int, references: int, host: bool) -> int:
        """A fresh buffer of a value's size."""
        buffer = len(self.refs)
        self.refs.append(references)
        self.start.append(self.position)
        self.end.append(self.position)
        self.owner.append(value)
        self.on_host.append(host)
        return buffer

    def release(self, buffer: int) -> None:
        """One reference less; the buffer was in use until now."""
        self.refs[buffer] -= 1
        self.end[buffer] = self.position

    def run(self, node: int, host: bool) -> None:
        """Runs a node: its outputs get buffers, then its inputs lose a reference each."""
        graph, kind = self.graph, self.graph.kind[node]
        reads = self.program.reads.get(node) or graph.reads[node]
        taken = -1
        if kind == PLAIN:
            if graph.takes[node]:
                taken = self._take_over(node, reads)
            for value in graph.outputs[node]:
                if value != taken:
                    self.buffer[value] = self.make(value, self.uses[value], host)
        elif kind == VIEW:
            self._share(node, self.buffer[self._now(node, reads, graph.source[node])])
        elif kind == KEPT:
            for value in range(graph.first[node], graph.first[node + 1]):
                self.buffer[value] = self.make(value, self.uses[value] + 1, host)
                self.start[-1] = 0
        else:
            self._run_on_variable(node, reads, host)
        for value in reads:
            buffer = self.buffer[value]
            self.refs[buffer] -= 1
            self.end[buffer] = self.position
        if self.window > 1 and (kind != VIEW or self._is_unread(node)):
            self._disturb(reads, taken)

    def _run_on_variable(self, node: int, reads: Sequence[int], host: bool) -> None:
        graph, kind = self.graph, self.graph.kind[node]
        if kind == READ:
            self._read(node, host)
        elif kind == UPDATE:
            self._update(node, host)
        elif kind == ASSIGN:
            self._assign(node, self.buffer[self._now(node, reads, graph.source[node])], host)
        elif graph.is_input[node]:
            (variable,) = graph.variables[node]
            self.variable[variable] = self.make(self.graph.handle(variable), 1, host)
            self.initial[variable] = self.variable[variable]

    def _now(self, node: int, reads: Sequence[int], value: int) -> int:
        """The value read in place of one of the graph's."""
        return reads[self.graph.reads[node].index(value)]

    def _is_unread(self, node: int) -> bool:
        """Whether nobody reads what a node makes, and so nobody who does runs behind it."""
        return not any(self.uses[value] for value in self.graph.outputs[node])

    def _disturb(self, reads: Sequence[int], taken: int) -> None:
        for value in reads:
            self.disturbed[self.buffer[value]] = self.ordered
        if taken >= 0:
            del self.disturbed[self.buffer[taken]]

    def copy(self, number: int) -> None:
        """Starts a copy; one to the host goes on holding its source."""
        copy = self.program.copies[number]
        self.buffer[copy.made] = self.make(copy.made, self.uses[copy.made], copy.to_host)
        if not copy.to_host:
            self.release(self.buffer[copy.source])

    def _take_over(self, node: int, reads: Sequence[int]) -> int:
        """Gives the node's output an input's buffer; the output, or -1 if none can be had."""
        output, is_changed = self.graph.taker[node], reads is not self.graph.reads[node]
        if output in self.program.sent:
            return -1
        for value in self.graph.takes[node]:
            buffer = self.buffer[self._now(node, reads, value) if is_changed else value]
            disturbed = self.disturbed.get(buffer, -self.window)
            is_last = self.refs[buffer] == 1 and buffer not in self.shared
            if is_last and disturbed <= self.ordered - self.window:
                break
        else:
            return -1
        self.buffer[output] = buffer
        self.refs[buffer] += self.uses[output]
        self.takeovers.setdefault(buffer, []).append((self.position, output))
        return output

    def _share(self, node: int, buffer: int) -> None:
        for value in range(self.graph.first[node], self.graph.first[node + 1]):
            self.buffer[value] = buffer
            self.refs[buffer] += self.uses[value]

    def _read(self, node: int, host: bool) -> None:
        (variable,) = self.graph.variables[node]
        if variable in self.graph.copied:
            for value in range(self.graph.first[node], self.graph.first[node + 1]):
                self.buffer[value] = self.make(value, self.uses[value], host)
        else:
            self._share(node, self.variable[variable])

    def _update(self, node: int, host: bool) -> None:
        for variable in self.graph.variables[node]:
            buffer = self.variable[variable]
            is_copied = variable in self.graph.copied
            if is_copied and self.program.is_rewritten:
                continue
            if is_copied or self.refs[buffer] > 1:
                self.variable[variable] = self.make(self.graph.handle(variable), 1, host)
                self.release(buffer)

    def _assign(self, node: int, buffer: int, host: bool) -> None:
        (variable,) = self.graph.variables[node]
        old = self.variable[variable]
        if self.program.is_rewritten:
            self._update(node, host)
            return
        if variable in self.graph.copied:
            buffer = self.make(self.graph.handle(variable), 0, host)
        is_callers = not self.sizes[self.graph.handle(variable)]
        self.refs[buffer] += not is_callers
        self.variable[variable] = buffer
        if not is_callers or old == self.initial[variable]:
            self.release(old)

    def finish(self) -> Lifetimes:
        """What is still referred to stays to the end."""
        last = max(0, len(self.program.order) - 1)
        start = np.minimum(np.array(self.start, np.int64), last)
        end = np.where(np.array(self.refs, np.int64) > 0, last, np.array(self.end, np.int64))
        owner = np.array(self.owner, np.int64)
        nbytes = np.array(self.sizes, np.int64)[owner]
        return Lifetimes(
            self.program, start, np.clip(end, start, last), nbytes, owner,
            np.array(self.on_host, np.bool_), self.takeovers,
            tuple(zip(self.initial, self.variable, strict=True)),
            frozenset(self.buffer[value] for value in self.graph.returned),
            tuple(self.buffer),
        )  # fmt: skip
