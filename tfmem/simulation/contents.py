"""What lists and optionals refer to, found by running a function and the loops and branches in it.

The graphs that come out say of each node which memory its outputs refer to (`Node.stashes`, `holds`
and `same`), so that liveness and planning know how long that lives; the bodies say what they are
given.

    while = While(i:0, x:0, list:0)         the body pushes each y = Tanh(x @ w) on the list
    while_grad = StatelessWhile(..., while:2)

For 20 turns, `while:2` refers to 19 buffers that only the loop has seen, a stash of `while`, and to
`while:1`, the last of them. Both live until `while_grad` ends.

A body is described as it is in its second turn: the first may still have what the caller gave, from
then on turns are alike. What one turn pops off a list and is the last to read is a stash of the
body's input: it is there as the turn begins, and dies in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfmem.costs.types import GRAIN
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph.bodies import STACKING_OPS, Argument, Bodies, Body, Items, Leaf
from tfmem.graph.ir import Graph
from tfmem.plan import Plan
from tfmem.simulation import lists
from tfmem.simulation.code import code_of
from tfmem.simulation.holdings import Holdings, List, Tensor
from tfmem.simulation.machine import Frame, Machine, Observer, Path
from tfmem.simulation.recorder import Recorder
from tfmem.units import format_bytes


def studied(top: Body, granularity: int) -> Body:
    """A function whose graphs and bodies say what lists and optionals refer to.

    Where nothing tells which branch is taken, the function is run with each: that with the largest
    peak is what is described, and of the branches that it does not take what the others show.

    Args:
      top: the function; its inputs stay with its caller.
      granularity: every buffer takes a multiple of this many bytes.

    Raises:
      UnsupportedFunctionError: a loop keeps memory in each turn, and nothing bounds how many.
    """
    if not top.bodies and not any(node.op in lists.OPS for node in top.graph.nodes):
        return top
    runs = [_described(top, granularity, choice) for choice in range(_most_branches(top.bodies))]
    runs.sort(key=lambda run: run[0], reverse=True)
    return _merged(top, (), [records for _, records in runs])


def lengths(top: Body) -> dict[tuple[Path, str], int]:
    """How many elements lists have at most where a function, or one that it runs, stacks them.

    By the path of the function, and node. A loop that nothing bounds has few turns here.
    """
    reader = _Reader()
    for choice in range(_most_branches(top.bodies)):
        _run(top, Holdings(GRAIN), choice, reader)
    return reader.found


class _Reader(Observer):
    """Looks at lists of which tensors are made."""

    def __init__(self) -> None:
        self.found: dict[tuple[Path, str], int] = {}

    def made(self, frame: Frame, node: int) -> None:
        """A node has made new tensors."""
        one = frame.code.nodes[node]
        if one.op in STACKING_OPS:
            key, thing = (frame.path, one.name), frame.thing(frame.code.inputs[node][0])
            if isinstance(thing, List):
                self.found[key] = max(len(thing.items), self.found.get(key, 0))


Records = Mapping[Path, Body]


def _most_branches(bodies: Bodies) -> int:
    """The most functions that any node chooses from; 1 if none does."""
    counts = [1]
    for functions in bodies.values():
        counts += [len(functions), *(_most_branches(one.bodies) for one in functions)]
    return max(counts)


def _described(top: Body, granularity: int, choice: int) -> tuple[int, Records]:
    """Runs a function once; its peak, and what was seen of each function in it."""
    holdings = Holdings(granularity)
    recorder = Recorder(holdings)
    machine = _run(top, holdings, choice, recorder)
    if machine.unbounded:
        raise _refusal(machine.unbounded)
    now = most = 0
    for buffer, nbytes in holdings.events:
        now += nbytes if nbytes > 0 else -holdings.sizes[buffer]
        most = max(most, now)
    return most, recorder.records


def _run(top: Body, holdings: Holdings, choice: int, observer: Observer) -> Machine:
    """Runs a function once, with the same choice wherever nothing tells which branch is taken."""
    machine = Machine(holdings, lambda path, count: min(choice, count - 1), observer)
    given = [node for node in top.graph.nodes if node.is_input]
    things = [Tensor(holdings.make(node.nbytes[0])) for node in given]
    for thing in things:
        holdings.hold(thing)  # they stay with the caller
    machine.run(code_of(top, Plan()), things, ())
    return machine


def _refusal(kept: Mapping[Path, int]) -> UnsupportedFunctionError:
    (path, nbytes), *others = sorted(kept.items(), key=lambda item: (-item[1], item[0]))
    more = f" (and {len(others)} more loops)" if others else ""
    return UnsupportedFunctionError(
        f"the loop {path[-1]} keeps {format_bytes(nbytes)} in each of its turns{more}, and nothing "
        "tells before the step runs how many there are at most; pass maximum_iterations to "
        "tf.while_loop, or loop over a range whose length does not depend on data",
        path[0],
    )


def _merged(body: Body, path: Path, runs: Sequence[Records]) -> Body:
    """A function as the first of some runs that ran it shows it, and so all that it runs."""
    seen = [records[path] for records in runs if path in records]
    if not seen:
        return body
    bodies = {}
    for name, functions in body.bodies.items():
        made = []
        for branch, function in enumerate(functions):
            inner = (*path, name, str(branch))
            by = next((r for r in runs if path in r and inner in r), None)
            arguments = by[path].bodies[name][branch].arguments if by else None
            if by is not None and by[path] is not seen[0] and arguments is not None:
                unnamed = _Unnamed(seen[0].graph)
                arguments = tuple(map(unnamed.argument, arguments))
            found = _merged(function, inner, [by] if by else [])
            made.append(replace(found, arguments=arguments))
        bodies[name] = tuple(made)
    return replace(body, graph=seen[0].graph, bodies=bodies)


class _Unnamed:
    """Takes the names from stashes of another run than the one that describes a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers: dict[tuple[str, int], int] = {}

    def argument(self, one: Argument) -> Argument:
        """What is given, with a number in the place of each stash's name."""
        if isinstance(one, Items):
            return Items(self._leaf(one.handle), tuple(map(self.argument, one.items)))
        return None if one is None else self._leaf(one)

    def _leaf(self, one: Leaf) -> Leaf:
        if not one.node or one.index < len(self.graph.by_name[one.node].nbytes):
            return one
        stash = self.numbers.setdefault((one.node, one.index), len(self.numbers))
        return Leaf("", stash, one.part, one.nbytes, one.is_kept, one.number)
