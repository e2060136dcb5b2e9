"""What is asked of the planner: the room that an allocator has."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tfmem.costs.types import Home
from tfmem.errors import HostMemoryError
from tfmem.functions import resolve
from tfmem.graph.ir import ARG, Graph, Node
from tfmem.plan import Plan
from tfmem.planning.request import Decision, Request
from tfmem.runtime import host
from tfmem.runtime.chunks import Chunk
from tfmem.runtime.heap import Heap
from tfmem.simulation.simulate import Simulation

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "budget", "is_far"),
    [
        (64 * GIB, 2 * GIB, True),  # far above the budget
        (64 * GIB, 60 * GIB, True),  # a CPU's default limit, above what the machine has
        (20 * GIB, 10 * GIB, False),
        (20 * GIB, None, True),
    ],
)
def test_a_limit_that_is_far_away_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, limit: int, budget: int | None, is_far: bool
) -> None:
    """To claim what the machine does not have takes ten seconds, and fails."""
    monkeypatch.setattr(host, "free_bytes", lambda _: 24 * GIB)
    monkeypatch.setattr(resolve.memory, "memory_info", lambda _: (GIB, GIB))
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert resolve._is_far(limit, Request(budget=budget, device=device)) == is_far


def test_what_a_function_has_elsewhere_is_not_its_own_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a batch on another GPU, or a variable on the host that is passed as an argument."""
    here, there = (f"/job:localhost/replica:0/task:0/device:GPU:{number}" for number in (0, 1))
    nodes = [Node("x", ARG, nbytes=(2**20,), device=here), Node("w", ARG, nbytes=(2**19,))]
    captured = SimpleNamespace(variables={}, graph=Graph(tuple(nodes), ()), passed=())
    monkeypatch.setattr(resolve.memory, "memory_info", lambda _: (2**22, 2**22))
    beside = [
        resolve.bytes_beside(captured, Request(budget=GIB, device=one))  # type: ignore[arg-type]
        for one in (here, there)
    ]
    assert beside == [2**22 - 2**20 - 2**19, 2**22 - 2**19]


def on_host(nbytes: int) -> Simulation:
    return Simulation(0, "", np.zeros(0), 0.0, nbytes, (), (), 0)


def test_what_the_original_has_on_the_host_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda _: 100)
    plan = Plan(host="/job:far/replica:0/task:0/device:CPU:0")
    resolve.check_host_memory(Decision(plan, on_host(500), on_host(500), 0))
    resolve.check_host_memory(Decision(plan, on_host(500), on_host(600), 0))
    with pytest.raises(HostMemoryError, match=r"the plan needs 101 B more on .* where 100 B are"):
        resolve.check_host_memory(Decision(plan, on_host(500), on_host(601), 0))


@pytest.mark.parametrize(
    ("free", "chunk", "expected"),
    [
        ({0: 4096}, (8192, 1024), {0: 4096}),  # back in its place
        ({0: 1536}, (8192, 1024), {0: 1536}),  # of a chunk that is handed out whole meanwhile
        ({0: 4096}, (4096, 1024), {0: 1024, 2048: 3072}),  # which has grown together with another
        ({0: 512}, (8192, 1024), {0: 512}),  # no copy has room
        ({0: 4096}, (0, 4096), {0: 4096}),  # another thread has let go of it meanwhile
        ({1024: 4096}, (512, 1024), {1024: 4096}),
        ({1024: 4096}, (4096, 2048), {1024: 4096}),
    ],
)
def test_a_variable_that_is_copied_goes_back_unless_its_place_has_grown(
    free: dict[int, int], chunk: tuple[int, int], expected: dict[int, int]
) -> None:
    found = Heap(10_000, tuple(free.values()), tuple(free), 0)
    after, _ = resolve._after_copies(found, [(Chunk(*chunk, is_sure=True), chunk[1])])
    assert dict(zip(after.begins, after.free, strict=True)) == expected
    assert after.in_use == 10_000


def test_variables_are_told_with_what_lies_beside_them() -> None:
    found = Heap(10_000, (1024, 512, 256), (0, 4096, 8192), 0)
    places = {"first": 1024, "second": 3072, "far": 6144, "last": 7168}
    homes = {name: Chunk(begin, 1024, is_sure=True) for name, begin in places.items()}
    first, second, far, last = (Home(name, 1024) for name in homes)
    assert resolve._blocks(found, homes) == ((0, first), (second, 1), (far, last, 2))
