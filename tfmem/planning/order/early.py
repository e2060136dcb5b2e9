"""Nodes that may run early: the order is theirs where it does not matter to the peak.

`memory_order` looks at the peak alone. Under a limit every moment counts: a gradient is to be used
up by its update at once, and a shape read while its value is still there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tfmem.graph.compact import ASSIGN, KEPT, READ, TINY, UPDATE, VIEW, Compact
from tfmem.graph.ir import Graph, Node
from tfmem.graph.ops import facts_of
from tfmem.graph.topology import Countdown, least_first


def updates_first(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """The order with each update of a variable, and the light nodes that lead only to updates, as
    soon as what they read is there.

    An update still waits for all who read the old contents, which would be copied else. Constants,
    reads of variables and what depends on nothing else run no sooner than the first node that reads
    them, which may be an update.
    """
    form = graph.form
    return tuple(form.names[n] for n in _Walk(graph, [form.number[name] for name in order]).run())


def movable_nodes(graph: Graph) -> frozenset[str]:
    """Updates and what leads only to them, which `updates_first` moves.

    All others that take memory of their own keep their order among each other.
    """
    form = graph.form
    return frozenset(
        name for name, is_one in zip(form.names, _movable(graph, form), strict=True) if is_one
    )


def shapes_first(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """The order with nodes that want only a value's shape right behind what they wait for."""
    waiting = {
        node.name: len(set(node.predecessors))
        for node in graph.nodes
        if facts_of(node.op).is_shape_only
    }
    result: list[str] = []
    for name in order:
        if name in waiting:
            continue
        todo = [name]
        while todo:
            result.append(todo.pop())
            for reader in graph.successors[result[-1]]:
                if reader in waiting:
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        todo.append(reader)
    return tuple(result)


def small_first(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """The order with crossings and shapes as early as may be."""
    return shapes_first(graph, crossings_first(graph, order))


def crossings_first(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """The order with tiny values that the host reads first, and what tiny ones they are made of.

    Kernels on a GPU read some inputs in the memory of the host: seeds, sizes, conditions. They wait
    there for whatever is on its way to the host, such as swapped values, and what the host makes of
    them waits for all that is on its way back.
    """
    form = graph.form
    closed = _tiny(form)
    asked = [
        number
        for reader, node in enumerate(graph.nodes)
        for number in _tiny_askers(graph, node, reader, closed)
    ]
    first = set[int]()
    while asked:
        node = asked.pop()
        if node not in first:
            first.add(node)
            asked += form.predecessors[node]
    names = {form.names[node] for node in first}
    return (*(n for n in order if n in names), *(n for n in order if n not in names))


def _tiny(form: Compact) -> list[bool]:
    """Which nodes make and read tiny values alone, as all that they depend on does."""
    found: list[bool] = []
    for node, before in enumerate(form.predecessors):
        made = range(form.first[node], form.first[node + 1])
        held = (form.handle(variable) for variable in form.variables[node])
        values = itertools.chain(made, held, form.reads[node])
        is_tiny = all(form.nbytes[value] <= TINY for value in values)
        found.append(is_tiny and all(found[other] for other in before))
    return found


def _tiny_askers(graph: Graph, node: Node, number: int, tiny: Sequence[bool]) -> list[int]:
    """Nodes that make what one reads in the memory of the host; that one, too, if it is tiny."""
    form = graph.form
    makers = [form.number[value.node] for value in node.inputs]
    here = [i for i, maker in enumerate(makers) if graph.nodes[maker].device == node.device]
    asked = [makers[i] for i in node.on_host if i in here]
    asked += [maker for i, maker in enumerate(makers) if i not in here]
    if node.on_host:
        asked.append(number)
    return [one for one in asked if tiny[one] and not form.is_input[one]]


def updates_after_reads(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """The order with each update behind all who read what the variable held before.

    An update before one of them would copy the variable, which takes as much as keeping what it is
    updated by, and leaves the variable somewhere else after each step. What depends on the update
    moves along; the update stays where it is if one of those who read does.
    """
    form = graph.form
    numbers = [form.number[name] for name in order]
    place = {node: position for position, node in enumerate(numbers)}
    before = [list(others) for others in form.predecessors]
    after = [list(others) for others in form.successors]
    for update, readers in _waits(form, numbers, later=True).items():
        late = {reader for reader in readers if place[reader] > place[update]}
        for reader in sorted(late - _dependents(form, update)) if late else ():
            if reader not in before[update]:
                before[update].append(reader)
                after[reader].append(update)
    keys = [place.get(node, -1) for node in range(len(form.names))]
    found = least_first(before, after, keys)
    if len(found) < len(keys):  # two updates, each of which some reader of the other depends on
        return tuple(order)
    return tuple(form.names[node] for node in found if node in place)


def _dependents(form: Compact, node: int) -> set[int]:
    """All nodes that can only run after one."""
    found: set[int] = set()
    todo = [node]
    while todo:
        new = set(form.successors[todo.pop()]) - found
        found |= new
        todo += new
    return found


class _Walk:
    """Takes the nodes that may not move in their order, and the others as soon as they can run."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.form, self.order = graph.form, order
        count = len(self.form.names)
        self.is_movable = _movable(graph, self.form)
        waits = _waits(self.form, order)
        before = [{*self.form.predecessors[n], *waits.get(n, ())} for n in range(count)]
        self.is_idle = _idle(self.form, self.is_movable, before)
        self.idle = [sorted(o for o in others if self.is_idle[o]) for others in before]
        left = (len(others) - len(idle) for others, idle in zip(before, self.idle, strict=True))
        after: list[list[int]] = [[] for _ in range(count)]
        for node, others in enumerate(before):
            for other in others:
                if not self.is_idle[other]:
                    after[other].append(node)
        self.countdown = Countdown(left, after)
        self.done = [False] * count
        self.result: list[int] = []

    def run(self) -> list[int]:
        """All nodes: inputs, which are there before any runs, then the rest."""
        inputs = [node for node in self.order if self.form.is_input[node]]
        for node in inputs:
            self.done[node] = True
        self.result += inputs
        ready = [reader for node in inputs for reader in self.countdown.take(node)]
        self._take([reader for reader in reversed(ready) if self.is_movable[reader]])
        for is_late in (False, True):  # last what no other node leads to
            for node in self.order:
                if is_late or not self.is_movable[node]:
                    self._take([node])
        return self.result

    def _take(self, todo: list[int]) -> None:
        """Runs nodes, before each what only waited for being read, after it what waited for it."""
        while todo:
            node = todo[-1]
            idle = [other for other in self.idle[node] if not self.done[other]]
            if idle and not self.done[node]:
                todo += reversed(idle)
                continue
            todo.pop()
            if self.done[node]:
                continue
            self.done[node] = True
            self.result.append(node)
            ready = reversed(self.countdown.take(node))
            todo += [reader for reader in ready if self.is_movable[reader]]


def _movable(graph: Graph, form: Compact) -> list[bool]:
    """Updates of variables; reads of them and light nodes, all of whose readers are movable."""
    returned = {value.node for value in graph.outputs}
    movable = [False] * len(form.names)
    for number in reversed(range(len(form.names))):
        node, kind = graph.nodes[number], form.kind[number]
        if node.name in returned:
            continue
        names = (name for value in node.values for name in graph.consumers.get(value, ()))
        readers = [form.number[name] for name in names]
        is_light = facts_of(node.op).is_light or kind == READ
        movable[number] = all(movable[reader] for reader in readers) and (
            kind in (UPDATE, ASSIGN) or (is_light and bool(readers))
        )
    return movable


def _waits(form: Compact, order: Sequence[int], *, later: bool = False) -> dict[int, set[int]]:
    """For each update, the nodes before it that read what the variable held until then, or a view.

    With `later`, those behind it, too.
    """
    readers: dict[int, set[int]] = {}  # of each variable, since its last update
    shared: dict[int, tuple[int, int]] = {}  # value -> variable whose buffer it shares, how new
    updates: dict[tuple[int, int], int] = {}  # variable and how new it was -> what updated it
    newness: dict[int, int] = {}
    waits: dict[int, set[int]] = {}
    for node in order:
        kind = form.kind[node]
        for value in form.reads[node]:
            if value in shared:
                variable, age = shared[value]
                if age == newness.get(variable, 0):
                    readers.setdefault(variable, set()).add(node)
                elif later:
                    waits[updates[variable, age]].add(node)
        if kind == VIEW and (viewed := shared.get(form.source[node])) is not None:
            shared |= dict.fromkeys(range(form.first[node], form.first[node + 1]), viewed)
        elif kind == READ:
            (variable,) = form.variables[node]
            shared[form.first[node]] = variable, newness.get(variable, 0)
            readers.setdefault(variable, set()).add(node)
        elif kind in (UPDATE, ASSIGN):
            found = set().union(*(readers.pop(v, set()) for v in form.variables[node]))
            waits[node] = found - {node}
            for variable in form.variables[node]:
                age = newness.get(variable, 0)
                updates[variable, age], newness[variable] = node, age + 1
    return waits


def _idle(form: Compact, movable: Sequence[bool], before: Sequence[set[int]]) -> list[bool]:
    """Constants, and movable nodes that depend on nothing but them, inputs and each other."""
    idle = [False] * len(form.names)
    for node in range(len(form.names)):
        may_wait = movable[node] or (form.kind[node] in (KEPT, READ) and not form.is_input[node])
        is_source = may_wait and bool(form.successors[node])
        idle[node] = is_source and all(form.is_input[o] or idle[o] for o in before[node])
    return idle
