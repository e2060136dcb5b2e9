"""A plan applied to a graph: the steps of the device, those of the host, and the copies between.

This is a plan in the form in which `liveness` and `simulate` replay it; nothing is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfmem.errors import Error
from tfmem.graph.clones import with_clones
from tfmem.graph.compact import HANDLE, Compact
from tfmem.graph.device_names import share_process
from tfmem.graph.ir import Graph, Value
from tfmem.graph.topology import Countdown, first_ready_first
from tfmem.plan import Plan, Transfer, moved_with


@dataclass(slots=True)
class Copy:
    """One crossing between the tiers.

    Attributes:
      source: number of the value that is copied.
      made: number of the value it arrives as.
      to_host: its direction.
      pace: position of the device node that waits for it to land; -1 if none does.
    """

    source: int
    made: int
    to_host: bool
    pace: int = -1


@dataclass(slots=True)
class Program:
    """A plan applied to a graph: the steps of the device, of the host and the copies, in order.

    Steps below `len(graph)` are the graph's nodes, those above are `copies`; values likewise.

    Attributes:
      graph: the graph as integers.
      order: the nodes that run on the device.
      sequence: every step; host nodes and copies stand as early as they may run.
      on_host: for each step, whether what it makes lives on the host.
      copies: the crossings.
      reads: values that a step reads, where the plan changed them.
      uses: how many times each value is read.
      nbytes: exact size of each value.
      waits: steps of the host and copies that a step waits for.
      is_rewritten: whether the graph is rewritten by the plan, or TensorFlow runs the original.
      sent: values that are sent to another process. Network cards are to read their buffers, which
        TensorFlow therefore does not take over from what was not made for them.
    """

    graph: Compact
    order: list[int]
    sequence: list[int]
    on_host: list[bool]
    copies: list[Copy]
    reads: dict[int, tuple[int, ...]]
    uses: list[int]
    nbytes: list[int]
    waits: dict[int, list[int]]
    is_rewritten: bool
    sent: set[int]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes that run on the device, in order."""
        return tuple(self.graph.names[node] for node in self.order)

    def value(self, number: int) -> Value:
        """The graph's value behind a number, seen through copies."""
        while number >= len(self.graph.nbytes):
            number = self.copies[number - len(self.graph.nbytes)].source
        return self.graph.value(number)


def program(graph: Graph, plan: Plan) -> Program:
    """Applies a plan to a graph.

    Nodes of the plan's order that do not run on the device are passed over. A plan without an order
    gets the executor's queue, or with transfers, whose triggers need one, the graph's own order.

    Raises:
      Error: the plan names what the graph does not have, its order is not a topological order of
        the device's nodes, or a copy is used before it can have arrived.
    """
    return _Builder(graph, plan).build()


class _Builder:
    """Collects what a plan changes about a graph: copies, who reads them, who waits for them."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        graph = with_clones(graph, plan.recomputations)
        self.graph, self.plan = graph.form, plan
        moved = moved_with(plan.placements) | {one.variable for one in plan.placements}
        for name in moved:
            self._node(name, "placement")
        near = {"", plan.device}
        self.on_host = [
            node.name in moved or bool(plan.device and node.device not in near)
            for node in graph.nodes
        ]
        self.order: list[int] = self._order()
        self.position = {node: i for i, node in enumerate(self.order)}
        self.copies: list[Copy] = []
        self.reads: dict[int, tuple[int, ...]] = {}
        self.waits: dict[int, list[int]] = {}
        self.uses, self.nbytes = self.graph.uses, self.graph.nbytes
        self.devices = [plan.host if node.name in moved else node.device for node in graph.nodes]
        self.sent: set[int] = set()

    def build(self) -> Program:
        graph = self.graph
        if any(self.on_host) or self.plan.transfers:
            self.uses, self.nbytes = list(self.uses), list(self.nbytes)
            self._add_transfers()
            self._add_crossings()
        return Program(
            graph, self.order, self._sequence(), self.on_host, self.copies, self.reads, self.uses,
            self.nbytes, self.waits, not self.plan.is_noop, self.sent,
        )  # fmt: skip

    def _node(self, name: str, what: str) -> int:
        number = self.graph.number.get(name)
        if number is None:
            raise Error(f"{what}: the graph has no node {name}; plan for the captured graph")
        return number

    def _order(self) -> list[int]:
        graph, plan = self.graph, self.plan
        runs = [
            not host and not given for host, given in zip(self.on_host, graph.is_input, strict=True)
        ]
        if not plan.order:
            order = list(range(len(runs)))
            if not plan.transfers:
                order = first_ready_first(graph.predecessors, graph.successors)
            return [node for node in order if runs[node]]
        named = [self._node(name, "order") for name in plan.order]
        order = [node for node in named if runs[node]]
        if len(set(order)) != len(order):
            raise Error("order: a node comes twice; name each node once")
        if len(order) != sum(runs):
            missing = min({node for node, here in enumerate(runs) if here} - set(order))
            raise Error(
                f"order: node {graph.names[missing]} runs on the device but is not there; "
                "order every node of the device"
            )
        return order

    # Transfers of the plan.

    def _add_transfers(self) -> None:
        for transfer in self.plan.transfers:
            source = self.graph.number_of(transfer.value)
            producer = self.graph.producer[source]
            if self.graph.kind[producer] == HANDLE:
                raise Error(f"transfer: {transfer.value} is a variable's handle; name its read")
            if not self.on_host[producer]:
                source = self._send(source, transfer)
            for fetch in transfer.fetches:
                users = [self._node(user, f"fetch of {transfer.value}") for user in fetch.users]
                trigger = self._node(fetch.trigger, "trigger") if fetch.trigger else -1
                self._fetch(source, self.graph.number_of(transfer.value), users, trigger)

    def _send(self, source: int, transfer: Transfer) -> int:
        made = self._copy(source, self.plan.host)
        step = len(self.on_host) - 1
        for reader in self.graph.successors[self.graph.producer[source]]:
            if self.on_host[reader]:
                self._rewire(reader, source, made, step)
        if transfer.pace:
            pace = self._node(transfer.pace, f"pace of {transfer.value}")
            if pace not in self.position:
                raise Error(f"pace of {transfer.value}: {transfer.pace} is not on the device")
            self.copies[-1].pace = self.position[pace]
            self.waits.setdefault(pace, []).append(step)
        return made

    def _fetch(self, source: int, original: int, users: Sequence[int], trigger: int) -> None:
        made = self._copy(source)
        step = len(self.on_host) - 1
        if trigger >= 0:
            self.waits[step].append(trigger)
        for user in users:
            if not self._rewire(user, original, made, step):
                value, name = self.graph.value(original), self.graph.names[user]
                raise Error(f"fetch of {value}: {name} does not read it, or has another copy of it")
        for reader in self._behind(users, original):
            self._rewire(reader, original, made, step)

    def _behind(self, users: Sequence[int], value: int) -> Iterator[int]:
        """Nodes that read a value through its users, which pass it on, or through one another."""
        if value not in self.graph.pinned:
            return
        passing, maker = set(users), self.graph.producer[value]
        for node, reads in enumerate(self.graph.reads):
            before = self.graph.predecessors[node]
            if value in reads and maker not in before and not passing.isdisjoint(before):
                passing.add(node)
                yield node

    def _copy(self, source: int, host: str = "") -> int:
        """A copy to a host, or from there to the device."""
        made, to_host = len(self.nbytes), bool(host)
        if to_host and not share_process(host, self.plan.device):
            self.sent.add(source)
        self.copies.append(Copy(source, made, to_host))
        self.waits[len(self.on_host)] = [self._maker(source)]
        self.nbytes.append(self.nbytes[source])
        self.on_host.append(to_host)
        self.uses.append(0)
        self.uses[source] += 1
        return made

    def _maker(self, value: int) -> int:
        beyond = value - len(self.graph.nbytes)
        return self.graph.producer[value] if beyond < 0 else len(self.graph.names) + beyond

    def _rewire(self, user: int, old: int, new: int, step: int) -> bool:
        reads = self.reads.get(user, self.graph.reads[user])
        count = reads.count(old)
        if count:
            self.reads[user] = tuple(new if value == old else value for value in reads)
            self.uses[old] -= count
            self.uses[new] += count
            self.waits.setdefault(user, []).append(step)
        return bool(count)

    def _add_crossings(self) -> None:
        """One copy for each value that crosses although the plan says nothing of it."""
        made: dict[tuple[int, bool], tuple[int, int]] = {}
        known = len(self.graph.nbytes)
        for node, host in enumerate(self.on_host[: len(self.graph.names)]):
            for value in dict.fromkeys(self.reads.get(node, self.graph.reads[node])):
                if value >= known or self.on_host[self.graph.producer[value]] == host:
                    continue
                if (value, host) not in made:
                    there = self.devices[node] if host else ""
                    made[value, host] = (self._copy(value, there), len(self.on_host) - 1)
                self._rewire(node, value, *made[value, host])
            self._check_variables(node, host)
            before = self.graph.predecessors[node]
            awaited = [other for other in before if host or self.on_host[other]]
            if awaited:
                self.waits.setdefault(node, []).extend(awaited)

    def _check_variables(self, node: int, host: bool) -> None:
        for variable in self.graph.variables[node]:
            holder = self.graph.variable_nodes[variable]
            if self.on_host[holder] != host:
                raise Error(
                    f"node {self.graph.names[node]} is not on the device of its variable "
                    f"{self.graph.names[holder]}; move both or neither"
                )

    # The sequence of all steps.

    def _sequence(self) -> list[int]:
        graph = self.graph
        steps = len(self.on_host)
        count = len(graph.names)
        left = [len(before) for before in graph.predecessors] + [0] * (steps - count)
        followers: dict[int, list[int]] = {}
        for step, awaited in self.waits.items():
            before = graph.predecessors[step] if step < count else ()
            for other in dict.fromkeys(awaited):
                if other not in before:
                    left[step] += 1
                    followers.setdefault(other, []).append(step)
        after = [graph.successors[step] if step < count else [] for step in range(steps)]
        for step, more in followers.items():
            after[step] = [*after[step], *more]
        countdown = Countdown(left, after)
        eager = [
            step >= count or self.on_host[step] or graph.is_input[step] for step in range(steps)
        ]
        sequence: list[int] = []
        todo = deque(step for step in countdown.ready() if eager[step])
        order = iter(self.order)
        node = -1
        while todo or (node := next(order, -1)) >= 0:
            step = todo.popleft() if todo else node
            if countdown.left[step]:
                raise self._too_early(step, sequence)
            sequence.append(step)
            todo.extend(follower for follower in countdown.take(step) if eager[follower])
        if len(sequence) != steps:
            missing = min(set(range(steps)) - set(sequence))
            raise Error(f"{self._name(missing)} can never run; its inputs wait for it")
        return sequence

    def _too_early(self, step: int, sequence: Iterable[int]) -> Error:
        done = set(sequence)
        before = (*self.graph.predecessors[step], *self.waits.get(step, ()))
        missing = next(other for other in before if other not in done)
        return Error(
            f"order: {self._name(step)} stands before {self._name(missing)}, which it waits for; "
            "order the nodes topologically, and trigger each copy before its users"
        )

    def _name(self, step: int) -> str:
        if step < len(self.graph.names):
            return f"node {self.graph.names[step]}"
        source = self.copies[step - len(self.graph.names)].source
        while source >= len(self.graph.nbytes):
            source = self.copies[source - len(self.graph.nbytes)].source
        return f"the copy of {self.graph.value(source)}"
