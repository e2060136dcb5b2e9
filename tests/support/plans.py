"""Random plans for random graphs: orders, evictions, placements, valid by construction."""

from __future__ import annotations

import dataclasses
import random

from tests.support.graphs import DEVICE, HOST
from tfmem.graph.clones import with_clones
from tfmem.graph.ir import VARIABLE, Graph, Value
from tfmem.plan import Fetch, Placement, Plan, Recomputation, Transfer

PURE = ("MatMul", "Relu", "AddV2", "Reshape", "TopKV2")


def random_order(graph: Graph, rng: random.Random) -> tuple[str, ...]:
    """Any topological order, inputs first."""
    order = [node.name for node in graph.nodes if node.is_input]
    done, left = set(order), [node for node in graph.nodes if not node.is_input]
    while left:
        node = rng.choice([node for node in left if done.issuperset(node.predecessors)])
        left.remove(node)
        done.add(node.name)
        order.append(node.name)
    return tuple(order)


def random_plan(graph: Graph, seed: int, *, window: int = 1) -> Plan:
    """An order, clones of some nodes, a placement of some variables, evictions of some values."""
    rng = random.Random(seed)
    again = _recomputations(graph, rng)
    graph = with_clones(graph, again)
    order = random_order(graph, rng)
    placed = [n.name for n in graph.nodes if n.op == VARIABLE and rng.random() < 0.5]
    moved = {
        name: variable for variable in placed for name in graph.consumers.get(Value(variable), ())
    }
    near = [name for name in order if name not in moved and not graph.by_name[name].is_input]
    place = {name: i for i, name in enumerate(near)}
    transfers: dict[str, list[Transfer]] = {name: [] for name in ("", *placed)}
    for node in graph.nodes:
        for value in node.values if not node.is_input else ():
            transfer = _transfer(graph, value, moved, near, place, rng)
            if transfer is not None:
                transfers[moved.get(node.name, "")].append(transfer)
    return Plan(
        order=order,
        window=window,
        recomputations=again,
        evictions=tuple(transfers[""]),
        placements=tuple(
            Placement(v, tuple(n for n in moved if moved[n] == v), tuple(transfers[v]))
            for v in placed
        ),
        device=DEVICE,
        host=HOST,
    )


def _recomputations(graph: Graph, rng: random.Random) -> tuple[Recomputation, ...]:
    """Clones for some of the readers of some pure nodes, clones themselves among the readers."""
    made: list[Recomputation] = []
    for node in graph.nodes:
        readers = [n.name for n in graph.nodes if any(v.node == node.name for v in n.inputs)]
        if node.op not in PURE or not readers or rng.random() < 0.7:
            continue
        chosen = rng.sample(readers, rng.randint(1, len(readers)))
        made.append(Recomputation(node.name, tuple(chosen)))
    clones = {one.node: one.clone for one in made}
    for i, one in enumerate(made):
        reading = [n for n in clones if any(v.node == one.node for v in graph.by_name[n].inputs)]
        users = (*one.users, *(clones[n] for n in reading if rng.random() < 0.5))
        made[i] = dataclasses.replace(one, users=users)
    return tuple(made)


def _transfer(
    graph: Graph,
    value: Value,
    moved: dict[str, str],
    near: list[str],
    place: dict[str, int],
    rng: random.Random,
) -> Transfer | None:
    users = sorted({u for u in graph.consumers.get(value, ()) if u in place}, key=place.__getitem__)
    is_sent = any(u in moved for u in graph.consumers.get(value, ()))
    is_away = value.node in moved
    far = users[rng.randint(0, len(users)) :]
    if (not far and not is_sent) or rng.random() < 0.4:
        return None
    earliest = place.get(value.node, -1)
    pace = ""
    if not is_away:
        later = near[earliest + 1 : earliest + 6]
        pace = rng.choice(["", *later])
    fetches = []
    while far:
        count = rng.randint(1, len(far))
        trigger = rng.choice(["", *near[max(0, earliest) : place[far[0]]]])
        fetches.append(Fetch(tuple(far[:count]), trigger))
        far = far[count:]
    return Transfer(value, tuple(fetches), pace)
