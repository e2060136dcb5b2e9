"""What lists and optionals refer to, and for how long, in graphs of a few nodes."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfmem.costs.types import Costs
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph.bodies import Body
from tfmem.graph.ir import Stash, Value
from tfmem.graph.scalars import Bounded, may_be_known, number_of, spanning
from tfmem.graph.text import parse
from tfmem.plan import Fetch, Placement, Plan, Transfer
from tfmem.simulation.callers import asked_of, with_bodies
from tfmem.simulation.contents import studied
from tfmem.simulation.counting import MOST_TURNS, Numbers, numbers_of, turns_of
from tfmem.simulation.requests import most_of
from tfmem.simulation.simulate import allocate, simulate

KIB = 1024
GRAIN = 256

STATE = """
    i = _Arg() [4]
    x = _Arg() [4096]
    list = _Arg() [64]
    limit = _Arg() [4]"""
CONDITION = f"""{STATE}
    goes = Less(i:0, limit:0) [1]
    return goes:0"""
NEXT = f"""{STATE}
    one = Const() [4]
    j = AddV2(i:0, one:0) [4]"""
PUSHING = f"""{NEXT}
    y = MatMul(x:0) [4096]
    more = TensorListPushBack(list:0, y:0) [64]
    return j:0, y:0, more:0, limit:0"""
POPPING = f"""{NEXT}
    less = TensorListPopBack(list:0, one:0) [64, 4096]
    y = MatMul(x:0, less:1) [4096]
    return j:0, y:0, less:0, limit:0"""
STEP = """
    x = _Arg() [4096]
    zero = Const() [4]
    limit = Const() [4]
    list = EmptyTensorList(zero:0, limit:0) [64]
    there = While(zero:0, x:0, list:0, limit:0) [4, 4096, 64, 4]
    loss = MatMul(there:1) [4096]
    back = StatelessWhile(zero:0, loss:0, there:2, limit:0) [4, 4096, 64, 4]
    found = MatMul(back:1) [8]
    return found:0"""


def body(text: str, **more: object) -> Body:
    graph = parse(text)
    numbers = {"one": 1} if "one" in graph.by_name else {}
    return Body(graph, numbers=numbers, **more)  # type: ignore[arg-type]


def step(turns: int, pushing: str = PUSHING, popping: str = POPPING) -> Body:
    loops = {
        "there": (body(CONDITION), body(pushing)),
        "back": (body(CONDITION), body(popping)),
    }
    return Body(parse(STEP), bodies=loops, numbers={"zero": 0, "limit": turns})


def priced(found: Body) -> Costs:
    return with_bodies(Costs(), found.graph, found.bodies)


def test_a_list_refers_to_what_was_pushed_on_it() -> None:
    r"""Of five elements four are known to the loop alone, the last is its output, too.

    there:2 -> [y y y y y]
                ------- \
                 stash   there:1
    """
    found = studied(step(5), GRAIN)
    node = found.graph.by_name["there"]
    assert node.stashes == (Stash(((4096, 4),), (2,)),)
    assert node.holds == ((2, Value("there", 1)),)
    assert (3, Value("limit")) in node.same


PASSING = """
    v = _Variable() [8192] @{where}
    x = _Arg() [4096] @dev
    w = ReadVariableOp(v:0) [8192] @{where}
    zero = Const() [4] @dev
    there = While(zero:0, x:0, w:0, zero:0) [4, 4096, 8192, 4] @dev
    late = MatMul(there:2, there:1) [8] @dev
    return late:0"""
WEIGHING = f"""{NEXT}
    y = MatMul(x:0, list:0) [4096]
    return j:0, y:0, list:0, limit:0"""


def test_what_a_loop_passes_on_is_the_variable_that_it_was_given() -> None:
    """And where that lives on the host one copy is made, which lasts to who reads it there."""
    texts = [text.replace("[64]", "[8192]") for text in (CONDITION, WEIGHING)]
    bodies = {"there": tuple(map(body, texts))}
    made = {}
    for where in ("dev", "far"):
        top = Body(parse(PASSING.format(where=where)), bodies=bodies, numbers={"zero": 0})
        found = studied(top, GRAIN).graph
        assert (2, Value("w")) in found.by_name["there"].same
        fetch = Transfer(Value("w"), (Fetch(("there",)),))
        placed = (Placement("v", ("w",), (fetch,)),) if where == "far" else ()
        made[where] = simulate(found, Costs(), Plan(placements=placed, device="dev", host="far"))
    there, late = made["far"].timeline.tolist()[-2:]
    assert made["dev"].timeline.tolist()[-2:] == [there, late]
    assert there < late == made["far"].peak_bytes == 8192 + 4096 + 2 * GRAIN


def test_elements_count_from_the_loop_that_makes_them_to_that_which_pops_them() -> None:
    found = studied(step(5), GRAIN)
    simulation = simulate(found.graph, priced(found), Plan())
    timeline = dict(zip(simulation.order, simulation.timeline.tolist(), strict=True))
    small = 8 * GRAIN  # counters, limits, handles
    stash = 5 * 4096
    assert 4096 + stash < timeline["there"] <= 4096 + stash + 4096 + small
    assert timeline["loss"] == pytest.approx(4096 + stash + 4096, abs=small)
    # The first turn back makes one, and gives back the loss and an element.
    assert timeline["back"] == pytest.approx(4096 + stash + 2 * 4096, abs=small)
    assert timeline["found"] == pytest.approx(4096 + 4096, abs=small)


def test_the_allocator_is_asked_for_the_same() -> None:
    found = studied(step(9), GRAIN)
    costs = priced(found)
    exact = simulate(found.graph, costs, Plan()).peak_bytes
    assert exact <= allocate(found.graph, costs, Plan()).worst_bytes <= exact + 8 * KIB


def test_every_element_that_a_loop_is_given_comes_back() -> None:
    found = studied(step(6), GRAIN)
    asked = asked_of(found.graph, "back", found.bodies["back"], GRAIN, {})
    ended = {one for one, nbytes in asked.events if nbytes <= 0}
    elements = {one for one, node, output, _, _ in asked.given if (node, output) == ("there", 4)}
    assert len(elements) == 5
    assert elements <= ended
    assert most_of(asked, ended) < 4096 + 4 * GRAIN < most_of(asked, given=())


def test_what_others_read_later_is_not_taken_over() -> None:
    """The last element is the loop's output, too, which `late` reads before `back`, or after it."""
    popping = POPPING.replace("MatMul(x:0, less:1)", "TanhGrad(less:1, x:0)")
    popping = popping.replace("return j:0, y:0", "z = MatMul(y:0) [4096]\n return j:0, z:0")
    text = STEP.replace("back =", "late = MatMul(there:1) [8]\n back =")
    loops = step(5, popping=popping)
    top = studied(replace(loops, graph=parse(text.replace("(back:1)", "(back:1, late:0)"))), GRAIN)
    order = [node.name for node in top.graph.nodes if not node.is_input]
    moved = [name for name in order if name not in ("late", "found")] + ["late", "found"]
    peaks = []
    for names in (order, moved):
        found = simulate(top.graph, priced(top), Plan(order=tuple(names)))
        peaks.append(dict(zip(found.order, found.timeline.tolist(), strict=True))["back"])
    assert peaks[1] - peaks[0] == pytest.approx(4096, abs=2 * GRAIN)


def test_more_turns_keep_more() -> None:
    peaks = []
    for turns in (1, 4, 40):
        found = studied(step(turns), GRAIN)
        peaks.append(simulate(found.graph, priced(found), Plan()).peak_bytes)
    assert peaks[2] - peaks[1] == 36 * 4096
    assert peaks[1] - peaks[0] == pytest.approx(3 * 4096, abs=4096)


def test_a_body_holds_what_it_pushes_and_is_given_what_it_pops() -> None:
    found = studied(step(5), GRAIN)
    pushing, popping = found.bodies["there"][1].graph, found.bodies["back"][1].graph
    # What the turn before has pushed is x now.
    assert set(pushing.by_name["more"].holds) == {(0, Value("x")), (0, Value("y"))}
    assert popping.by_name["list"].stashes == (Stash(((4096, 1),), (0,)),)
    assert popping.by_name["less"].same == ((1, Value("list", 1)),)
    assert simulate(popping, Costs(), Plan()).peak_bytes < 3 * 4096 + 8 * GRAIN


def test_a_loop_that_nothing_bounds_is_refused_if_it_keeps_something() -> None:
    data = CONDITION.replace("Less(i:0, limit:0)", "Any(x:0)")
    loops = {
        "there": (body(data), body(PUSHING)),
        "back": (body(CONDITION), body(POPPING)),
    }
    top = Body(parse(STEP), bodies=loops, numbers={"zero": 0, "limit": 5})
    with pytest.raises(UnsupportedFunctionError, match=r"the loop there keeps 4\.\d KiB"):
        studied(top, GRAIN)


def test_a_loop_that_keeps_nothing_needs_no_bound() -> None:
    data = CONDITION.replace("Less(i:0, limit:0)", "Any(x:0)")
    keeping = PUSHING.replace("TensorListPushBack(list:0, y:0)", "Identity(list:0)")
    loops = {"there": (body(data), body(keeping))}
    text = STEP[: STEP.index("    back")] + "    return loss:0"
    found = studied(Body(parse(text), bodies=loops, numbers={"zero": 0}), GRAIN)
    assert not found.graph.by_name["there"].stashes


BRANCH = """
    x = _Arg() [4096]
    y = MatMul(x:0) [4096]
    kept = OptionalFromValue(y:0) [64]
    none = OptionalNone() [64]
    z = MatMul(y:0) [4096]
    return z:0, kept:0, none:0"""
OTHER = """
    x = _Arg() [4096]
    y = MatMul(x:0) [4096]
    v = MatMul(y:0) [4096]
    kept = OptionalFromValue(v:0) [64]
    none = OptionalNone() [64]
    more = OptionalFromValue(y:0) [64]
    z = MatMul(v:0) [4096]
    return z:0, none:0, kept:0"""
CHOICE = """
    p = _Arg() [1]
    x = _Arg() [4096]
    there = If(p:0, x:0) [4096, 64, 64]
    loss = MatMul(there:0) [4096]
    back = StatelessIf(p:0, loss:0, there:1, there:2) [4096]
    found = MatMul(back:0) [8]
    return found:0"""
BACK = """
    loss = _Arg() [4096]
    kept = _Arg() [64]
    other = _Arg() [64]
    y = OptionalGetValue(kept:0) [4096]
    z = MatMul(loss:0, y:0) [4096]
    return z:0"""


def choice() -> Body:
    back = BACK.replace("OptionalGetValue(kept:0)", "OptionalGetValue(other:0)")
    branches = {
        "there": (body(BRANCH), body(OTHER)),
        "back": (body(BACK), body(back)),
    }
    return Body(parse(CHOICE), bodies=branches)


def test_each_branch_is_described_by_a_run_that_takes_it() -> None:
    found = studied(choice(), GRAIN)
    stashed = [value for value in found.graph.by_name["there"].stashes if value.nbytes == 4096]
    assert len(stashed) == 1  # both keep one tensor
    for function in found.bodies["back"]:
        assert function.arguments is not None
        assert simulate(function.graph, Costs(), Plan()).peak_bytes < 4 * 4096


def test_what_a_branch_returns_for_nobody_ends_in_it() -> None:
    unread = CHOICE.replace(
        "back = StatelessIf(p:0, loss:0, there:1, there:2)", "back = Neg(loss:0)"
    )
    found = studied(Body(parse(unread), bodies={"there": (body(BRANCH), body(OTHER))}), GRAIN)
    assert not found.graph.by_name["there"].stashes
    simulation = simulate(found.graph, priced(found), Plan())
    assert simulation.peak_bytes < 4 * 4096 + 4 * GRAIN


def test_turns_are_counted_by_numbers_alone() -> None:
    condition, pushing = numbers_of(body(CONDITION)), numbers_of(body(PUSHING))
    assert turns_of(condition, pushing, [0, None, None, 7]) == 7
    assert turns_of(condition, pushing, [3, None, None, 7]) == 4
    assert turns_of(condition, pushing, [0, None, None, None]) is None
    assert turns_of(condition, pushing, [0, None, None, MOST_TURNS + 1]) is None


def test_turns_of_a_loop_between_bounds_are_bounded() -> None:
    condition, pushing = numbers_of(body(CONDITION)), numbers_of(body(PUSHING))
    for begin, limit, expected in (
        (0, Bounded(2, 7), Bounded(2, 7)),
        (Bounded(0, 7), 7, Bounded(0, 7)),
        (Bounded(3, 4), Bounded(0, 9), Bounded(0, 6)),
    ):
        found = turns_of(condition, pushing, [begin, None, None, limit])
        assert repr(found) == repr(expected)


def test_turns_of_a_loop_that_never_tells_are_not_counted() -> None:
    condition, pushing = numbers_of(body(CONDITION)), numbers_of(body(PUSHING))
    with mock.patch.object(Numbers, "run", autospec=True, side_effect=Numbers.run) as run:
        assert turns_of(condition, pushing, [0, None, None, None]) is None
    assert run.call_count == 1


@given(
    st.sampled_from(["Neg", "AddV2", "FloorDiv", "AddN", "LogicalAnd", "SelectV2", "Less", "Tanh"]),
    st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=3),
)
def test_what_is_known_may_be_known(op: str, numbers: list[int | None]) -> None:
    assume(op != "SelectV2" or len(numbers) == 3)
    if number_of(op, numbers) is not None:
        assert may_be_known(op, [one is not None for one in numbers])


def test_a_bound_holds_whatever_else_ends_the_loop() -> None:
    both = """
        i = _Arg() [4]
        x = _Arg() [4096]
        list = _Arg() [64]
        limit = _Arg() [4]
        less = Less(i:0, limit:0) [1]
        data = Any(x:0) [1]
        goes = LogicalAnd(less:0, data:0) [1]
        return goes:0"""
    assert turns_of(numbers_of(body(both)), numbers_of(body(PUSHING)), [0, None, None, 7]) == 7


def test_numbers_of_scalars() -> None:
    assert number_of("AddV2", [2, 3]) == 5
    assert number_of("LogicalAnd", [None, 0]) == 0
    assert number_of("LogicalOr", [None, 1]) == 1
    assert number_of("LogicalAnd", [None, 1]) is None
    assert number_of("FloorDiv", [7, 0]) is None
    assert number_of("SelectV2", [1, 4, None]) == 4
    assert number_of("Tanh", [1]) is None


@given(
    st.sampled_from(["AddV2", "Sub", "Mul", "Minimum", "Maximum", "FloorMod", "Equal", "Less"]),
    st.tuples(st.integers(-9, 9), st.integers(0, 4)),
    st.tuples(st.integers(1, 9), st.integers(0, 4)),
)
def test_bounds_hold_of_all_that_lies_between(
    op: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    ends = [(least, least + more) for least, more in (first, second)]
    found = number_of(op, [spanning(one) for one in ends])
    assert found is not None
    least = found.least if isinstance(found, Bounded) else found
    for a in range(ends[0][0], ends[0][1] + 1):
        for b in range(ends[1][0], ends[1][1] + 1):
            exact = number_of(op, [a, b])
            assert exact is not None
            assert least <= exact <= found


def test_a_constant_of_a_loop_is_there_for_the_whole_step() -> None:
    large = PUSHING.replace("one = Const() [4]", "one = Const() [4]\n    c = Const() [8192]")
    large = large.replace("MatMul(x:0)", "MatMul(x:0, c:0)")
    found, plain = (studied(step(5, text), GRAIN) for text in (large, PUSHING))
    costs = priced(found)
    assert 8192 in costs.requests["there"].stays
    with_it, without = (simulate(one.graph, priced(one), Plan()) for one in (found, plain))
    assert set(with_it.timeline - without.timeline) == {8192}
    took = allocate(found.graph, costs, Plan()).worst_bytes
    assert with_it.peak_bytes <= took <= with_it.peak_bytes + 8 * KIB


def test_a_constant_that_a_loop_pushes_counts_once() -> None:
    pushing = PUSHING.replace("one = Const() [4]", "one = Const() [4]\n    c = Const() [8192]")
    pushing = pushing.replace("TensorListPushBack(list:0, y:0)", "TensorListPushBack(list:0, c:0)")
    found = studied(step(5, pushing, POPPING.replace("[64, 4096]", "[64, 8192]")), GRAIN)
    assert not found.graph.by_name["there"].stashes
    costs = priced(found)
    assert costs.requests["there"].stays.count(8192) == 1
    exact = simulate(found.graph, costs, Plan()).peak_bytes
    assert exact < 8192 + 4 * 4096 + 12 * GRAIN
    assert exact <= allocate(found.graph, costs, Plan()).worst_bytes <= exact + 8 * KIB


UNROLLED = """
    x = _Arg() [4096]
    zero = Const() [4]
    one = Const() [4]
    none = TensorListReserve(zero:0, one:0) [64]
    y = MatMul(x:0) [4096]
    first = TensorListSetItem(none:0, zero:0, y:0) [64]
    z = MatMul(y:0) [4096]
    both = TensorListSetItem(first:0, one:0, z:0) [64]
    last = MatMul(z:0) [8]
    all = TensorListStack(both:0, zero:0) [8192]
    return last:0, all:0"""


def test_a_list_that_no_loop_fills_refers_to_what_was_set_in_it() -> None:
    found = studied(Body(parse(UNROLLED), numbers={"zero": 0, "one": 1}), GRAIN)
    simulation = simulate(found.graph, priced(found), Plan())
    timeline = dict(zip(simulation.order, simulation.timeline.tolist(), strict=True))
    assert timeline["last"] == pytest.approx(3 * 4096, abs=8 * GRAIN)  # x, y and z
    assert timeline["all"] == pytest.approx(3 * 4096 + 8192, abs=8 * GRAIN)
