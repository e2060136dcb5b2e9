"""Random plans for random graphs: orders, evictions, placements, valid by construction."""

from __future__ import annotations

import random

from tests.graphs import DEVICE, HOST
from tfmem.ir import VARIABLE, Graph, Value
from tfmem.plan import Fetch, Placement, Plan, Transfer


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
    """An order, a placement of some variables, and evictions of some values."""
    rng = random.Random(seed)
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
        evictions=tuple(transfers[""]),
        placements=tuple(
            Placement(v, tuple(n for n in moved if moved[n] == v), tuple(transfers[v]))
            for v in placed
        ),
        device=DEVICE,
        host=HOST,
    )


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
