"""Steps that take other branches, or whose copies arrive at other moments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tensorflow as tf

from tests.simulation.test_simulate import SLOW_LINK, SWAP, evict
from tests.support.captures import captured_from
from tests.support.graphs import DEVICE
from tfmem.costs.static import static_costs
from tfmem.costs.types import Asked, Costs, Requests
from tfmem.graph.bodies import Body
from tfmem.graph.ir import Graph, Value
from tfmem.graph.text import parse
from tfmem.plan import Fetch, Plan, Transfer
from tfmem.simulation.callers import with_bodies
from tfmem.simulation.clocks import awaited, clocks_of
from tfmem.simulation.contents import studied
from tfmem.simulation.liveness import Lifetimes, lifetimes
from tfmem.simulation.program import program
from tfmem.simulation.requests import functions, requests
from tfmem.simulation.simulate import Applied, step_of
from tfmem.simulation.variations import FEWEST, HELD_SECONDS, Variation, variations_of

ROWS = 256


@dataclass(frozen=True)
class Varied:
    """A graph with its costs, its step and the others."""

    graph: Graph
    costs: Costs
    told: Lifetimes
    others: tuple[Variation, ...]

    def branches(self, name: str) -> list[int]:
        """The branch that a node takes in each of the other steps."""
        position = self.told.program.names.index(name)
        steps, count = self.told.program, self.costs.choices[name]

        def asked(step: Lifetimes, branch: int) -> Asked:
            return functions(steps, self.costs, step, {name: branch})[position]

        return [
            next(branch for branch in range(count) if asked(step, branch) == within[position])
            for step, within in self.others
        ]


def varied(function: tf.types.experimental.PolymorphicFunction) -> Varied:
    made = captured_from(function, tf.TensorSpec([], tf.int32), tf.TensorSpec([ROWS, ROWS]))
    found = studied(Body(made.graph, bodies=made.bodies), Costs.granularity)
    costs = with_bodies(Costs(), found.graph, found.bodies)
    told = lifetimes(program(found.graph, Plan()), costs.granularity)
    return Varied(found.graph, costs, told, variations_of(told, costs, {}))


def trained(branches: list) -> Varied:
    """Two choices by one number and one by another, with gradients."""

    @tf.function(autograph=False)
    def step(which: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.switch_case(which, [lambda one=one: one(x) for one in branches])
            other = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(y) * y, lambda: y)
            loss = tf.reduce_sum(other * other)
        return loss, tape.gradient(loss, x)

    return varied(step)


@pytest.fixture(scope="module")
def three() -> Varied:
    return trained([tf.tanh, lambda x: tf.exp(-x * x), lambda x: x @ tf.transpose(x) @ x])


def test_nothing_varies_where_nothing_is_chosen_and_nothing_crosses() -> None:
    plan = Plan(order=tuple("abcde"))
    assert variations_of(lifetimes(program(SWAP, plan), 1), SLOW_LINK, {}) == ()


def test_what_comes_back_does_so_between_its_trigger_and_its_use() -> None:
    told = lifetimes(program(SWAP, evict("b")), 1)
    (copy,) = [one for one in told.program.copies if not one.to_host]
    fetched = told.buffers[copy.made]
    others = variations_of(told, SLOW_LINK, {0: 4})
    begins = {int(other.start[fetched]) for other, _ in others}
    assert len(others) == FEWEST
    assert len(variations_of(told, SLOW_LINK, {0: 4}, 16)) == 16
    assert len(begins) > 1
    assert begins <= set(range(2, 5))
    for other, within in others:
        assert np.delete(other.start, fetched).tolist() == np.delete(told.start, fetched).tolist()
        assert other.end.tolist() == told.end.tolist()
        assert within == {}


@pytest.mark.parametrize(("landed", "first"), [({}, 1), ({0: 0}, 1), ({0: 2}, 2), ({0: 3}, 3)])
def test_what_is_sent_stays_at_least_to_its_last_use_and_the_end_of_its_copy(
    landed: dict[int, int], first: int
) -> None:
    told = lifetimes(program(SWAP, evict("b")), 1, {3: [0]})
    sent = told.buffers[told.program.copies[0].source]
    others = [other for other, _ in variations_of(told, SLOW_LINK, landed)]
    ends = {int(other.end[sent]) for other in others}
    assert told.end[sent] == 3
    assert ends <= set(range(first, 4))
    assert (len(ends) > 1) == (first < 3)
    assert all(
        np.delete(other.end, sent).tolist() == np.delete(told.end, sent).tolist()
        for other in others
    )


def test_what_a_node_waits_for_ends_there_and_comes_back_by_kernels_where_it_is_triggered() -> None:
    def ranges(plan: Plan, costs: Costs) -> tuple[int, int]:
        """At how many places what is sent ends, and what comes back begins."""
        steps = program(SWAP, plan)
        told = lifetimes(steps, 1, clocks_of(steps, costs).held)
        out, back = steps.copies
        sent, fetched = told.buffers[out.source], told.buffers[back.made]
        others = [other for other, _ in variations_of(told, costs, {}, 16)]
        ends, begins = (
            [int(one.end[sent]) for one in others],
            [int(one.start[fetched]) for one in others],
        )
        return len({*ends, int(told.end[sent])}), len({*begins, int(told.start[fetched])})

    kernels = replace(SLOW_LINK, by_kernels=True)
    assert ranges(evict("b", "b"), kernels) == (1, 1)
    assert ranges(evict("b", "b"), SLOW_LINK) == (1, 3)
    assert ranges(evict("b", "c"), kernels) == (1, 3)  # its trigger comes before it has left
    assert ranges(evict("b"), kernels) == (2, 3)


def test_what_is_sent_and_not_read_stays_at_least_while_it_is_made() -> None:
    graph = parse("""
        a = MatMul() [100] @cpu
        b = MatMul() [8] @cpu
        c = MatMul(b:0) [8] @cpu
        d = MatMul(c:0, a:0) [8] @cpu
        return d:0""")
    sends = (Transfer(Value("b"), (Fetch(("c",), "b"),)),)
    plan = Plan(order=tuple("abcd"), evictions=sends, device=DEVICE, host="host")
    told = lifetimes(program(graph, plan), 1, {3: [0]})
    sent = told.buffers[told.program.copies[0].source]
    assert (told.start[sent], told.end[sent]) == (1, 3)
    ends = {int(other.end[sent]) for other, _ in variations_of(told, SLOW_LINK, {})}
    assert len(ends) > 1
    assert ends <= {1, 2, 3}


def test_copies_are_over_by_the_clocks_before_something_waits_for_them() -> None:
    plan = evict("d", pace="d")
    clocks = clocks_of(program(SWAP, plan), SLOW_LINK)  # a ends at 1, its copy at 2.5: while c runs
    assert clocks.held == {3: [0]}
    assert clocks.landed == {0: 2}


def test_what_a_gpu_has_launched_ahead_holds_what_nothing_has_waited_for() -> None:
    """Copies go one by one: who waits for that of `b` has waited for that of `a`."""
    device = "/job:localhost/replica:0/task:0/device:GPU:0"
    graph = Graph(tuple(replace(node, device=device) for node in SWAP.nodes), SWAP.outputs)
    sends = (
        Transfer(Value("a"), (Fetch(("e",), "d"),)),
        Transfer(Value("b"), (), "d"),
        Transfer(Value("c"), ()),
    )
    plan = Plan(order=tuple("abcde"), evictions=sends, device=device, host="host")
    on_gpu = Applied(graph, SLOW_LINK, plan).lifetimes
    a, b, c = (on_gpu.buffers[graph.form.number_of(Value(name))] for name in "abc")
    assert [int(on_gpu.end[one]) for one in (a, b, c)] == [3, 3, 4]
    assert awaited(program(graph, replace(plan, evictions=sends[2:]))) == {}


@pytest.mark.parametrize(("kind", "landed"), [("CPU", {0: 2}), ("GPU", {})])
def test_a_gpu_launches_kernels_before_they_run(kind: str, landed: dict[int, int]) -> None:
    device = f"/job:localhost/replica:0/task:0/device:{kind}:0"
    graph = Graph(tuple(replace(node, device=device) for node in SWAP.nodes), SWAP.outputs)
    plan = replace(evict("d", pace="d"), device=device)
    assert Applied(graph, SLOW_LINK, plan).landed == landed


def test_what_another_process_was_sent_may_be_held_for_a_moment_more() -> None:
    near, far = (f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("localhost", "tfmem_host"))
    chain = [f"n{i} = Relu(n{i - 1}:0) [8] @{near}" for i in range(1, 50)]
    graph = parse("\n".join([f"n0 = MatMul() [100] @{near}", *chain, "return n49:0"]))
    order = tuple(node.name for node in graph.nodes)
    plan = Plan(order=order, evictions=(Transfer(Value("n0"), (), "n1"),), device=near, host=far)
    told = lifetimes(program(graph, plan), 1, {1: [0]})
    sent = told.buffers[graph.form.number_of(Value("n0"))]

    def held(seconds: float) -> list[int]:
        costs = replace(SLOW_LINK, seconds=dict.fromkeys(order, seconds))
        return [
            int(other.end[sent] - told.end[sent]) for other, _ in variations_of(told, costs, {})
        ]

    assert len(variations_of(told, SLOW_LINK, {}, 16)) == FEWEST
    assert 0 in held(HELD_SECONDS / 8)
    assert 0 < max(held(HELD_SECONDS / 8)) <= 8
    assert max(held(HELD_SECONDS)) <= 1  # a node that begins as the copy lands
    here = replace(plan, host="/job:localhost/replica:0/task:0/device:CPU:1")
    assert variations_of(lifetimes(program(graph, here), 1, {1: [0]}), SLOW_LINK, {}) == ()


@pytest.mark.parametrize(
    ("sizes", "device", "orders"),
    [
        ((700, 1200, 500, 300), "CPU", FEWEST),
        ((700, 700, 700, 700), "CPU", 0),
        ((700, 1200, 500), "CPU", 0),
        ((700, 1200, 500, 300), "GPU", 0),
    ],
)
def test_outputs_that_a_kernel_makes_in_threads_of_their_own_are_asked_for_in_any_order(
    sizes: tuple[int, ...], device: str, orders: int
) -> None:
    name = f"/job:localhost/replica:0/task:0/device:{device}:0"
    readers = "\n".join(f"r{i} = Sum(parts:{i}) [8] @{name}" for i in range(len(sizes)))
    outputs = ", ".join(f"r{i}:0" for i in range(len(sizes)))
    graph = parse(f"""
        x = _Arg() [{sum(sizes)}] @{name}
        parts = SplitV(x:0) {list(sizes)} @{name}
        {readers}
        return {outputs}""")
    costs = replace(static_costs(graph, flops={}, device=name), granularity=1)
    told = lifetimes(program(graph, Plan(device=name)), 1)
    others = [other for other, _ in variations_of(told, costs, {})]
    asked = [
        [nbytes for one in requests(other, (), {}) for _, nbytes in one if nbytes in sizes]
        for other in (told, *others)
    ]
    assert len(others) == orders
    assert asked[0] == list(sizes)
    assert all(sorted(one) == sorted(sizes) for one in asked)
    assert (len({*map(tuple, asked)}) > 2) == bool(orders)
    assert all(other.start.tolist() == told.start.tolist() for other in others)


def test_what_a_branch_takes_and_gives_may_be_held_unless_it_takes_long(three: Varied) -> None:
    def held(seconds: float) -> set[int]:
        """Buffers that end later in other steps."""
        costs = replace(three.costs, seconds=dict.fromkeys(three.told.program.names, seconds))
        others = variations_of(three.told, costs, {})
        return {b for other, _ in others for b in np.flatnonzero(other.end > three.told.end)}

    form, told = three.graph.form, three.told
    near = set()
    for name in three.costs.once:
        node = form.number[name]
        values = (*form.reads[node], *range(form.first[node], form.first[node + 1]))
        near |= {told.buffers[value] for value in values}
    assert three.costs.once == three.costs.choices.keys()
    assert held(HELD_SECONDS / 8)
    assert held(HELD_SECONDS / 8) <= near
    assert not held(2 * HELD_SECONDS)


def test_a_loop_has_come_to_before_it_ends() -> None:
    @tf.function(autograph=False)
    def step(which: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < which, lambda i, y: (i + 1, y @ y), (0, x))[1]

    looped = varied(step)
    assert len(looped.costs.requests) == 1
    assert looped.costs.once == frozenset()
    assert looped.others == ()


def test_a_branch_and_its_gradient_are_chosen_alike(three: Varied) -> None:
    by_op: dict[str, list[str]] = {}
    for name in three.costs.choices:
        by_op.setdefault(three.graph.by_name[name].op.removeprefix("Stateless"), []).append(name)
    forward, backward = by_op["Case"]
    taken = three.branches(forward)
    assert sorted(set(taken)) == [0, 1, 2]
    assert three.branches(backward) == taken
    forward, backward = by_op["If"]
    assert sorted(set(three.branches(forward))) == [0, 1]
    assert three.branches(forward) == three.branches(backward)


def test_each_step_gives_back_what_it_asks_for(three: Varied) -> None:
    step, _ = step_of(three.graph, three.costs, Plan())
    for asked in step._in_turn(()):
        assert _left(asked) == set()
    assert len({_most(asked) for asked in step._in_turn(())}) > 1


def test_a_branch_keeps_an_output_that_its_gradient_reads(three: Varied) -> None:
    """What comes after `tanh` does not write into its output: there is a buffer more."""
    (forward, _) = [one for one in three.costs.choices if "Case" in three.graph.by_name[one].op]
    step, _ = step_of(three.graph, three.costs, Plan())
    told, *others = [list(step._by_position((), one)) for one in (None, *step.variations)]
    of_tanh = others[three.branches(forward).index(0)]
    position = 1 + three.told.program.names.index(forward)
    nbytes = 4 * ROWS * ROWS
    assert [size for _, size in of_tanh[position] if size == nbytes] == [nbytes] * 2
    assert len(told) == len(of_tanh)


def _left(asked: Requests) -> set[int]:
    alive: set[int] = set()
    for number, nbytes in asked:
        if nbytes > 0:
            assert number not in alive
            alive.add(number)
        else:
            assert number in alive
            alive.discard(number)
    return alive


def _most(asked: Requests) -> int:
    held: dict[int, int] = {}
    most = 0
    for number, nbytes in asked:
        if nbytes > 0:
            held[number] = nbytes
            most = max(most, sum(held.values()))
        else:
            del held[number]
    return most
