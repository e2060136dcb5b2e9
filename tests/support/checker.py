"""An independent judge of plans: runs an order event by event and counts the bytes.

It shares no code with `tfmem.simulation` and `tfmem.graph.ops`: tensors here are objects with a
list of those who hold them, as in a runtime, and it has its own small tables of ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tfmem.graph.ir import Graph, Node, Value
from tfmem.plan import Plan

VIEWS = {"Reshape", "Identity"}
IN_PLACE = {"Relu": (0,), "AddV2": (0, 1)}


class ReadWhileAway(AssertionError):
    """A node read a value that was not on the device."""


@dataclass(eq=False)
class Storage:
    """Bytes on the device and who holds them."""

    nbytes: int
    holders: list[str] = field(default_factory=list)


class Device:
    """A device of unlimited memory that runs nodes one by one."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = _with_clones(graph, plan), plan
        self.away = {n for placement in plan.placements for n in placement.moved}
        self.away |= {placement.variable for placement in plan.placements}
        self.storages: list[Storage] = []
        self.variables: dict[str, Storage] = {}
        self.here: dict[tuple[str, Value], Storage] = {}  # (copy, value) -> storage
        self.arrived: set[str] = set()
        self.made: set[str] = set()
        self.trace: list[int] = []

    # What each reader of a value reads: "" is the original, else the name of a copy.

    def copy_for(self, user: str, value: Value) -> str:
        for transfer in self.plan.transfers:
            if transfer.value == value:
                for i, fetch in enumerate(transfer.fetches):
                    if user in fetch.users:
                        return f"copy {i}"
        return "arrival" if value.node in self.away else ""

    def readers(self, value: Value, copy: str) -> list[str]:
        edges = []
        for node in self.graph.nodes:
            if node.name not in self.away:
                edges += [node.name] * list(node.inputs).count(value)
        return [name for name in edges if self.copy_for(name, value) == copy]

    def hold_outputs(self, node: Node, value: Value, storage: Storage) -> None:
        self.here["", value] = storage
        storage.holders += self.readers(value, "")
        storage.holders += ["return"] * self.graph.outputs.count(value)
        sent = [t for t in self.plan.transfers if t.value == value]
        read_away = any(value in n.inputs for n in self.graph.nodes if n.name in self.away)
        if sent or read_away:
            pace = sent[0].pace if sent else ""
            storage.holders.append(f"send until {pace or node.name}")

    def allocate(self, nbytes: int) -> Storage:
        storage = Storage(nbytes)
        self.storages.append(storage)
        return storage

    # One event after another.

    def start(self) -> None:
        for node in self.graph.nodes:
            if node.op == "_Variable" and node.name not in self.away:
                self.variables[node.name] = self.allocate(node.nbytes[0])
                self.variables[node.name].holders.append("variable")
            if node.op == "_Arg":
                storage = self.allocate(node.nbytes[0])
                storage.holders.append("caller")
                self.hold_outputs(node, Value(node.name), storage)
            if node.op in ("_Arg", "_Variable"):
                self.made.add(node.name)
        self.progress("")

    def progress(self, finished: str) -> None:
        """The host runs what it can; copies whose trigger has finished arrive."""
        changed = True
        while changed:
            changed = False
            for node in self.graph.nodes:
                ready = all(name in self.made for name in node.predecessors)
                if node.name in self.away and node.name not in self.made and ready:
                    self.made.add(node.name)
                    changed = True
        for node in self.graph.nodes:
            for value in node.values:
                self.arrive(value)

    def arrive(self, value: Value) -> None:
        if value.node not in self.made:
            return
        copies = {"arrival": ""} if value.node in self.away else {}
        for transfer in self.plan.transfers:
            if transfer.value == value:
                copies |= {f"copy {i}": f.trigger for i, f in enumerate(transfer.fetches)}
        for copy, trigger in copies.items():
            users = self.readers(value, copy)
            is_new = (copy, value) not in self.here
            if users and is_new and (not trigger or trigger in self.made):
                storage = self.allocate(self.graph.nbytes(value))
                storage.holders += users
                self.here[copy, value] = storage

    def run(self, node: Node) -> None:
        for name in node.predecessors:
            if name not in self.made:
                raise ReadWhileAway(f"{node.name} runs before {name}")
        read = [
            self.storage(node, value) for value in node.inputs if value.node not in self.variables
        ]
        self.compute(node, read)
        self.trace.append(sum(s.nbytes for s in self.storages))
        for storage in read:
            storage.holders.remove(node.name)
        for storage in self.storages:
            while f"send until {node.name}" in storage.holders:
                storage.holders.remove(f"send until {node.name}")
        self.storages = [s for s in self.storages if s.holders]
        self.made.add(node.name)
        self.progress(node.name)

    def storage(self, node: Node, value: Value) -> Storage:
        found = self.here.get((self.copy_for(node.name, value), value))
        if found is None or node.name not in found.holders:
            raise ReadWhileAway(f"{node.name} reads {value} while it is away")
        return found

    def compute(self, node: Node, read: list[Storage]) -> None:
        if node.op == "ReadVariableOp":
            self.hold_outputs(node, Value(node.name), self.variables[node.inputs[0].node])
        elif node.op.startswith("Assign"):
            self.update(node)
        elif node.op in VIEWS:
            self.hold_outputs(node, Value(node.name), read[0])
        else:
            reusable = [
                read[i] for i in IN_PLACE.get(node.op, ())
                if read[i].nbytes == node.nbytes[0] and read[i].holders == [node.name]
            ]  # fmt: skip
            for value in node.values:
                fresh = None if reusable else self.allocate(self.graph.nbytes(value))
                self.hold_outputs(node, value, fresh or reusable[0])

    def update(self, node: Node) -> None:
        name = node.inputs[0].node
        old = self.variables[name]
        if old.holders == ["variable"]:
            return
        new = self.allocate(self.graph.by_name[name].nbytes[0])
        old.holders.remove("variable")
        new.holders.append("variable")
        self.variables[name] = new


def _with_clones(graph: Graph, plan: Plan) -> Graph:
    """Each node that is computed again once more at the end, where it does not matter: who reads it
    is what counts."""
    nodes = {node.name: node for node in graph.nodes}
    for again in plan.recomputations:
        nodes[again.clone] = replace(nodes[again.node], name=again.clone)
    for again in plan.recomputations:
        for user in again.users:
            inputs = tuple(
                Value(again.clone, value.index) if value.node == again.node else value
                for value in nodes[user].inputs
            )
            nodes[user] = replace(nodes[user], inputs=inputs)
    return Graph(tuple(nodes.values()), graph.outputs)


def replay(graph: Graph, order: tuple[str, ...], plan: Plan | None = None) -> list[int]:
    """Bytes on the device while each node of the order runs.

    Copies to the host that nothing paces are taken to land as their value's node ends.
    """
    device = Device(graph, plan or Plan())
    device.start()
    for name in order:
        node = device.graph.by_name[name]
        if not node.is_input and name not in device.away:
            device.run(node)
    return device.trace
