"""Rehearsals by hand: the worked example, what is swapped, what is taken over, what cannot be."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs
from tfmem.graph.ir import Graph, Stash, Value
from tfmem.graph.text import parse
from tfmem.plan import clone_name
from tfmem.planning.eviction import rehearsal
from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.queue import LONGEST_DELAY, EvictedComponents, Postponed
from tfmem.planning.eviction.rehearsal import Unreachable, rehearse
from tfmem.planning.eviction.schedule import Schedule
from tfmem.planning.eviction.scores import Scoring

SWAP_ONLY = Scoring(copy_factor=1.0, may_recompute=False)


def problem_of(text: str, **costs: float) -> EvictionProblem:
    return problem_of_graph(parse(text), **costs)


def problem_of_graph(graph: Graph, **costs: float) -> EvictionProblem:
    seconds = {node.name: 1.0 for node in graph.nodes if not node.is_input}
    priced = Costs(seconds, granularity=1, **costs)  # type: ignore[arg-type]
    order = [number for number, given in enumerate(graph.form.is_input) if not given]
    return EvictionProblem(graph.form, priced, order, [False] * len(graph))


def names(problem: EvictionProblem, schedule: Schedule) -> list[str]:
    return [clone_name(problem.form.names[run.node], run.index) for run in schedule.runs]


EXAMPLE = f"""
    a = MatMul() [4] @{DEVICE}
    b = MatMul(a:0) [4] @{DEVICE}
    c = MatMul(b:0) [4] @{DEVICE}
    d = MatMul(c:0, a:0) [] @{DEVICE}
    return"""


def test_the_example_of_the_docstring() -> None:
    r"""a -> b -> c -> d, and d reads a again: at 8 bytes it has to be computed anew."""
    problem = problem_of(EXAMPLE)
    made = rehearse(problem, 8, Scoring())
    assert names(problem, made) == ["a", "b", "c", "a/clone1", "d"]
    assert made.timeline == [4, 8, 8, 8, 8]
    assert (made.peak_bytes, made.seconds) == (8, 5.0)
    drawn = re.findall(r"^ +(\w) = MatMul\(.*?\) +(\d+)", str(rehearsal.__doc__), re.M)
    assert drawn == [("a", "4"), ("b", "8"), ("c", "8"), ("d", "8")]


def test_no_limit_evicts_nothing() -> None:
    problem = problem_of(EXAMPLE)
    made = rehearse(problem, math.inf, Scoring())
    assert names(problem, made) == ["a", "b", "c", "d"]
    assert made.peak_bytes == 12


def test_what_may_not_run_again_goes_to_the_host() -> None:
    problem = problem_of(EXAMPLE, to_host=4.0, from_host=4.0, latency=0.0)
    made = rehearse(problem, 8, SWAP_ONLY)
    assert names(problem, made) == ["a", "b", "c", "d"]
    ((run, output), copy) = next(iter(made.copies.items()))
    assert (problem.form.names[run.node], output) == ("a", 0)
    assert copy.pace == 1  # b, during which it crosses
    assert [[problem.form.names[user.node] for user in users] for _, users in copy.fetches] == [
        ["d"]
    ]


def test_what_a_kernel_passes_to_its_gradient_does_not_cross() -> None:
    """A copy of a pool's output is none that comes with where the maxima were."""
    plain = parse(f"""
        x = MatMul() [4] @{DEVICE}
        y = MaxPool(x:0) [4] @{DEVICE}
        a = MatMul(y:0) [8] @{DEVICE}
        b = MatMul(a:0) [8] @{DEVICE}
        c = MatMul(b:0) [1] @{DEVICE}
        g = MaxPoolGrad(x:0, y:0, c:0) [4] @{DEVICE}
        return""")
    crossing = {"to_host": 4.0, "from_host": 4.0, "latency": 0.0}
    assert rehearse(problem_of_graph(plain, **crossing), 17, SWAP_ONLY).peak_bytes <= 17
    nodes = tuple(replace(n, passed=1 if n.name == "y" else 0) for n in plain.nodes)
    problem = problem_of_graph(Graph(nodes, ()), **crossing)
    with pytest.raises(Unreachable):
        rehearse(problem, 17, SWAP_ONLY)
    made = rehearse(problem, 17, Scoring(copy_factor=1.0))
    assert names(problem, made) == ["x", "y", "a", "b", "c", "x/clone1", "y/clone1", "g"]
    assert not made.copies


def test_a_stash_does_not_cross() -> None:
    """No output of a node is what its list refers to, so that no copy could be made of it."""
    graph = parse(f"""
        a = While() [0] @{DEVICE}
        b = MatMul() [8] @{DEVICE}
        c = MatMul(b:0) [8] @{DEVICE}
        d = MatMul(c:0) [1] @{DEVICE}
        e = MatMul(d:0, a:0) [] @{DEVICE}
        return""")
    made = replace(graph.by_name["a"], stashes=(Stash(((8, 1),), (0,)),))
    problem = problem_of_graph(
        Graph((made, *graph.nodes[1:]), graph.outputs), to_host=4.0, from_host=4.0, latency=0.0
    )
    assert rehearse(problem, 24, SWAP_ONLY).copies == {}
    with pytest.raises(Unreachable):
        rehearse(problem, 17, SWAP_ONLY)


def test_tiny_values_that_the_host_makes_stay_for_those_who_run_again() -> None:
    """To make them anew is another way to the host and back, behind all that is under way."""
    graph = parse(f"""
        s = MatMul() [1] @{DEVICE}
        k = MatMul(s:0) [1] @{DEVICE}
        r = MatMul(k:0) [8] @{DEVICE}
        b = MatMul(r:0) [8] @{DEVICE}
        c = MatMul(b:0) [8] @{DEVICE}
        d = MatMul(c:0, r:0) [] @{DEVICE}
        return""")
    again = names(problem := problem_of_graph(graph), rehearse(problem, 17, Scoring()))
    assert again == ["s", "k", "r", "b", "c", "s/clone1", "k/clone1", "r/clone1", "d"]
    nodes = tuple(replace(n, from_host=(0,)) if n.name == "k" else n for n in graph.nodes)
    problem = problem_of_graph(Graph(nodes, ()))
    assert names(problem, rehearse(problem, 17, Scoring())) == [*"skrbc", "r/clone1", "d"]


def test_what_reads_through_another_node_is_made_again_while_that_is_there() -> None:
    """A clone of `c` reads what `b` passes through, and could not be given a clone of it."""
    graph = parse(f"""
        a = MatMul() [8] @{DEVICE}
        b = StatelessIf(a:0) [8] @{DEVICE}
        c = Tanh(b:0) [8] @{DEVICE}
        d = MatMul(c:0) [16] @{DEVICE}
        e = MatMul(d:0) [1] @{DEVICE}
        f = MatMul(e:0, c:0) [1] @{DEVICE}
        return f:0""")
    a, b, *others = graph.nodes
    through = Graph((a, replace(b, same=((0, Value("a", 0)),)), *others), graph.outputs)
    with pytest.raises(Unreachable):  # `a` is gone when `e` needs the room of `c`
        rehearse(problem_of_graph(through), 24, Scoring())
    problem = problem_of_graph(graph)
    assert "c/clone1" in names(problem, rehearse(problem, 24, Scoring()))


def test_what_is_looked_at_once_stays() -> None:
    """A clone of a check would check again what comes back."""
    problem = problem_of(
        EXAMPLE.replace(
            "d = MatMul(c:0, a:0)", "k = CheckNumerics(a:0) [4] @dev\n    d = MatMul(c:0, k:0)"
        ).replace("@dev", f"@{DEVICE}")
    )
    for scoring in (Scoring(), SWAP_ONLY):
        with pytest.raises(Unreachable):
            rehearse(problem, 8, scoring)
    assert rehearse(problem, 12, Scoring()).peak_bytes == 12


@pytest.mark.parametrize("view", ["CheckNumerics", "Reshape"])
def test_what_reads_a_view_that_is_made_once_is_not_made_again(view: str) -> None:
    """`b` may leave only if `k` is no check: `a` is gone once `b` is made."""
    problem = problem_of(f"""
        x = _Arg() [1] @{DEVICE}
        a = MatMul(x:0) [4] @{DEVICE}
        k = {view}(a:0) [4] @{DEVICE}
        r = Reshape(k:0) [4] @{DEVICE}
        b = MatMul(r:0) [4] @{DEVICE}
        c = MatMul(b:0) [4] @{DEVICE}
        d = MatMul(c:0) [8] @{DEVICE}
        e = MatMul(d:0) [1] @{DEVICE}
        f = MatMul(e:0, b:0) [1] @{DEVICE}
        return f:0""")
    if view == "Reshape":
        made = names(problem, rehearse(problem, 13, Scoring()))
        assert {"a/clone1", "k/clone1", "r/clone1", "b/clone1"} <= set(made)
        return
    with pytest.raises(Unreachable):
        rehearse(problem, 13, Scoring())


def test_a_limit_below_what_one_node_needs_cannot_be_kept() -> None:
    with pytest.raises(Unreachable):
        rehearse(problem_of(EXAMPLE), 7, Scoring())


def test_an_output_takes_over_the_storage_of_what_nobody_else_needs() -> None:
    problem = problem_of(f"""
        a = MatMul() [4] @{DEVICE}
        b = Relu(a:0) [4] @{DEVICE}
        c = Relu(b:0) [4] @{DEVICE}
        return c:0""")
    assert rehearse(problem, 4, Scoring()).timeline == [4, 4, 4]


def test_a_chain_that_has_to_come_back_comes_back_in_order() -> None:
    r"""a -> b, and big -> small: `end` reads b, which had to go for `big`, and a with it."""
    problem = problem_of(f"""
        a = MatMul() [4] @{DEVICE}
        b = MatMul(a:0) [4] @{DEVICE}
        big = MatMul() [12] @{DEVICE}
        small = MatMul(big:0) [1] @{DEVICE}
        end = MatMul(small:0, b:0) [] @{DEVICE}
        return""")
    made = rehearse(problem, 13, Scoring())
    assert names(problem, made) == ["a", "b", "big", "small", "a/clone1", "b/clone1", "end"]


def test_what_is_postponed_comes_back_after_ever_longer() -> None:
    postponed, delay, position, waits = Postponed(), 0, 0, []
    for _ in range(8):
        delay = postponed.put(7, position, delay)
        waits.append(delay)
        assert postponed.due(position + delay - 1) == []
        position += delay
        assert postponed.due(position) == [7]
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    assert LONGEST_DELAY == 32
    postponed.put(1, 5, 0)
    postponed.put(2, 6, 0)
    assert postponed.recall(6) == [1]


def test_joined_components_share_their_seconds() -> None:
    components = EvictedComponents()
    first, second, third = (components.add(seconds) for seconds in (1.0, 2.0, 4.0))
    components.join(first, second)
    components.join(second, first)
    assert components.find(first) == components.find(second) != components.find(third)
    assert components.seconds(components.find(second)) == 3.0
