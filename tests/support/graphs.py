"""Graphs for tests: small named ones as text, families by size, and random ones by seed."""

from __future__ import annotations

import random

from hypothesis import strategies

from tfmem.graph.ir import ARG, VARIABLE, Graph, Node, Value
from tfmem.graph.text import parse

DEVICE, HOST = "cpu", "host"

# Optima with every buffer exact to the byte; the first four are OLLA's (arXiv 2210.12924).
OPTIMA = {
    "simple": 70,
    "diamond": 130,
    "control_dependency": 150,
    "multi_fanin": 110,
    "pathological": 9,
    "chain": 96,
    "residual": 160,
    "in_place": 64,
}
NAMED = {
    "simple": """
        a = MatMul() [10] @cpu
        b = MatMul(a:0) [20, 30] @cpu
        d = MatMul(b:1) [40] @cpu
        c = MatMul(b:0) [] @cpu
        e = MatMul(d:0) [] @cpu
        return""",
    "diamond": """
        a = MatMul() [10] @cpu
        b = MatMul(a:0) [20, 30] @cpu
        c = MatMul(b:0) [60] @cpu
        d = MatMul(b:1) [40] @cpu
        e = MatMul(d:0) [50] @cpu
        f = MatMul(e:0, c:0) [10] @cpu
        g = MatMul(f:0) [] @cpu
        return""",
    "control_dependency": """
        a = MatMul() [10] @cpu
        b = MatMul(a:0) [20, 30] @cpu
        c = MatMul(b:0) [60] @cpu
        d = MatMul(b:1) [40] @cpu
        e = MatMul(d:0, ^c) [50] @cpu
        f = MatMul(e:0, c:0) [10] @cpu
        g = MatMul(f:0) [] @cpu
        return""",
    "multi_fanin": """
        a = MatMul() [10, 20] @cpu
        c = MatMul(a:1) [50] @cpu
        b = MatMul(a:0) [30] @cpu
        d = MatMul(b:0) [40] @cpu
        e = MatMul(d:0, c:0) [] @cpu
        return""",
    "pathological": "\n".join(
        [f"m{i} = MatMul() [{size}] @cpu" for i, size in enumerate((1, 9, 1, 8, 1, 7, 8, 7))]
        + [f"f{i} = MatMul(m{i}:0) [] @cpu" for i in range(8)]
        + ["return"]
    ),
    "chain": """
        x = _Arg() [32] @cpu
        a = MatMul(x:0) [32] @cpu
        b = MatMul(a:0) [32] @cpu
        c = MatMul(b:0) [32] @cpu
        return c:0""",
    "residual": """
        x = _Arg() [32] @cpu
        a = MatMul(x:0) [32] @cpu
        b = MatMul(a:0) [64] @cpu
        c = MatMul(b:0) [32] @cpu
        d = AddV2(a:0, c:0) [32] @cpu
        return d:0""",
    "in_place": """
        x = _Arg() [32] @cpu
        a = Relu(x:0) [32] @cpu
        b = Reshape(a:0) [32] @cpu
        c = Relu(b:0) [32] @cpu
        return c:0""",
}


def named(name: str) -> Graph:
    """A graph of `NAMED`."""
    return parse(NAMED[name])


def training_chain(layers: int, nbytes: int = 1024) -> Graph:
    r"""Forward, backward with stashed activations, and an update of each layer's weight.

    x -> f0 -> f1 -> .. -> b1 -> b0       f_i, w_i are read again by b_i and g_i;
         w0    w1          g1    g0       u_i updates w_i with g_i
    """
    nodes = [Node("x", ARG, nbytes=(nbytes,), device=DEVICE)]
    nodes += [Node(f"w{i}", VARIABLE, nbytes=(nbytes // 2,), device=DEVICE) for i in range(layers)]
    below = Value("x")
    for i in range(layers):
        nodes.append(_node(f"r{i}", "ReadVariableOp", [Value(f"w{i}")], nbytes // 2))
        nodes.append(_node(f"f{i}", "MatMul", [below, Value(f"r{i}")], nbytes))
        below = Value(f"f{i}")
    for i in reversed(range(layers)):
        stash = Value(f"f{i - 1}") if i else Value("x")
        nodes.append(_node(f"g{i}", "MatMul", [below, stash], nbytes // 2))
        nodes.append(_node(f"b{i}", "MatMul", [below, Value(f"r{i}")], nbytes))
        below = Value(f"b{i}")
    for i in range(layers):
        nodes.append(
            Node(f"u{i}", "AssignSubVariableOp", (Value(f"w{i}"), Value(f"g{i}")), device=DEVICE)
        )
    return Graph(tuple(nodes), (below,))


def unet(levels: int, nbytes: int = 4096) -> Graph:
    """Down by halves and up again, each level joined to its mirror image."""
    nodes = [Node("x", ARG, nbytes=(nbytes,), device=DEVICE)]
    below = Value("x")
    for i in range(levels):
        nodes.append(_node(f"skip{i}", "Conv2D", [below], nbytes >> i))
        nodes.append(_node(f"down{i}", "MaxPool", [Value(f"skip{i}")], nbytes >> i + 1))
        below = Value(f"down{i}")
    for i in reversed(range(levels)):
        nodes.append(_node(f"up{i}", "Conv2DBackpropInput", [below], nbytes >> i))
        nodes.append(_node(f"join{i}", "AddV2", [Value(f"up{i}"), Value(f"skip{i}")], nbytes >> i))
        below = Value(f"join{i}")
    return Graph(tuple(nodes), (below,))


def forward_and_backward(seed: int) -> Graph:
    """Three or four layers, some with a second input from before, and as many that read them."""
    rng = random.Random(seed)
    layers = rng.randint(3, 4)
    nodes = [Node("x", ARG, nbytes=(256 * rng.randint(1, 3),), device=DEVICE)]
    made = [Value("x")]
    for i in range(layers):
        more = [rng.choice(made)] if rng.random() < 0.4 else []
        inputs = list(dict.fromkeys([made[-1], *more]))
        nodes.append(_node(f"f{i}", "MatMul", inputs, 256 * rng.randint(1, 6)))
        made.append(Value(f"f{i}"))
    below = made[-1]
    for i in reversed(range(layers)):
        inputs = list(dict.fromkeys([below, rng.choice(made[i : i + 2])]))
        nodes.append(_node(f"b{i}", "MatMul", inputs, 256 * rng.randint(1, 3)))
        below = Value(f"b{i}")
    return Graph(tuple(nodes), (below,))


def random_graph(seed: int, size: int = 30, *, variables: int = 2, unit: int = 256) -> Graph:
    """A graph of `size` nodes: views, kernels that work in place, variables, control edges.

    Reads and updates of a variable keep their order, as TensorFlow's automatic control
    dependencies have it. Sizes are `unit` times 1 to 8.
    """
    rng = random.Random(seed)
    reach = rng.choice((3, 8, size))
    nodes = [
        Node(f"x{i}", ARG, nbytes=(unit * rng.randint(1, 8),), device=DEVICE)
        for i in range(rng.randint(1, 2))
    ]
    values = {Value(node.name): node.nbytes[0] for node in nodes}
    nodes += [
        Node(f"v{i}", VARIABLE, nbytes=(unit * rng.randint(1, 8),), device=DEVICE)
        for i in range(variables)
    ]
    held = {node.name: node.nbytes[0] for node in nodes if node.op == VARIABLE}
    since: dict[str, list[str]] = {name: [] for name in held}  # reads since the last update
    last: dict[str, str] = {}  # the last update
    for i in range(size):
        name, variable = f"n{i}", rng.choice(sorted(held)) if held else ""
        choice = rng.random()
        if variable and choice < 0.1:
            after = (last[variable],) if variable in last else ()
            node = Node(
                name, "ReadVariableOp", (Value(variable),), after, (held[variable],), DEVICE
            )
            since[variable].append(name)
        elif variable and choice < 0.16:
            node = _random_update(rng, name, variable, held[variable], values)
            before = (*since[variable], *([last[variable]] if variable in last else ()))
            node = Node(name, node.op, node.inputs, before, (), DEVICE)
            since[variable], last[variable] = [], name
        else:
            node = _random_compute(rng, name, values, reach, unit)
        nodes.append(node)
        values |= {value: node.nbytes[value.index] for value in node.values}
    returned = rng.sample(sorted(v for v in values), min(2, len(values)))
    return Graph(tuple(nodes), tuple(returned))


graphs = strategies.builds(
    random_graph,
    strategies.integers(0, 10**6),
    strategies.integers(1, 40),
    variables=strategies.integers(0, 3),
)
"""Hypothesis strategy for random graphs."""


def renamed(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The same graph with names that sort the other way round, and the new name of each node."""
    names = {node.name: f"z{len(graph) - i:06}" for i, node in enumerate(graph.nodes)}
    nodes = tuple(
        Node(
            names[n.name],
            n.op,
            tuple(Value(names[v.node], v.index) for v in n.inputs),
            tuple(names[name] for name in n.after),
            n.nbytes,
            n.device,
            n.origin,
            n.shares,
        )
        for n in graph.nodes
    )
    return Graph(nodes, tuple(Value(names[v.node], v.index) for v in graph.outputs)), names


def _node(name: str, op: str, inputs: list[Value], nbytes: int) -> Node:
    return Node(name, op, tuple(inputs), (), (nbytes,), DEVICE)


def _random_update(
    rng: random.Random, name: str, variable: str, nbytes: int, values: dict[Value, int]
) -> Node:
    same = [value for value, size in values.items() if size == nbytes]
    op = rng.choice(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"))
    if op == "AssignVariableOp" and not same:
        op = "AssignAddVariableOp"
    value = rng.choice(same or list(values))
    return Node(name, op, (Value(variable), value), (), (), DEVICE)


def _random_compute(
    rng: random.Random, name: str, values: dict[Value, int], reach: int, unit: int
) -> Node:
    near = list(values)[-reach:]
    op = rng.choice(("MatMul", "MatMul", "MatMul", "Relu", "Relu", "AddV2", "Reshape", "TopKV2"))
    after = (rng.choice(near).node,) if rng.random() < 0.1 else ()
    first = rng.choice(near)
    if op in ("Relu", "Reshape"):
        return Node(name, op, (first,), after, (values[first],), DEVICE)
    if op == "AddV2":
        same = [value for value in near if values[value] == values[first]]
        return Node(name, op, (first, rng.choice(same)), after, (values[first],), DEVICE)
    inputs = tuple(rng.choice(near) for _ in range(rng.randint(0 if op == "MatMul" else 1, 3)))
    count = 1 if op == "MatMul" else 2
    return Node(
        name, op, inputs, after, tuple(unit * rng.randint(1, 8) for _ in range(count)), DEVICE
    )
