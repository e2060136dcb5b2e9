"""Runs of functions written down: which buffers their values are and refer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tfmem.graph.bodies import Argument, Body, Items, Leaf
from tfmem.graph.compact import KEPT, PLAIN, READ
from tfmem.graph.ir import NOTHING, Graph, Node, Stash, Value
from tfmem.simulation.code import Code
from tfmem.simulation.holdings import Holdings, List, Tensor, Thing, number, reached
from tfmem.simulation.machine import Frame, Observer, Path

RECORDED = 2
"""Runs of a body that are looked at: the last of them describes it."""


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was seen: named by a value of the frame, or by its number."""

    where: Value | int | None
    nbytes: int
    number: int | None
    is_kept: bool


@dataclass(frozen=True)
class _SeenList:
    handle: _Seen
    items: tuple[_Tree, ...]


_Tree = _Seen | _SeenList | None


@dataclass
class Record:
    """One run of one function, as seen.

    Attributes:
      graph: what ran.
      values: the value whose own buffer each buffer is, if it is one's.
      makers: for each other buffer that something refers to, the node that it came from.
      given: the input nodes that nobody else holds.
      links: (node, output, what it refers to) of outputs that refer to something, in order.
      same: (node, output, buffer) of outputs that are older buffers.
      calls: what each node that runs functions gave them.
      lasting: buffers that are counted beside the graph, but for its own constants.
    """

    graph: Graph
    lasting: Container[int]
    values: dict[int, Value] = field(default_factory=dict)
    makers: dict[int, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    links: list[tuple[str, int, list[Value | int]]] = field(default_factory=list)
    same: list[tuple[str, int, Value | int]] = field(default_factory=list)
    calls: dict[str, list[_Tree]] = field(default_factory=dict)

    def where(self, buffer: int) -> Value | int:
        """What names a buffer now."""
        return self.values.get(buffer, buffer)

    def _counts(self, buffer: int) -> bool:
        return buffer in self.values or buffer not in self.lasting

    def link(self, name: str, index: int, thing: Thing) -> None:
        """Notes what an output refers to, or is."""
        value = Value(name, index)
        if isinstance(thing, List):
            self.values[thing.buffer] = value
            inner = [one for one in reached(thing.items) if self._counts(one)]
            for one in inner:
                if one not in self.values:
                    self.makers.setdefault(one, name)
            self.links.append((name, index, [self.where(one) for one in inner]))
        elif thing is None or thing.buffer < 0 or not self._counts(thing.buffer):
            self.same.append((name, index, NOTHING))
        elif thing.buffer not in self.values and thing.buffer not in self.makers:
            self.values[thing.buffer] = value
        elif self.values.get(thing.buffer) != value:
            self.same.append((name, index, self.where(thing.buffer)))


class Recorder(Observer):
    """Looks at the first runs of each function.

    Attributes:
      records: of each function, by the path of its caller and its number there.
    """

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings
        self.records: dict[Path, Body] = {}
        self._open: dict[int, Record] = {}
        self._runs: Counter[Path] = Counter()

    def begin(self, frame: Frame, path: Path) -> None:
        """A frame is about to run; its inputs are bound."""
        self._runs[path] += 1
        if self._runs[path] > RECORDED:
            return
        record = self._open[id(frame)] = Record(frame.code.body.graph, self.holdings.lasting)
        given = [n for n, node in enumerate(frame.code.nodes) if node.is_input]
        for node in given:
            name, thing = frame.code.nodes[node].name, frame.thing(frame.graph.first[node])
            if thing is None:
                continue
            if thing.buffer >= 0:
                record.values.setdefault(thing.buffer, Value(name))
            if not self.holdings.is_shared(thing):
                record.given.add(name)
        for node in given:
            thing = frame.thing(frame.graph.first[node])
            for buffer in reached(thing.items) if isinstance(thing, List) else ():
                if buffer not in record.values and buffer not in record.lasting:
                    record.makers.setdefault(buffer, frame.code.nodes[node].name)

    def made(self, frame: Frame, node: int) -> None:
        """A node has made new tensors."""
        if (record := self._open.get(id(frame))) and frame.graph.kind[node] in (PLAIN, KEPT, READ):
            for value in frame.graph.outputs[node]:
                thing = frame.thing(value)
                if thing is not None and thing.buffer >= 0:
                    record.values[thing.buffer] = frame.graph.value(value)

    def linked(self, frame: Frame, node: int, things: Sequence[Thing]) -> None:
        """A node has given things that refer to what may be older."""
        if record := self._open.get(id(frame)):
            order = sorted(range(len(things)), key=lambda i: isinstance(things[i], List))
            for index in order:  # a tensor before the lists that it is in
                record.link(frame.code.nodes[node].name, index, things[index])

    def call(self, frame: Frame, node: int, things: Sequence[Thing]) -> None:
        """A node is about to run functions, which now hold its inputs."""
        if record := self._open.get(id(frame)):
            own = _held_by(things)
            trees = [self._tree(thing, record, own) for thing in things]
            record.calls[frame.code.nodes[node].name] = trees

    def _tree(self, thing: Thing, record: Record, own: Counter[int]) -> _Tree:
        if thing is None:
            return None
        is_kept = thing.buffer >= 0 and self.holdings.refs[thing.buffer] > own[thing.buffer]
        where = record.where(thing.buffer) if thing.buffer >= 0 else None
        nbytes = self.holdings.sizes[thing.buffer] if thing.buffer >= 0 else 0
        seen = _Seen(where, nbytes, number(thing), is_kept)
        if isinstance(thing, Tensor):
            return seen
        seen = replace(seen, is_kept=thing.refs > own[id(thing)])
        return _SeenList(seen, tuple(self._tree(item, record, own) for item in thing.items))

    def end(self, frame: Frame, path: Path) -> None:
        """A frame has run, and holds nothing any more."""
        if record := self._open.pop(id(frame), None):
            self.records[path] = _described(frame.code, record, self.holdings)


def _held_by(things: Iterable[Thing]) -> Counter[int]:
    """How often some things, and lists that only they hold, hold each buffer, and each list."""
    held: Counter[int] = Counter()
    todo = list(things)
    while todo:
        thing = todo.pop()
        if isinstance(thing, List):
            held[id(thing)] += 1
            if held[id(thing)] == thing.refs:
                todo += thing.items
            if held[id(thing)] == 1 and thing.buffer >= 0:
                held[thing.buffer] += 1
        elif thing is not None and thing.buffer >= 0:
            held[thing.buffer] += 1
    return held


class _Description:
    """What a record says of the nodes of its graph."""

    def __init__(self, record: Record, holdings: Holdings) -> None:
        self.record, self.holdings = record, holdings
        self.holders: dict[int, set[Value]] = {}
        for name, index, inner in record.links:
            for one in inner:
                if isinstance(one, int):
                    self.holders.setdefault(one, set()).add(Value(name, index))
        for name, index, one in record.same:
            if isinstance(one, int):
                self.holders.setdefault(one, set()).add(Value(name, index))
        self.stashes: dict[str, list[Stash]] = {}
        self.place: dict[int, tuple[Value, int]] = {}  # where each buffer of a stash lies
        self.links: dict[str, list[tuple[int, Value]]] = {}
        self.same: dict[str, list[tuple[int, Value]]] = {}
        self._make_stashes()
        for name, index, inner in record.links:
            for value in filter(None, map(self.value, inner)):
                if not self._is_own(value, name, index):
                    self.links.setdefault(name, []).append((index, value))
        for name, index, one in record.same:
            self.same.setdefault(name, []).append((index, self.value(one) or NOTHING))

    def _make_stashes(self) -> None:
        """Puts buffers that the same values refer to in one stash of the node they came from."""
        groups: dict[tuple[str, frozenset[Value]], list[int]] = {}
        by_name = self.record.graph.by_name
        for buffer, maker in sorted(self.record.makers.items()):
            if by_name[maker].is_input and self.holdings.refs[buffer]:
                continue  # it outlives the function: it is counted where it came from
            holders = frozenset(self.holders.get(buffer, ()))
            groups.setdefault((maker, holders), []).append(buffer)
        for (maker, holders), buffers in groups.items():
            node, made = by_name[maker], self.stashes.setdefault(maker, [])
            outputs = {value.index for value in holders if value.node == maker}
            value = Value(maker, len(node.nbytes) + len(made))
            made.append(
                Stash(self._parts(buffers), (0,) if node.is_input else tuple(sorted(outputs)))
            )
            self.place |= {buffer: (value, part) for part, buffer in enumerate(buffers)}

    def _parts(self, buffers: Sequence[int]) -> tuple[tuple[int, int], ...]:
        runs: list[tuple[int, int]] = []
        for buffer in buffers:
            nbytes = self.holdings.sizes[buffer]
            if runs and runs[-1][0] == nbytes:
                runs[-1] = nbytes, runs[-1][1] + 1
            else:
                runs.append((nbytes, 1))
        return tuple(runs)

    def node(self, node: Node) -> Node:
        """A node with what is known of it."""
        stashes = tuple(self.stashes.get(node.name, ()))
        is_owned = node.is_input and (bool(stashes) or node.name in self.record.given)
        return replace(
            node,
            stashes=stashes,
            holds=tuple(dict.fromkeys(self.links.get(node.name, ()))),
            same=tuple(self.same.get(node.name, ())),
            is_owned=is_owned,
        )

    def value(self, one: Value | int) -> Value | None:
        """The value that names a buffer; None for one that is not counted here."""
        if isinstance(one, Value):
            return one
        return self.place[one][0] if one in self.place else None

    def _is_own(self, value: Value, name: str, index: int) -> bool:
        """Whether a value is a stash of a node's own, which says itself that an output has it."""
        number = value.index - len(self.record.graph.by_name[name].nbytes)
        if value.node != name or number < 0:
            return False
        return index in self.stashes[name][number].outputs

    def argument(self, tree: _Tree) -> Argument:
        """What was given, by the names that the graph now has for it."""
        if isinstance(tree, _SeenList):
            return Items(self._leaf(tree.handle), tuple(map(self.argument, tree.items)))
        return None if tree is None else self._leaf(tree)

    def _leaf(self, seen: _Seen) -> Leaf:
        value, part = (
            self.place.get(seen.where, (NOTHING, 0))
            if isinstance(seen.where, int)
            else (seen.where or NOTHING, 0)
        )
        if value == NOTHING:
            return Leaf(number=seen.number)
        return Leaf(value.node, value.index, part, seen.nbytes, seen.is_kept, seen.number)


def _described(code: Code, record: Record, holdings: Holdings) -> Body:
    """A function whose graph and callers say what was seen; its bodies are still as they were."""
    found, body = _Description(record, holdings), code.body
    outputs = zip(body.results, code.outputs, strict=True)
    graph = Graph(
        tuple(map(found.node, body.graph.nodes)),
        tuple(value for value, number in outputs if number is not None),
    )
    arguments = {name: tuple(map(found.argument, trees)) for name, trees in record.calls.items()}
    bodies = {
        name: tuple(replace(one, arguments=arguments.get(name)) for one in functions)
        for name, functions in body.bodies.items()
    }
    return replace(body, graph=graph, bodies=bodies)
