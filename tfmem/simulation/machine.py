"""Functions run buffer by buffer: loops turn by turn, lists and optionals with what is in them.

`liveness` says how long the buffers of one graph live. What a loop keeps for its gradient lies in
lists, which the gradient's loop takes apart: how long that lives is seen by running both. A *frame*
is one run of one function; nothing is computed in it but whole numbers, by which loops count.

As TensorFlow runs loops and branches (lowered to Switch and Merge; read off the allocator):

- A function's tensors belong to it: what the caller hands over and does not need any more ends
  with its last reader, and kernels take it over.
- A list refers to its elements and copies none; a list that nobody else holds is changed in place.
  What is popped off it ends with its readers, if nothing else refers to it.
- A constant in a function is made once and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfmem.costs.types import held_by
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph.bodies import BRANCHES, LOOPS, Body
from tfmem.graph.compact import PLAIN
from tfmem.graph.ir import VARIABLE, Node
from tfmem.graph.scalars import Bounded, Number, number_of, spanning
from tfmem.plan import Plan
from tfmem.simulation import lists
from tfmem.simulation.code import Code, code_of
from tfmem.simulation.counting import turns_of
from tfmem.simulation.holdings import Holdings, List, Tensor, Thing, most, number, numbers
from tfmem.simulation.liveness import Liveness
from tfmem.simulation.requests import around_outputs
from tfmem.simulation.turns import Turns

Path = tuple[str, ...]
"""The callers, from the outermost to the innermost."""

MOST_RUNS = 4_000_000
"""Runs of nodes after which a function is given up: they take some ten seconds."""

SCALAR_BYTES = 8
"""What is not larger may be a whole number."""


class Observer:
    """Is told what frames make; this one does not listen."""

    def begin(self, frame: Frame, path: Path) -> None:
        """A frame is about to run; its inputs are bound."""

    def made(self, frame: Frame, node: int) -> None:
        """A node has made new tensors."""

    def linked(self, frame: Frame, node: int, things: Sequence[Thing]) -> None:
        """A node has given things that refer to what may be older."""

    def call(self, frame: Frame, node: int, things: Sequence[Thing]) -> None:
        """A node is about to run functions, which now hold its inputs."""

    def end(self, frame: Frame, path: Path) -> None:
        """A frame has run, and holds nothing any more."""


@dataclass(repr=False)
class Machine:
    """What all frames of one run share.

    Attributes:
      holdings: the buffers.
      choose: which branch is taken where nothing tells: path of the node, number of branches.
      observer: is told what happens.
      plans: of functions, by the path of their caller and their number.
      unbounded: bytes that each loop, by its path, keeps in each turn, if nothing says how often it
        turns.
      runs: runs of nodes so far.
      constants: of each function, by the node's name.
    """

    holdings: Holdings
    choose: Callable[[Path, int], int] = lambda path, count: count - 1
    observer: Observer = field(default_factory=Observer)
    plans: Mapping[tuple[Path, int], Plan] = field(default_factory=dict)
    unbounded: dict[Path, int] = field(default_factory=dict)
    runs: int = 0
    constants: dict[tuple[Path, str], Tensor] = field(default_factory=dict)
    _codes: dict[tuple[Path, int], Code] = field(default_factory=dict)
    _chosen: dict[int, int] = field(default_factory=dict)

    def run(self, code: Code, things: Sequence[Thing], path: Path) -> list[Thing]:
        """Runs a function on things, which it takes over; what it gives, held for the caller."""
        frame = Frame(self, code, path)
        frame.bind(things)
        return frame.run_all()

    def call(
        self,
        caller: Node,
        bodies: Sequence[Body],
        things: Sequence[Thing],
        path: Path,
        is_read: Sequence[bool],
    ) -> list[Thing]:
        """Runs the functions of a node on its inputs, which it takes over.

        What a branch returns and nobody reads ends where its last reader in the branch does.
        """
        if not bodies:
            for thing in things:
                self.holdings.drop(thing)
            return []
        read = is_read if caller.op in BRANCHES else None
        codes = [self._code(path, branch, body, read) for branch, body in enumerate(bodies)]
        if caller.op in LOOPS:
            return self._loop(codes, list(things), path)
        if caller.op in BRANCHES:
            chosen = self._branch(caller, things[0], len(codes), path)
            self.holdings.drop(things[0])
            return self.run(codes[chosen], things[1:], (*path, str(chosen)))
        # A call by name: the runtime holds what it is given until it returns.
        for thing in things:
            self.holdings.hold(thing)
        outputs = self.run(codes[0], things, path)
        for thing in things:
            self.holdings.drop(thing)
        return outputs

    def _code(self, path: Path, branch: int, body: Body, is_read: Sequence[bool] | None) -> Code:
        key = path, branch
        if key not in self._codes:
            self._codes[key] = code_of(body, self.plans.get(key, Plan()), is_read)
        return self._codes[key]

    def _branch(self, caller: Node, which: Thing, count: int, path: Path) -> int:
        """The branch that is taken; the same wherever the same tensor decides."""
        known = number(which)
        if known is not None:
            # The functions of an If are named in the order true, false.
            return int(not known) if caller.op.endswith("If") else min(max(known, 0), count - 1)
        if not isinstance(which, Tensor) or which.buffer < 0:
            return self.choose(path, count)
        if which.buffer not in self._chosen:
            self._chosen[which.buffer] = min(self.choose(path, count), count - 1)
        return min(self._chosen[which.buffer], count - 1)

    def _loop(self, codes: Sequence[Code], things: list[Thing], path: Path) -> list[Thing]:
        condition, body = codes
        holdings, turns = self.holdings, Turns(self.holdings)
        first = numbers(things)
        left = turns_of(condition.numbers, body.numbers, first)
        begun = first if isinstance(left, Bounded) else ()
        while True:
            for thing in things:
                holdings.hold(thing)
            (found,) = self.run(condition, things, (*path, "0"))
            holdings.drop(found)
            kept = turns.kept() if left is None else None
            if left == 0 or kept is not None:
                turns.end()
                if kept is not None and kept > 0:
                    self.unbounded[path] = kept
                return _spanned(things, begun)
            if left is not None and turns.is_steady(things):
                return _spanned(self._count_on(body, things, left), begun)
            left = None if left is None else left - 1
            turns.begin(things)
            if self.runs > MOST_RUNS:
                raise UnsupportedFunctionError(
                    f"the loop {path[-1]} turns so often, and keeps memory each time, that it is "
                    "not followed to its end; keep less for its gradient, or let it turn fewer "
                    "times",
                    path[0],
                )
            things = self.run(body, things, (*path, "1"))

    def _count_on(self, body: Code, things: list[Thing], turns: int) -> list[Thing]:
        """What a loop's variables are after some more turns, each of which keeps nothing."""
        found = numbers(things)
        for _ in range(turns):
            found = body.numbers.run(found)
        return [
            Tensor(one.buffer, number) if isinstance(one, Tensor) else one
            for one, number in zip(things, found, strict=True)
        ]


def _spanned(things: list[Thing], begun: Sequence[Number]) -> list[Thing]:
    """A loop's variables after its last turn, where it may have had fewer.

    Args:
      things: the variables.
      begun: the numbers that it began with; none if the number of its turns is known.
    """
    if not begun:
        return things
    found: list[Thing] = []
    for thing, first in zip(things, begun, strict=True):
        last = most(thing)
        if isinstance(thing, Tensor) and last is not None:
            thing = Tensor(thing.buffer, None if first is None else spanning([first, last]))
        found.append(thing)
    return found


class Frame(Liveness):
    """One run of one function: the replay of its program, with a thing in each buffer."""

    def __init__(self, machine: Machine, code: Code, path: Path) -> None:
        super().__init__(code.program, machine.holdings.granularity, 1)
        self.machine, self.holdings, self.code, self.path = machine, machine.holdings, code, path
        self.things: list[Thing] = []  # by buffer
        self.shared = _Shared(self)

    def thing(self, value: int) -> Thing:
        """What a value is."""
        buffer = self.buffer[value]
        return self.things[buffer] if buffer >= 0 else None

    # What the replay does, with things.

    def make(self, value: int, references: int, host: bool) -> int:
        """A fresh buffer with a tensor in it."""
        return self.put(value, Tensor(self.holdings.make(self.sizes[value])), references)

    def put(self, value: int, thing: Thing, references: int) -> int:
        """A fresh buffer with a thing in it, which it takes over."""
        buffer = super().make(value, references, False)
        self.things.append(thing)
        return buffer

    def release(self, buffer: int) -> None:
        """One reference less."""
        super().release(buffer)
        self._settle(buffer)

    def _settle(self, buffer: int) -> None:
        if self.refs[buffer] <= 0 and (thing := self.things[buffer]) is not None:
            self.things[buffer] = None
            self.holdings.drop(thing)

    def _assign(self, node: int, buffer: int, host: bool) -> None:
        thing, is_adopted = self.things[buffer], not self.program.is_rewritten
        if is_adopted and isinstance(thing, Tensor) and thing.buffer >= 0:
            self.holdings.adopt(thing.buffer)
        super()._assign(node, buffer, host)

    # Nodes.

    def bind(self, things: Sequence[Thing]) -> None:
        """Gives the function's inputs their things, which they take over."""
        given = [n for n, node in enumerate(self.code.nodes) if node.is_input]
        for node, thing in zip(given, things, strict=True):
            if self.code.nodes[node].op == VARIABLE:
                self.run(node, False)
                self.holdings.drop(thing)
                continue
            value = self.graph.first[node]
            self.buffer[value] = self.put(value, thing, self.uses[value])
            self._settle(self.buffer[value])

    def run_all(self) -> list[Thing]:
        """Runs all nodes; what the function returns, held for the caller."""
        machine, order = self.machine, self.program.order
        machine.observer.begin(self, self.path)
        machine.runs += len(order)
        for node in order:
            self._run(node)
        outputs = self.code.outputs
        things = [None if value is None else self.thing(value) for value in outputs]
        for thing in things:
            self.holdings.hold(thing)
        for buffer, thing in enumerate(self.things):
            self.things[buffer] = None
            self.holdings.drop(thing)
        machine.observer.end(self, self.path)
        return things

    def _run(self, node: int) -> None:
        code, form, op = self.code, self.graph, self.code.nodes[node].op
        name, reads = form.priced[node], form.reads[node]
        if name in code.body.bodies:
            self._call(node, code.body.bodies[name])
        elif op in lists.OPS or (op in lists.ELEMENTWISE and self._has_lists(node)):
            self._list_op(node)
        elif op == "Const":
            self._constant(node)
        else:
            self._kernel(node)
        for value in reads:
            self._settle(self.buffer[value])

    def _kernel(self, node: int) -> None:
        """Runs a node's kernel, which holds some buffers only meanwhile."""
        form = self.graph
        before, after = around_outputs(self._held(node))
        held = [self.holdings.make(nbytes) for nbytes in before]
        self.run(node, False)
        self._count(node)
        self.machine.observer.made(self, node)
        for value in range(form.first[node], form.first[node + 1]):
            if self.buffer[value] >= 0:
                self._settle(self.buffer[value])
        held += [self.holdings.make(nbytes) for nbytes in after]
        for one in held:
            self.holdings.drop(Tensor(one))

    def _held(self, node: int) -> Sequence[int]:
        """Bytes of the buffers that a kernel holds beside its outputs, with a 0 where these are."""
        sizes = held_by(self.code.body, self.graph.priced[node])
        lent = self.graph.lent.get(node)
        if lent is None:
            return sizes
        buffer = self.buffer[lent]
        is_last = self.refs[buffer] == 1 and buffer not in self.shared
        return sizes[1:] if is_last else sizes

    def _count(self, node: int) -> None:
        """Finds out the number that a node gives, if it gives one."""
        form, name = self.graph, self.graph.priced[node]
        first = form.first[node]
        if form.first[node + 1] - first != 1 or form.nbytes[first] > SCALAR_BYTES:
            return
        thing = self.thing(first)
        if isinstance(thing, Tensor) and form.kind[node] == PLAIN:
            found = self.code.body.numbers.get(name)
            if found is None:
                given = numbers([self.thing(value) for value in self.code.inputs[node]])
                found = number_of(self.code.nodes[node].op, given)
            self.things[self.buffer[first]] = Tensor(thing.buffer, found)

    def _constant(self, node: int) -> None:
        """A constant of a function is made when it is first needed, and stays."""
        form, made = self.graph, self.machine.constants
        name, value = form.priced[node], form.first[node]
        if (self.path, name) not in made:
            tensor = Tensor(self.holdings.make(self.sizes[value]), self.code.body.numbers.get(name))
            made[self.path, name] = tensor
            self.holdings.lasting.add(tensor.buffer)
        self.holdings.hold(made[self.path, name])
        self.buffer[value] = self.put(value, made[self.path, name], self.uses[value])
        self.machine.observer.made(self, node)
        self._settle(self.buffer[value])

    def _has_lists(self, node: int) -> bool:
        return any(isinstance(self.thing(value), List) for value in self.code.inputs[node])

    def _list_op(self, node: int) -> None:
        form, op, given = self.graph, self.code.nodes[node].op, self.code.inputs[node]
        values = range(form.first[node], form.first[node + 1])
        first = self.buffer[given[0]] if given else -1
        call = lists.Call(
            self.holdings,
            [self.thing(value) for value in given],
            first >= 0
            and self.refs[first] == 1
            and not self.holdings.is_shared(self.things[first]),
            [form.nbytes[value] for value in given],
            [form.nbytes[value] for value in values],
            self.code.body.numbers.get(form.priced[node]),
        )
        self._give(node, lists.OPS.get(op, lists.elementwise)(call))

    def _call(self, node: int, bodies: Sequence[Body]) -> None:
        """Runs functions; what the node is the last to read belongs to them."""
        things = [self.thing(value) for value in self.code.inputs[node]]
        for thing in things:
            self.holdings.hold(thing)
        for value in self.graph.reads[node]:
            self.release(self.buffer[value])
        self.machine.observer.call(self, node, things)
        caller, first = self.code.nodes[node], self.graph.first[node]
        is_read = [self.uses[value] > 0 for value in range(first, self.graph.first[node + 1])]
        path = (*self.path, caller.name)
        outputs = self.machine.call(caller, bodies, things, path, is_read)
        self._give(node, outputs, has_read=True)

    def _give(self, node: int, things: Sequence[Thing], *, has_read: bool = False) -> None:
        """Gives a node's outputs their things, which they take over; its inputs are let go."""
        form = self.graph
        for value, thing in enumerate(things, form.first[node]):
            self.buffer[value] = self.put(value, thing, self.uses[value])
        self.machine.observer.linked(self, node, things)
        for value in range(form.first[node], form.first[node] + len(things)):
            self._settle(self.buffer[value])
        for value in () if has_read else form.reads[node]:
            self.refs[self.buffer[value]] -= 1


class _Shared:
    """The buffers of a frame that somebody outside of it holds, too."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def __contains__(self, buffer: object) -> bool:
        things = self.frame.things
        return isinstance(buffer, int) and self.frame.holdings.is_shared(things[buffer])
