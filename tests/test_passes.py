"""Golden text: what each pass makes of a small graph, side by side in tests/golden.

A file holds a sentence of a title, the graph before, and what the passes made of it. After a
deliberate change run ``pytest tests/test_passes.py --update-golden`` and read the difference.
"""

from pathlib import Path

import pytest

from tfmem.errors import RewriteError
from tfmem.ir import Graph, Value
from tfmem.passes.linearise import Linearise
from tfmem.passes.place import Place
from tfmem.passes.prune import Prune
from tfmem.passes.recompute import Recompute
from tfmem.passes.reorder import Reorder
from tfmem.passes.swap import Swap
from tfmem.pipeline import run_passes
from tfmem.plan import Fetch, Placement, Recomputation, Transfer
from tfmem.text import parse

GOLDEN = Path(__file__).parent / "golden"

PASSES = {
    "prune": [Prune()],
    "recompute": [
        Recompute((Recomputation("a", ("b/again1",)), Recomputation("b", ("z",)))),
        Reorder(("x", "a", "b", "c", "y", "a/again1", "b/again1", "z")),
        Linearise("dev"),
    ],
    "reorder": [Reorder(("x", "a", "c", "b", "d"))],
    "linearise_strict": [Linearise("dev")],
    "linearise_window": [Linearise("dev", window=2)],
    "linearise_onednn": [Linearise("dev", window=8)],
    "linearise_siblings": [Linearise("dev", window=8)],
    "swap": [Swap((Transfer(Value("a"), (Fetch(("y", "z"), "c"),), "c"),), "host")],
    "swap_twice": [
        Swap(
            (
                Transfer(Value("a"), (Fetch(("d",), "b"), Fetch(("y",), "d")), "b"),
                Transfer(Value("b"), (Fetch(("y",), "d"),), "d"),
            ),
            "host",
        ),
        Linearise("dev"),
    ],
    "place": [
        Place(
            (
                Placement(
                    "w",
                    ("read", "scaled", "update"),
                    (
                        Transfer(Value("read"), (Fetch(("h",)), Fetch(("gx",), "h"))),
                        Transfer(Value("g"), (), "gx"),
                    ),
                ),
            ),
            "host",
        ),
        Linearise("dev"),
    ],
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
        from tfmem.verify import verify

        rewritten = parse(text)
        verify(rewritten)
        return rewritten

    with pytest.raises(RewriteError, match="pass function") as raised:
        run_passes(parse(CHAIN), [broken])
    assert message in str(raised.value)


def test_equal_control_inputs_of_nodes_that_onednn_merges_are_refused() -> None:
    from tfmem.verify import verify_rewrite

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
