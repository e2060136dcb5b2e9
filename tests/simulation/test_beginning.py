"""What lies in a device's memory before the first step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.graphs import DEVICE
from tfmem.costs.types import Costs, Lying
from tfmem.graph.ir import Graph, Value
from tfmem.graph.text import parse
from tfmem.plan import Plan
from tfmem.runtime.memory import MIB
from tfmem.simulation import calling
from tfmem.simulation.allocator import Bfc, NoRoom
from tfmem.simulation.beginning import Beginning
from tfmem.simulation.calling import Caller
from tfmem.simulation.replay import Replay
from tfmem.simulation.simulate import step_of

GIVEN = {0: 4 * MIB, 1: 2 * MIB, 2: 2 * MIB, 3: MIB}
"""A variable, and three arguments."""


def put(*lying: Lying, padding: float = 1.0, is_joined: bool = False) -> str:
    """What lies where, by address, once it is put between two free chunks."""
    names = {1: "x", 2: "y", 3: "z"}
    beginning = Beginning(GIVEN, names, lying, rows=(), taken=(), piece=2**16)
    pool = Bfc(())
    chunks = beginning.put(pool, Caller.NEW, ((8 * MIB, MIB), (16 * MIB,)), padding, is_joined)
    assert len(chunks) == len(GIVEN)
    places = [(chunk.begin, chunk.size, names.get(b, "v")) for b, chunk in chunks.items()]
    places += [(begin, size, "free") for size, begin in pool.free_places]
    found, end = "", 0
    for begin, size, name in sorted(places):
        found += f"{'' if begin == end else ' '}{name}{size / MIB:g}"
        end = begin + size
    return found.strip()


def test_arguments_lie_between_the_free_chunks_where_they_are_known_to() -> None:
    x, y = Lying("x", 1, 2 * MIB, 2 * MIB, is_beside=False), Lying("y", 1, 2 * MIB, 2 * MIB, True)
    z = Lying("z", 0, MIB, 3 * MIB // 2, is_beside=False)
    assert put() == "v4 x2 y2 z1 free8 free1 free16"
    assert put(is_joined=True) == "x2y2z1 v4 free8 free1 free16"
    assert put(x, y, z) == "v4 free8 free1 x2y2 free16 z1"
    assert put(x, y, z, padding=1.5, is_joined=True) == "v4 free8 free1 x2y2 free16 z1.5"
    assert put(z, padding=1.5) == "v4 x3 y3 free8 free1 free16 z1.5"
    assert put(Lying("w", 2, MIB, MIB, is_beside=False), y) == "v4 x2 z1 free8 free1 y2 free16"


def test_an_argument_that_may_be_larger_lies_beside_the_next_if_it_is() -> None:
    x = Lying("x", 2, 2 * MIB, 3 * MIB, is_beside=False)
    y = Lying("y", 2, 2 * MIB, 2 * MIB, is_beside=True)
    assert put(x, y) == "v4 z1 x2 y2 free8 free1 free16"
    assert put(x, y, padding=1.5) == "v4 z1.5 x3y2 free8 free1 free16"


def test_an_argument_of_which_only_the_begin_is_known_is_padded_as_others() -> None:
    x = Lying("x", 1, 2 * MIB, 0, is_beside=False)
    assert put(x) == "v4 y2 z1 free8 free1 x2 free16"
    assert put(x, padding=1.5) == "v4 y3 z1.5 free8 free1 x3 free16"


def step(*lying: Lying) -> Replay:
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{4 * MIB}] @{DEVICE}
        b = MatMul(a:0) [{3 * MIB}] @{DEVICE}
        c = MatMul(b:0) [{6 * MIB}] @{DEVICE}
        d = MatMul(c:0, a:0) [1024] @{DEVICE}
        return d:0""")
    return step_of(graph, Costs(lying=lying), Plan(device=DEVICE))[0]


def test_of_chunks_of_a_size_the_lowest_is_taken() -> None:
    """Where the first argument was, `a` lies in the second step, or `c` would have no room.

    | a . | . . . . . . . |     | . . . . . . . | x |
    """
    above = Lying("x", 1, 4 * MIB, 4 * MIB, is_beside=False)
    below = Lying("x", 0, 4 * MIB, 4 * MIB, is_beside=False)
    pools = {}
    for name, one in (("above", above), ("below", below)):
        first = step(one)
        pool = Bfc(())
        chunks = first.beginning.put(pool, Caller.NEW, ((4 * MIB,),), 1.0, is_joined=True)
        (x,) = chunks.values()
        pool.release(x)
        pools[name] = pool.allocate(4 * MIB) is x
    assert pools == {"above": True, "below": False}


def test_the_peak_of_a_caller_who_passes_new_arguments_is_predicted() -> None:
    """He holds the old ones until the new are there: `a` has their chunk, `x` that of `a`.

    | x |       5       |     and from the second step on     | a |       | x |  2  |
    """
    lying = Lying("x", 1, 4 * MIB, 4 * MIB, is_beside=False)
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{3 * MIB}] @{DEVICE}
        b = MatMul(a:0) [1024] @{DEVICE}
        return b:0""")
    one = step_of(graph, Costs(lying=(lying,)), Plan(device=DEVICE))[0]
    found = one.within_apart((16 * MIB,), (), 9)
    assert found.usual_bytes == found.worst_bytes
    peaks = {}
    for caller in (Caller.SAME, Caller.NEW):
        one.kinds = (caller,)
        peaks[caller] = one.within_apart((16 * MIB,), (), 9).worst_bytes
    assert peaks[Caller.SAME] < peaks[Caller.NEW] == found.usual_bytes
    assert peaks[Caller.NEW] - peaks[Caller.SAME] >= MIB  # `a` has all of the chunk of `x`


def test_an_argument_that_a_step_returns_is_held_until_the_next_one_has_ended() -> None:
    """As what the last step returned, whether it is passed on as it is or through a view."""
    graph = parse(f"""
        x = _Arg() [{4 * MIB}] @{DEVICE}
        y = Identity(x:0) [{4 * MIB}] @{DEVICE}
        a = MatMul(x:0) [{3 * MIB}] @{DEVICE}
        b = MatMul(a:0) [1024] @{DEVICE}
        return b:0""")
    taken = {}
    for returned in ("b", "x", "y"):
        outputs = (*graph.outputs, *([] if returned == "b" else [Value(returned, 0)]))
        step, steps = step_of(Graph(graph.nodes, outputs), Costs(), Plan(device=DEVICE))
        step.kinds = (Caller.NEW,)
        taken[returned] = step.within_apart((64 * MIB,), (), steps).worst_bytes
    assert taken["x"] == taken["y"] >= taken["b"] + 4 * MIB


@pytest.mark.parametrize(
    ("lying", "count"),
    [
        ((), 3),
        ((Lying("x", 0, 4 * MIB, 4 * MIB, False),), 2),
        ((Lying("x", 0, 4 * MIB, 5 * MIB, False),), 3),
        ((Lying("y", 0, 4 * MIB, 4 * MIB, False),), 3),
    ],
)
def test_ways_to_lie_are_replayed_as_far_as_they_are_open(
    lying: tuple[Lying, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a caller who passes the same arguments again, the others of one who does not."""
    begun: list[float] = []
    put = Beginning.put
    monkeypatch.setattr(
        Beginning, "put", lambda self, *args: begun.append(args[3]) or put(self, *args)
    )
    one = step(*lying)
    assert one.within_apart((64 * MIB,), (), 3).fits
    assert len(begun) == count
    assert begun[0] == calling.PLACES[0][0]
    begun.clear()
    assert step().at(lying).within_apart((64 * MIB,), (), 3).fits
    assert len(begun) == count


def test_a_way_is_tried_first_where_the_last_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Caller] = []
    lacking = {Caller.NEW}
    run = Replay.run

    def runs(self: Replay, pool: Bfc, caller: Caller, *args: Any, **kwargs: Any) -> list[int]:
        begun.append(caller)
        if caller in lacking:
            pool.fits = False
            raise NoRoom
        return run(self, pool, caller, *args, **kwargs)

    monkeypatch.setattr(Replay, "run", runs)
    one = step()
    assert not one.within_apart((64 * MIB,), (), 3).fits
    assert begun == [Caller.SAME, Caller.NEW]
    assert not one.within_apart((64 * MIB,), (MIB,), 3).fits
    assert begun[2:] == [Caller.NEW]
    lacking.clear()
    found = one.within_apart((64 * MIB,), (MIB,), 3)
    assert begun[3:] == [Caller.NEW, Caller.SAME, Caller.NEW]
    assert found == step().within_apart((64 * MIB,), (MIB,), 3)
