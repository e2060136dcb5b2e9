"""What nodes that run functions (loops, branches, calls) take of the device."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tfmem.costs.static import static_costs
from tfmem.costs.types import Asked, Costs, Place
from tfmem.graph.bodies import BRANCHES, LOOPS, Argument, Bodies, Body, Items, Leaf
from tfmem.graph.ir import VARIABLE, Graph, Node, Value
from tfmem.plan import Plan
from tfmem.simulation.holdings import NOWHERE, Holdings, List, Tensor, Thing, reached
from tfmem.simulation.liveness import lifetimes
from tfmem.simulation.machine import Machine, Path
from tfmem.simulation.program import program
from tfmem.simulation.requests import ending, most_of

Plans = Mapping[tuple[str, int], Plan]
"""Plans of functions, by the node that runs them and their number there."""


def with_bodies(costs: Costs, graph: Graph, bodies: Bodies) -> Costs:
    """Costs in which callers take what their bodies, run as they are, ask for; from sizes.

    Args:
      costs: of the graph's own nodes.
      graph: whose nodes run the bodies.
      bodies: of each node; of several the largest counts.
    """
    return with_requests(costs, graph, bodies, {})


def body_costs(body: Body, device: str) -> Costs:
    """Costs, from sizes, of the nodes of a function that a loop or branch runs."""
    made = static_costs(
        body.graph,
        flops=body.flops,
        workspace=body.workspace,
        buffers=body.buffers,
        device=device,
    )
    return with_bodies(made, body.graph, body.bodies)


def with_requests(costs: Costs, graph: Graph, bodies: Bodies, plans: Plans) -> Costs:
    """Costs in which callers take what their bodies, planned or not, ask for."""
    asked, workspace, choices = {}, {}, {}
    for name, functions in bodies.items():
        if functions and name in graph.by_name:
            asked[name] = asked_of(graph, name, functions, costs.granularity, plans)
            if graph.by_name[name].op in BRANCHES:
                choices[name] = len(functions)
    last = _last_readers(graph, costs, asked)
    for name, one in asked.items():
        node = graph.form.number[name]
        values = graph.form.nbytes[graph.form.first[node] : graph.form.first[node + 1]]
        workspace[name] = most_of(one, last[name]) - sum(map(costs.allocated, values))

    @functools.cache
    def asking(name: str, kept: frozenset[Place], branch: int | None) -> Asked:
        if name in asked:
            return asked_of(graph, name, bodies[name], costs.granularity, plans, branch, kept)
        return costs.asking(name, kept, branch) if costs.asking else costs.requests[name]

    return replace(
        costs,
        workspace={**costs.workspace, **workspace},
        requests={**costs.requests, **asked},
        choices={**costs.choices, **choices},
        once=costs.once | {name for name in asked if graph.by_name[name].op not in LOOPS},
        asking=asking,
    )


def _last_readers(
    graph: Graph, costs: Costs, asked: Mapping[str, Asked]
) -> dict[str, frozenset[int]]:
    """What of its inputs each caller is the last to read, in the order of the executor's queue."""
    if not asked:
        return {}
    found = lifetimes(program(graph, Plan()), costs.granularity)
    return {
        name: ending(asked[name], found, position)
        for position, name in enumerate(found.program.names)
        if name in asked
    }


def asked_of(
    graph: Graph,
    name: str,
    functions: Sequence[Body],
    granularity: int,
    plans: Plans,
    branch: int | None = None,
    kept: frozenset[Place] = frozenset(),
) -> Asked:
    """What the functions of a node ask for; of branches, that which takes most.

    Args:
      graph: the node's.
      name: of the node.
      functions: which it runs.
      granularity: every buffer takes a multiple of this many bytes.
      plans: of the functions.
      branch: the one that is meant, where the node chooses.
      kept: what others hold too of what the functions are given.
    """
    caller = graph.by_name[name]
    flat = dict(_by_path(functions, plans, name, ()))
    run = functools.partial(_Run, graph, caller, functions, granularity, flat, kept)
    if caller.op not in BRANCHES:
        return run().asked(0)
    if branch is not None:
        return run(branch).asked(branch, is_exact=True)
    found = [run(one).asked(one) for one in range(len(functions))]
    return max(found, key=lambda one: most_of(one, frozenset(n for n, *_ in one.given)))


def _by_path(
    functions: Sequence[Body], plans: Plans, name: str, outer: Path
) -> Iterator[tuple[tuple[Path, int], Plan]]:
    """Plans of functions and of what these run, as the machine names them."""
    path = (*outer, name)
    for branch, body in enumerate(functions):
        plan = plans.get((name, branch))
        if plan is None:
            continue
        yield (path, branch), plan
        inner = {(one.node, one.branch): one.plan for one in plan.bodies}
        for caller, bodies in body.bodies.items():
            yield from _by_path(bodies, inner, caller, (*path, str(branch)))


def _constants(functions: Sequence[Body], granularity: int) -> Iterator[int]:
    """Bytes of each constant of functions, and of what these run.

    All are made in the first step, those of branches that are not taken, too: TensorFlow puts what
    branches run into the graph around them.
    """
    for body in functions:
        for node in body.graph.nodes:
            if node.op == "Const":
                yield from (-(-nbytes // granularity) * granularity for nbytes in node.nbytes)
        for inner in body.bodies.values():
            yield from _constants(inner, granularity)


class _Run:
    """One run of a node's functions on what `contents` says that they are given."""

    def __init__(
        self,
        graph: Graph,
        caller: Node,
        functions: Sequence[Body],
        granularity: int,
        plans: Mapping[tuple[Path, int], Plan],
        kept: frozenset[Place],
        branch: int = 0,
    ) -> None:
        self.graph, self.caller, self.functions, self.kept = graph, caller, functions, kept
        self.holdings = Holdings(granularity)
        self.machine = Machine(
            self.holdings, lambda path, count: min(branch, count - 1), plans=plans
        )
        self.places: dict[Place, int] = {}

    def asked(self, branch: int, is_exact: bool = False) -> Asked:
        """What the functions ask for, a branch with the inputs that it is run with.

        If exact, what it leaves is in parts of the node's stashes, be they another branch's.
        """
        caller, holdings = self.caller, self.holdings
        arguments = self.functions[branch].arguments
        if arguments is None:
            arguments = tuple(
                Leaf(value.node, value.index, is_kept=True) for value in caller.inputs
            )
        things = [self._thing(one) for one in arguments]
        if caller.op in BRANCHES and isinstance(which := things[0], Tensor):
            # Which one was taken when it was looked at does not matter: this one is.
            number = int(not branch) if caller.op.endswith("If") else branch
            things[0] = Tensor(which.buffer, number)
        before = len(holdings.refs)
        holdings.events[:] = self._instead(branch)
        form = self.graph.form
        node = form.number[caller.name]
        is_read = [form.uses[form.first[node] + i] > 0 for i in range(len(caller.nbytes))]
        outputs = self.machine.call(caller, self.functions, things, (caller.name,), is_read)
        made = tuple(self._made(outputs, before, is_exact))
        stays = holdings.lasting - {NOWHERE}
        for constant in self.machine.constants.values():
            holdings.drop(constant)
        return Asked(
            tuple(event for event in holdings.events if event[0] not in stays),
            made,
            tuple(
                (one, *place, holdings.sizes[one]) for place, one in self.places.items() if place[0]
            ),
            tuple(_constants(self.functions, holdings.granularity)),
            is_exact,
        )

    def _instead(self, branch: int) -> list[tuple[int, int]]:
        """Makes stashes of a branch that is described apart, in the place of those that are there.

        What the graph around it says that a branch is given may be what another branch of an
        earlier node left: of the two, only one is ever there.
        """
        unnamed = [one for place, one in self.places.items() if not place[0]]
        if not unnamed:
            return []
        events = []
        for body in self.functions:
            for leaf in _leaves(body.arguments or ()):
                place = leaf.node, leaf.index, leaf.part
                if self._is_stash(leaf) and place not in self.places:
                    self.places[place] = self.holdings.make(leaf.nbytes)
                    events.append((self.places[place], 0))
        return events + [(one, self.holdings.sizes[one]) for one in unnamed]

    def _kept(self, value: Value) -> Leaf:
        """An input of which nothing is known but its size."""
        nbytes = self.graph.nbytes(value) if self.graph.by_name[value.node].op != VARIABLE else 0
        return Leaf(*value, nbytes=nbytes, is_kept=True)

    def _is_stash(self, leaf: Leaf) -> bool:
        if not leaf.node or not leaf.nbytes:
            return False
        return leaf.index >= len(self.graph.by_name[leaf.node].nbytes)

    def _thing(self, argument: Argument) -> Thing:
        """What is given, held for the functions, and by others where these need it, too."""
        if isinstance(argument, Items):
            handle = self._thing(argument.handle)
            made = List(handle.buffer if handle else NOWHERE, map(self._thing, argument.items))
            made.refs += argument.handle.is_kept
            return made
        if argument is None:
            return None
        place = argument.node, argument.index, argument.part
        if not argument.nbytes:
            return Tensor(NOWHERE, argument.number)
        if place in self.places:
            self.holdings.hold(Tensor(self.places[place]))
        else:
            self.places[place] = self.holdings.make(argument.nbytes)
            if argument.is_kept or place in self.kept:
                self.holdings.hold(Tensor(self.places[place]))
        return Tensor(self.places[place], argument.number)

    def _is_made(self, buffer: int, before: int) -> bool:
        return buffer >= before and buffer not in self.holdings.lasting

    def _made(
        self, outputs: Sequence[Thing], before: int, is_exact: bool
    ) -> Iterator[tuple[int, int, int]]:
        """What new buffers are afterwards: outputs of the node, parts of its stashes."""
        named: dict[int, tuple[int, int]] = {}
        for index, thing in enumerate(outputs):
            if thing is not None and self._is_made(thing.buffer, before):
                named.setdefault(thing.buffer, (index, 0))
        holders: dict[int, set[int]] = {}
        for index, thing in enumerate(outputs):
            for one in reached(thing.items) if isinstance(thing, List) else ():
                if self._is_made(one, before) and (is_exact or one not in named):
                    holders.setdefault(one, set()).add(index)
        free: list[tuple[tuple[int, ...], int, int]] = [
            (() if is_exact else stash.outputs, index, part)
            for index, stash in enumerate(self.caller.stashes, len(self.caller.nbytes))
            for part in range(sum(number for _, number in stash.parts))
        ]
        places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for by, index, part in reversed(free):
            places.setdefault(by, []).append((index, part))
        for one, indices in sorted(holders.items()):
            held_by = () if is_exact else tuple(sorted(indices))
            if left := places.get(held_by):
                named[self._apart(one) if one in named else one] = left.pop()
        yield from ((one, *place) for one, place in named.items())

    def _apart(self, buffer: int) -> int:
        """A buffer more, for one that is given out and kept: nothing takes that over."""
        return self.holdings.make(self.holdings.sizes[buffer])


def _leaves(arguments: Iterable[Argument]) -> Iterator[Leaf]:
    """The tensors in what is given."""
    for one in arguments:
        if isinstance(one, Items):
            yield one.handle
            yield from _leaves(one.items)
        elif one is not None:
            yield one
