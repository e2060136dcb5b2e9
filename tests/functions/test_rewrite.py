"""Which plan each function of a loop or branch is rewritten by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tfmem.functions.rewrite import rewritten_bodies
from tfmem.graph.bodies import Body
from tfmem.graph.text import parse
from tfmem.plan import BodyPlan, Plan

FIRST, SECOND = (f"/job:localhost/replica:0/task:0/device:GPU:{number}" for number in (0, 1))

BODY = Body(
    parse("""
    x = _Arg() [256]
    a = Exp(x:0) [256]
    b = Neg(x:0) [256]
    c = AddV2(a:0, b:0) [256]
    return c:0"""),
    "turn",
)


def entry(graph: str, plans: dict[str, tuple[BodyPlan, ...]], bodies: dict[str, Body]) -> Any:
    planned = [SimpleNamespace(plan=Plan(device=one, bodies=made)) for one, made in plans.items()]
    captured = SimpleNamespace(
        graph=parse(graph), bodies={name: (body,) for name, body in bodies.items()}
    )
    return SimpleNamespace(planned=planned, captured=captured)


def order_of(made: Any) -> list[str]:
    body, graph = made
    assert body == BODY
    return [node.name for node in graph.nodes if not node.is_input]


def plan_of(node: str, order: str, device: str, peak: int = 0) -> BodyPlan:
    return BodyPlan(node, 0, Plan(order=("x", *order), device=device, peak_bytes=peak))


def test_a_body_is_under_the_plan_of_the_device_that_runs_it() -> None:
    graph = f"x = _Arg() [256] @{FIRST}\nl = While(x:0) [256] @{SECOND}\nreturn l:0"
    planned = {FIRST: (), SECOND: (plan_of("l", "bac", SECOND),)}
    made = rewritten_bodies(entry(graph, planned, {"l": BODY}))
    assert order_of(made["turn"]) == ["b", "a", "c"]
    assert order_of(rewritten_bodies(entry(graph, {FIRST: ()}, {"l": BODY}))["turn"]) == [*"abc"]


def test_a_function_that_two_loops_run_is_under_the_tighter_of_their_plans() -> None:
    graph = f"""
    x = _Arg() [256] @{FIRST}
    l = While(x:0) [256] @{FIRST}
    m = While(l:0) [256] @{FIRST}
    return m:0"""
    for first, second in ((512, 768), (768, 512)):
        plans = plan_of("l", "bac", FIRST, first), plan_of("m", "abc", FIRST, second)
        made = rewritten_bodies(entry(graph, {FIRST: plans}, {"l": BODY, "m": BODY}))
        assert order_of(made["turn"]) == [*("bac" if first < second else "abc")]
    plans = (plan_of("m", "bac", FIRST, 512),)  # that of the other is as it was
    made = rewritten_bodies(entry(graph, {FIRST: plans}, {"l": BODY, "m": BODY}))
    assert order_of(made["turn"]) == ["b", "a", "c"]
