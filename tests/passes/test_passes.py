"""Golden text: what each pass makes of a small graph, side by side in tests/golden.

A file holds a sentence of a title, the graph before, and what the passes made of it. After a
deliberate change run ``pytest tests/passes/test_passes.py --update-golden`` and read what differs.
"""

import random
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings, strategies

from tfmem.errors import RewriteError, UnsupportedFunctionError
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.text import parse
from tfmem.passes.align import Align
from tfmem.passes.linearise import Linearise
from tfmem.passes.pipeline import run_passes
from tfmem.passes.place import Place
from tfmem.passes.prune import Prune
from tfmem.passes.recompute import Recompute
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.passes.transfer import Route
from tfmem.plan import Fetch, Placement, Recomputation, Transfer

GOLDEN = Path(__file__).parents[1] / "golden"

PLACEMENT = Placement(
    "w",
    ("read", "scaled", "update"),
    (
        Transfer(Value("read"), (Fetch(("h",)), Fetch(("gx",), "h"))),
        Transfer(Value("g"), (), "gx"),
    ),
)

PASSES = {
    "align": [Align()],
    "prune": [Prune()],
    "recompute": [
        Recompute((Recomputation("a", ("b/clone1",)), Recomputation("b", ("z",)))),
        Reorder(("x", "a", "b", "c", "y", "a/clone1", "b/clone1", "z")),
        Linearise("dev"),
    ],
    "reorder": [Reorder(("x", "a", "c", "b", "d"))],
    "linearise_strict": [Linearise("dev")],
    "linearise_window": [Linearise("dev", window=2)],
    "linearise_onednn": [Linearise("dev", window=8)],
    "linearise_siblings": [Linearise("dev", window=8)],
    "swap": [Swap((Transfer(Value("a"), (Fetch(("y", "z"), "c"),), "c"),), Route("host"))],
    "swap_twice": [
        Swap(
            (
                Transfer(Value("a"), (Fetch(("d",), "b"), Fetch(("y",), "d")), "b"),
                Transfer(Value("b"), (Fetch(("y",), "d"),), "d"),
            ),
            Route("host"),
        ),
        Linearise("dev"),
    ],
    "swap_on_gpu": [
        Swap((Transfer(Value("a"), (Fetch(("y", "z"), "c"),), "c"),), Route("host", "dev")),
        Linearise("dev"),
    ],
    "swap_held_behind_a_copy": [
        Swap((Transfer(Value("b"), (Fetch(("z",), "d"),), "c"),), Route("host", "dev")),
        Swap((Transfer(Value("a"), (Fetch(("y",), "c"),), "b"),), Route("host", "dev")),
        Linearise("dev"),
    ],
    "swap_paced_by_barrier": [
        Swap((Transfer(Value("a"), (Fetch(("y",), "fetch"),), "wait"),), Route("host", "dev")),
        Linearise("dev"),
    ],
    "swap_triggered_by_constant": [
        Swap((Transfer(Value("a"), (Fetch(("y",), "fetch"),), "b"),), Route("host", "dev")),
        Linearise("dev"),
    ],
    **{
        name: [Place((PLACEMENT,), route), Linearise("dev")]
        for name, route in (("place", Route("host")), ("place_on_gpu", Route("host", "dev")))
    },
}


@pytest.mark.parametrize("name", PASSES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    title, before, after = path.read_text().split("\n---\n")
    made = str(run_passes(parse(before), PASSES[name]))
    if request.config.getoption("--update-golden"):
        path.write_text("\n---\n".join([title, before, "\n" + made]))
    else:
        assert made == str(parse(after))


def test_passes_are_deterministic_and_know_no_names() -> None:
    for name, passes in PASSES.items():
        before = parse((GOLDEN / f"{name}.txt").read_text().split("\n---\n")[1])
        assert run_passes(before, passes) == run_passes(before, passes)


CHAIN = """
    x = _Arg() [64] @dev
    a = Relu(x:0) [64] @dev
    b = RandomUniform(a:0) [64] @dev
    c = Mul(a:0, b:0, ^b) [64] @dev
    return c:0
"""

BROKEN = {
    "a node that is needed was removed": ("a = Relu(x:0) [64] @dev", ""),
    "inputs changed other than to copies": ("Mul(a:0, b:0, ^b)", "Mul(x:0, b:0, ^b)"),
    "control inputs ['b'] were lost": ("Mul(a:0, b:0, ^b)", "Mul(a:0, b:0)"),
    "a node was replaced": ("a = Relu(", "a = Relu6("),
    "outputs changed": ("return c:0", "return b:0"),
    "a stateful node was cloned": (
        "c = Mul(a:0, b:0, ^b)",
        "b2 = RandomUniform(a:0) [64] @dev origin=b\n c = Mul(a:0, b:0, ^b)",
    ),
    "has no origin": (
        "c = Mul(a:0, b:0, ^b)",
        "b2 = Relu(a:0) [64] @dev\n c = Mul(a:0, b:0, ^b)",
    ),
    "the order is not topological": ("a = Relu(x:0)", "a = Relu(x:0, ^c)"),
    "there is no node 'q'": ("Mul(a:0, b:0, ^b)", "Mul(a:0, b:0, ^b, ^q)"),
    "has no output 1": ("Mul(a:0, b:0, ^b)", "Mul(a:1, b:0, ^b)"),
    "two nodes are named 'a'": ("c = Mul", "a = Relu(x:0) [64] @dev\n c = Mul"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rewrites_are_refused(message: str) -> None:
    old, new = BROKEN[message]
    text = CHAIN.replace(old, new)
    if not new:
        text = text.replace("(a:0", "(x:0")

    def broken(graph: Graph) -> Graph:
        from tfmem.graph.verify import verify

        rewritten = parse(text)
        verify(rewritten)
        return rewritten

    with pytest.raises(RewriteError, match="pass function") as raised:
        run_passes(parse(CHAIN), [broken])
    assert message in str(raised.value)


def test_equal_control_inputs_of_nodes_that_onednn_merges_are_refused() -> None:
    from tfmem.graph.verify import verify_rewrite

    text = """
        x = _Arg() [64] @dev
        k = _Arg() [64] @dev
        bias = _Arg() [64] @dev
        t = Relu(x:0) [64] @dev
        conv = Conv2D(x:0, k:0{}) [64] @dev
        add = BiasAdd(conv:0, bias:0{}) [64] @dev
        return add:0
    """
    before, equal = parse(text.format("", "")), parse(text.format(", ^t", ", ^t"))
    verify_rewrite(before, parse(text.format(", ^t", "")))
    verify_rewrite(before, parse(text.format(", ^t", ", ^t, ^conv")))
    verify_rewrite(equal, equal)  # as it was captured
    with pytest.raises(RewriteError, match="oneDNN would merge"):
        verify_rewrite(before, equal)


ONE, TWO = "one", "two"


def replicas(dice: random.Random) -> Graph:
    """Two devices with the same collectives, and values that cross between them now and then."""
    made: dict[str, list[Node]] = {ONE: [Node("x", "_Arg", nbytes=(64,), device=ONE)], TWO: []}
    nodes = list(made[ONE])
    for stage in range(dice.randrange(1, 4)):
        for device in made:
            for number in range(dice.randrange(1, 6)):
                near = [n for n in (made[device] or nodes) if not n.is_input] or nodes
                read = dice.choice(nodes if dice.random() < 0.2 else near)
                name = f"{device}{stage}.{number}"
                node = Node(name, "Relu", (Value(read.name),), nbytes=(64,), device=device)
                made[device].append(node)
                nodes.append(node)
        for device in made:
            read = dice.choice(made[device])
            name = f"{device}.reduce{stage}"
            after = tuple(n.name for n in made[device] if n.op == "CollectiveReduceV2")
            node = Node(
                name, "CollectiveReduceV2", (Value(read.name),), after, nbytes=(64,), device=device
            )
            made[device].append(node)
            nodes.append(node)
    return Graph(tuple(nodes), tuple(Value(found[-1].name) for found in made.values()))


def waits(graph: Graph, called: Callable[[str], str] = str) -> nx.DiGraph:
    """What waits for what, by the names that nodes are called by."""
    result = nx.DiGraph()
    for node in graph.nodes:
        result.add_node(called(node.name))
        result.add_edges_from((called(n), called(node.name)) for n in node.predecessors)
    return result


def can_run(graph: Graph) -> bool:
    """Whether nothing waits for itself where the parts of a collective are one node."""
    together = waits(graph, lambda name: name.partition(".")[2] if ".reduce" in name else name)
    return nx.is_directed_acyclic_graph(together)


def shuffled(graph: Graph, dice: random.Random) -> tuple[str, ...]:
    return tuple(nx.lexicographical_topological_sort(waits(graph), lambda name: dice.random()))


@settings(deadline=None)
@given(strategies.integers(0, 2**32))
def test_no_order_of_one_device_holds_up_a_collective_of_several(seed: int) -> None:
    dice = random.Random(seed)
    graph = replicas(dice)
    if not can_run(graph):
        with pytest.raises(UnsupportedFunctionError, match="one sequence"):
            Align()(graph)
        return
    for device in (ONE, TWO):
        graph = Align()(graph)
        graph = run_passes(graph, [Reorder(shuffled(graph, dice)), Linearise(device)])
    assert can_run(graph)


def test_collectives_that_cannot_be_matched_are_refused() -> None:
    graph = parse("""
        x = _Arg() [64] @one
        a = CollectiveReduceV2(x:0) [64] @one
        b = CollectiveReduceV2(x:0) [64] @two
        c = CollectiveReduceV2(b:0) [64] @two
        return a:0, c:0
    """)
    with pytest.raises(UnsupportedFunctionError, match="1 on one, 2 on two"):
        Align()(graph)
