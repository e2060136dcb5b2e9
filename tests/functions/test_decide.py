"""What was planned for is what the call runs, if it still fits."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import tensorflow as tf

import tfmem
from tfmem import BudgetError
from tfmem.bridge import feeds
from tfmem.functions import decide
from tfmem.planning.request import Request


def chain(x: Any) -> Any:
    for _ in range(6):
        x = tf.exp(x * 0.1)
    return tf.reduce_sum(x)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that a plan was searched for."""
    found: list[Any] = []

    def choose(graph: Any, costs: Any, request: Any, *rest: Any) -> Any:
        found.append(request)
        return real(graph, costs, request, *rest)

    real = decide.choose
    monkeypatch.setattr(decide, "choose", choose)
    return found


def test_the_call_after_a_plan_has_that_plan(searches: list[Any]) -> None:
    step, x = tfmem.optimize(chain, budget="64MiB"), tf.ones([2**20])
    plan = step.plan(x)
    step(x)
    assert step.plans == (plan,)
    assert step.plan(x) == plan
    assert len(searches) == 1


def test_a_plan_that_does_not_fit_any_more_is_made_again(
    searches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, x = tfmem.optimize(chain, budget="64MiB"), tf.ones([2**20])
    plan = step.plan(x)
    monkeypatch.setattr(decide, "bytes_beside", lambda *_: 64 * 2**20 - plan.peak_bytes // 2)
    with pytest.raises(tfmem.BudgetError, match="beside"):
        step(x)
    assert len(searches) == 2


def test_a_plan_made_before_a_data_set_was_held_is_made_again(
    searches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set makes its batches in the memory that the plan counts on."""
    held, others = feeds._held, feeds._held()  # what other tests of this process left behind
    monkeypatch.setattr(
        feeds, "_held", lambda: [one for one in held() if not any(one is other for other in others)]
    )
    step = tfmem.optimize(chain, budget="64MiB")
    step.plan(tf.ones([2**20]))
    batches = iter(tf.data.Dataset.from_tensors(tf.ones([2**20])).repeat())
    step(next(batches))
    assert len(searches) == 2


def test_a_function_may_call_one_that_another_thread_plans() -> None:
    """The other thread holds that function while this one traces a call of it."""
    began, x, results = threading.Event(), tf.ones([64]), []

    @tfmem.optimize
    def inner(x: Any) -> Any:
        began.set()
        time.sleep(0.2)  # this thread comes to its call
        return 2.0 * x

    @tfmem.optimize
    def outer(x: Any) -> Any:
        others[1].start()
        began.wait(10)
        return inner(x) + 1.0

    calls = [lambda: results.append(outer(x)), lambda: results.append(inner(x))]
    others = [threading.Thread(target=call, daemon=True) for call in calls]
    others[0].start()
    for thread in others:
        thread.join(30)
    assert sorted(float(one[0]) for one in results) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("least", "may_grow", "tried"),
    [
        (90, True, [1.0, 1.25, 1.5]),  # holes alone are in the way, and with half as much more none
        (101, True, [1.0]),
        (90, False, [1.0]),
        (None, True, [1.0]),
    ],
)
def test_holes_alone_are_no_reason_where_the_allocator_may_grow(
    monkeypatch: pytest.MonkeyPatch, least: int | None, may_grow: bool, tried: list[float]
) -> None:
    request = Request(budget=100, device="CPU:0", room=(10,), may_grow=may_grow)
    spares: list[float] = []

    def as_devices_are(*given: Any) -> tuple[Request, ...]:
        spares.append(given[-1])
        return (request,)

    def plan_devices(*_: Any) -> str:
        if spares[-1] < 1.5:
            raise BudgetError("too scattered", least)
        return "planned"

    monkeypatch.setattr(decide, "as_devices_are", as_devices_are)
    monkeypatch.setattr(decide, "plan_devices", plan_devices)
    ask: Any = partial(decide.decide, None, (request,), None, (), settles=False, before=None)  # type: ignore[arg-type]
    if len(tried) > 1:
        assert ask() == "planned"
    else:
        with pytest.raises(BudgetError, match="too scattered"):
            ask()
    assert spares == tried
