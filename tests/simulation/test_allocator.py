"""The allocator's rules, and what they add to a simulated peak."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import DEVICE, graphs, training_chain
from tfmem.costs.types import HOLE, SWITCH, WALLS, Asked, Costs, Feed
from tfmem.graph.ir import Graph
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.simulation import best_fit, calling, replay
from tfmem.simulation.allocator import Bfc, Chunk
from tfmem.simulation.calling import Caller
from tfmem.simulation.layout import layout, within
from tfmem.simulation.liveness import lifetimes
from tfmem.simulation.past import with_past
from tfmem.simulation.program import program
from tfmem.simulation.replay import Replay
from tfmem.simulation.requests import functions, kernel_buffers, most_of
from tfmem.simulation.simulate import allocate, simulate

MIB = 2**20


def test_a_chunk_is_split_only_if_it_is_twice_the_request() -> None:
    pool = Bfc()
    first = pool.allocate(2 * MIB)  # the whole first region
    pool.release(first)
    assert pool.allocate(MIB + 256).size == 2 * MIB
    assert pool.in_use == 2 * MIB
    pool = Bfc()
    assert pool.allocate(MIB).size == MIB
    assert pool.reserved == 2 * MIB


def test_regions_double_and_neighbours_join() -> None:
    pool = Bfc()
    chunks = [pool.allocate(MIB // 2) for _ in range(4)]
    pool.allocate(256)
    assert pool.reserved == 2 * MIB + 4 * MIB
    for chunk in chunks[1:3]:
        pool.release(chunk)
    assert pool.allocate(MIB).begin == chunks[1].begin
    assert pool.allocate(30 * MIB).size == 32 * MIB
    assert pool.reserved == (2 + 4 + 32) * MIB


def test_room_is_not_passed() -> None:
    pool = Bfc(room=(5 * MIB,))
    chunks = [pool.allocate(2 * MIB) for _ in range(2)]
    assert pool.fits
    assert pool.reserved == 5 * MIB
    pool.release(chunks[0])
    pool.allocate(2 * MIB + 256)  # three MiB are free, but not together
    assert not pool.fits


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4000), st.booleans()), max_size=60))
def test_chunks_never_overlap_and_everything_comes_back(
    requests: list[tuple[int, bool]],
) -> None:
    pool, held = Bfc(), []
    for size, is_release in requests:
        if is_release and held:
            pool.release(held.pop(size % len(held)))
        else:
            held.append(pool.allocate(256 * size))
        free = ((begin, begin + size) for size, begin in pool.free_places)
        spans = sorted((*free, *((c.begin, c.begin + c.size) for c in held)))
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert sum(end - begin for begin, end in spans) == pool.reserved
        assert pool.in_use == sum(chunk.size for chunk in held)
    for chunk in held:
        pool.release(chunk)
    assert pool.in_use == 0


def step_of(graph: Graph, costs: Costs) -> Replay:
    steps = program(graph, Plan(device=DEVICE))
    found = lifetimes(steps, costs.granularity)
    inside = functions(steps, costs, found)
    return Replay(found, kernel_buffers(steps, costs), inside, fed=costs.fed)


def undisturbed(graph: Graph, costs: Costs, room: int | None = None) -> tuple[int, bool]:
    """Most bytes of one step in an allocator that was empty before, and whether they had room."""
    pool = Bfc(None if room is None else (room,))
    (most,) = step_of(graph, costs).run(pool, Caller.SAME, steps=1)
    return most, pool.fits


@settings(max_examples=60, deadline=None)
@given(graphs, st.sampled_from([Caller.SAME, Caller.NEW]), st.integers(1, 9))
def test_steps_that_begin_as_an_earlier_one_are_known(
    graph: Graph, caller: Caller, steps: int
) -> None:
    """Peaks are those of a replay that runs each step."""
    step, count = step_of(graph, Costs()), itertools.count()
    with mock.patch.object(replay, "_state", side_effect=lambda *_: next(count)):
        every = step.run(with_past(1, step._sizes), caller, steps)
    assert [steps, *step.run(with_past(1, step._sizes), caller, steps)] == [len(every), *every]


@pytest.mark.parametrize(("is_read_later", "scratch"), [(False, [512]), (True, [256, 512])])
def test_scratch_is_an_inputs_buffer_where_nobody_reads_it_later(
    is_read_later: bool, scratch: list[int]
) -> None:
    """TensorFlow's own gradient of a pool: beside it 512 bytes, before its output of 1024."""
    plain = parse(f"""
        x = _Arg() [1024] @{DEVICE}
        a = Exp(x:0) [1024] @{DEVICE}
        y = MaxPool(a:0) [256] @{DEVICE}
        g = MaxPoolGrad(a:0, y:0, y:0) [1024] @{DEVICE}
        z = AddN(g:0, {"y:0" if is_read_later else "x:0"}) [768] @{DEVICE}
        return z:0""")
    nodes = (replace(n, lent=1, inplace=(0,)) if n.name == "g" else n for n in plain.nodes)
    graph = Graph(tuple(nodes), plain.outputs)
    costs = Costs(workspace={"g": 768}, buffers={"g": (256, 512, 0)})
    asked = step_of(graph, costs).asked()
    assert [nbytes for node, nbytes in asked if node == "g"] == scratch


def test_a_replay_without_room_ends_with_the_step_that_has_none() -> None:
    step, runs, most = step_of(parse(IN_THE_MIDDLE), Costs()), [], Replay._most
    with mock.patch.object(Replay, "_most", lambda *args: runs.append(1) or most(*args)):
        assert not step.within_apart((MIB,), (), 9).fits
        assert len(runs) == 1
        assert not step.within_apart((MIB,), (), 9, to_the_end=True).fits
        assert len(runs) > 2


def test_equal_sizes_need_no_padding_and_a_limit_below_the_peak_is_not_enough() -> None:
    graph, costs = training_chain(8, 4 * MIB), Costs()
    exact = simulate(graph, costs, Plan(device=DEVICE)).peak_bytes
    assert undisturbed(graph, costs) == (exact, True)
    assert undisturbed(graph, costs, room=exact + 4 * MIB) == (exact, True)
    assert not undisturbed(graph, costs, room=exact - MIB)[1]


def test_a_caller_that_makes_arguments_anew_needs_room_for_both() -> None:
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{3 * MIB}] @{DEVICE}
        return a:0""")
    apart = step_of(graph, Costs()).pieces * (2**16 + 256) + (WALLS + HOLE) * 256
    assert allocate(graph, Costs(), Plan(device=DEVICE), room=(11 * MIB + apart,)).fits
    assert not allocate(graph, Costs(), Plan(device=DEVICE), room=(6 * MIB + apart,)).fits


class Recorded(Bfc):
    """An allocator that writes down what it is asked for, and the most in use then by size."""

    serve = best_fit.BestFit.serve  # Python's, which calls `allocate`

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.most = list[int](), dict[int, int]()

    def allocate(self, size: int) -> Chunk:
        self.asked.append(size)
        chunk = Bfc.allocate(self, size)
        self.most[size] = max(self.most.get(size, 0), self.in_use)
        return chunk


def test_arguments_that_another_thread_makes_come_as_the_step_before_begins() -> None:
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{3 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{2 * MIB}] @{DEVICE}
        c = MatMul(b:0) [{1 * MIB}] @{DEVICE}
        return c:0""")
    x, *own = 4 * MIB, 3 * MIB, 2 * MIB, MIB
    pool = Recorded()
    step_of(graph, Costs()).run(pool, Caller.AHEAD, steps=30)
    asked = [size for size in pool.asked if size >= MIB]
    assert asked == [*30 * [x, *own], x]  # the next ones of the first are there already
    pools = {caller: Recorded() for caller in (Caller.AHEAD, Caller.EARLY)}
    for caller, pool in pools.items():
        step_of(graph, Costs()).run(pool, caller, steps=30)
    early, ahead = pools[Caller.EARLY].most[x], pools[Caller.AHEAD].most[x]
    assert early - ahead == x  # the old ones are there still
    held = [Caller.EARLY.is_early(step, 8) for step in range(8)]
    assert held == [True, True, True, True, False, True, False, True]
    assert not any(Caller.AHEAD.is_early(step, 8) for step in range(8))
    assert step_of(graph, Costs()).kinds == (Caller.SAME, Caller.NEW)
    assert step_of(graph, Costs(fed=Feed())).kinds == tuple(Caller)


def test_arguments_side_by_side_are_one_chunk_where_both_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those after the next are in the chunk of `a` then."""
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{6 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{3 * MIB}] @{DEVICE}
        c = MatMul(b:0) [{6 * MIB}] @{DEVICE}
        d = MatMul(c:0) [1024] @{DEVICE}
        return d:0""")
    step, fits = step_of(graph, Costs(fed=Feed())), []
    for places in (((1.0, False),), ((1.0, True),)):
        monkeypatch.setattr(calling, "PLACES", places)
        fits.append(step.within_apart((12 * MIB + 2**16,), (4 * MIB, 6 * MIB), steps=8).fits)
    assert fits == [True, False]


IN_THE_MIDDLE = f"""
    x = _Arg() [1024] @{DEVICE}
    a = MatMul(x:0) [{4 * MIB}] @{DEVICE}
    c = MatMul(a:0) [{2 * MIB}] @{DEVICE}
    d = MatMul(c:0) [{5 * MIB}] @{DEVICE}
    e = MatMul(d:0, c:0) [1024] @{DEVICE}
    return e:0"""


def test_chunks_are_kept_apart_for_the_large_where_they_would_not_fit_else() -> None:
    """Without a chunk of its own `d` finds `c`, which is alive to the end, in the middle.

    | a a a a | c |   |     then, of seven, four in a row are free:    | c | d d d d |
    """
    step = step_of(parse(IN_THE_MIDDLE), Costs())
    pieces = (2**16,) * step.pieces
    room = (8 * MIB + (step.pieces + 1) * (2**16 + 256),)
    apart = layout([(step, 3)], room)
    assert apart
    assert len(apart) > len(pieces)
    assert not step.within_apart(room, pieces, steps=3).fits
    assert within(step, room, steps=3).fits


def test_what_has_no_layout_does_not_fit() -> None:
    """Arguments that are made ahead have chunks of their own, which take room besides."""
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{3 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{2 * MIB}] @{DEVICE}
        return b:0""")
    step = step_of(graph, Costs(fed=Feed()))
    found = []
    for nbytes in range(4 * MIB, 24 * MIB, MIB):
        room = (nbytes + (step.pieces + 1) * (2**16 + 256),)
        found.append(layout([(step, 3)], room) is not None)
        assert within(step, room, steps=3).fits == found[-1]
    assert any(found)
    assert not all(found)


def test_rows_of_what_is_fed_have_chunks_that_a_step_leaves_alone() -> None:
    """Eight of 100 KiB apart, and as many of 40 KiB, which no piece is large enough for."""
    graph = parse(IN_THE_MIDDLE)
    plain = step_of(graph, Costs(fed=Feed()))
    fed = step_of(graph, Costs(fed=Feed(((102400, 8), (40960, 8)))))
    assert fed.piece < 40960 < plain.piece
    small = step_of(graph, Costs(fed=Feed(((20480, 24),))))
    assert small.piece == plain.piece
    assert small.pieces >= plain.pieces + 8
    room = (16 * MIB,)
    apart = layout([(fed, 3)], room)
    assert apart
    assert apart.count(102400) == apart.count(40960) == 8
    least = [
        next(n for n in range(6 * MIB, 16 * MIB, 2**16) if layout([(step, 3)], (n,)))
        for step in (plain, fed)
    ]
    assert least[1] - least[0] >= 8 * 102400


def test_rows_that_pipelines_keep_move_into_chunks_of_their_own() -> None:
    """Three batches of eight leave where they were side by side, one in each step."""
    step = step_of(parse(IN_THE_MIDDLE), Costs(fed=Feed(((102400, 8),), kept=3)))
    assert step.rows == (102400,) * 32

    def after(steps: int, *, is_drained: bool) -> tuple[Bfc, list[Chunk]]:
        pool = Bfc(())
        rows = step.beginning.rows_kept(pool, 1.0)
        pool.add(40 * MIB)
        step.run(pool, Caller.NEW, steps, rows=rows if is_drained else ())
        return pool, rows

    pool, rows = after(1, is_drained=True)
    assert [row.is_free for row in rows] == [True] * 8 + [False] * 16
    still, rows = after(1, is_drained=False)
    assert not any(row.is_free for row in rows)
    assert pool.in_use == still.in_use  # they are in use elsewhere now
    pool, _ = after(4, is_drained=True)
    assert max(size for size, _ in pool.free_places if size < 30 * MIB) >= 20 * 102400


def test_plans_that_share_a_room_are_laid_out_together() -> None:
    """`first` needs a chunk kept apart, `second` does not mind, `third` needs more than all."""
    first = step_of(parse(IN_THE_MIDDLE), Costs())
    second = step_of(parse(IN_THE_MIDDLE.replace(f"[{5 * MIB}]", f"[{3 * MIB}]")), Costs())
    third = step_of(parse(IN_THE_MIDDLE.replace(f"[{5 * MIB}]", f"[{8 * MIB}]")), Costs())
    room = (8 * MIB + (first.pieces + 1) * (2**16 + 256),)
    apart = layout([(first, 3), (second, 3)], room)
    assert apart
    for step in (first, second):
        assert step.within_apart(room, apart, 3).fits
    assert layout([(first, 3), (third, 3)], room) is None


def test_what_ran_before_leaves_holes() -> None:
    graph = parse(f"""
        x = _Arg() [1024] @{DEVICE}
        a = MatMul(x:0) [{4 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{3 * MIB}] @{DEVICE}
        c = MatMul(b:0, a:0) [{2 * MIB}] @{DEVICE}
        d = MatMul(c:0, b:0) [{5 * MIB}] @{DEVICE}
        e = MatMul(d:0) [1024] @{DEVICE}
        return e:0""")
    worst = [
        allocate(graph, Costs(), Plan(device=DEVICE), count=count).worst_bytes
        for count in (1, 4, 8)
    ]
    assert undisturbed(graph, Costs())[0] <= worst[0] <= worst[1] <= worst[2]
    assert worst[0] < worst[2]
    found = allocate(graph, Costs(), Plan(device=DEVICE))
    assert found.usual_bytes <= found.worst_bytes == worst[2]


LOOP = parse(f"""
    v = _Variable() [{4 * MIB}] @{DEVICE}
    x = _Arg() [1024] @{DEVICE}
    w = While(x:0, v:0) [1024] @{DEVICE}
    return w:0""")


@pytest.mark.parametrize(("end", "padding"), [(0, 0), (SWITCH, MIB)])
def test_a_variable_that_a_loop_assigns_moves(end: int, padding: int) -> None:
    """What is put into the hole that it leaves is padded.

    | v v v v | x |         |    then | 3 3 3 + | x | v v v v | 2 2 |
    """
    asked = Asked(((1, 4 * MIB), (1, end), (2, 3 * MIB), (3, 2 * MIB), (2, 0), (3, 0)))
    assert most_of(asked, given=()) == 5 * MIB
    costs = Costs(requests={"w": asked}, workspace={"w": 5 * MIB - 1024})
    most, _ = undisturbed(LOOP, costs, room=64 * MIB)
    assert most == 4 * MIB + 1024 + 5 * MIB + padding


def test_a_variable_may_be_given_what_another_had() -> None:
    graph = parse(f"""
        x = _Arg() [1024] @{DEVICE}
        v = _Variable() [1024] @{DEVICE}
        w = _Variable() [1024] @{DEVICE}
        r = ReadVariableOp(w:0) [1024] @{DEVICE}
        s = AssignSubVariableOp(w:0, x:0, ^r) [] @{DEVICE}
        t = AssignVariableOp(v:0, r:0, ^s) [] @{DEVICE}
        u = ReadVariableOp(v:0, ^t) [1024] @{DEVICE}
        y = Exp(u:0) [1024] @{DEVICE}
        return y:0""")
    peaks = step_of(graph, Costs()).run(Bfc(), Caller.SAME, steps=8)
    assert peaks == peaks[:1] * 8


def test_a_variable_that_is_given_what_another_keeps_shares_it() -> None:
    graph = parse(f"""
        x = _Arg() [1024] @{DEVICE}
        v = _Variable() [1024] @{DEVICE}
        w = _Variable() [1024] @{DEVICE}
        r = ReadVariableOp(w:0) [1024] @{DEVICE}
        t = AssignVariableOp(v:0, r:0) [] @{DEVICE}
        y = Exp(x:0, ^t) [1024] @{DEVICE}
        return y:0""")
    peaks = step_of(graph, Costs()).run(Bfc(), Caller.SAME, steps=4)
    assert peaks == [3072] * 4


def test_two_variables_may_be_given_one_buffer() -> None:
    graph = parse(f"""
        a = _Variable() [1024] @{DEVICE}
        b = _Variable() [1024] @{DEVICE}
        x = _Arg() [1024] @{DEVICE}
        y = Exp(x:0) [1024] @{DEVICE}
        s = AssignVariableOp(a:0, y:0) [] @{DEVICE}
        t = AssignVariableOp(b:0, y:0) [] @{DEVICE}
        return""")
    for room in (None, (2**20,)):
        found = allocate(graph, Costs(), Plan(device=DEVICE), room=room)
        assert found.fits
        assert found.worst_bytes >= 4 * 1024
