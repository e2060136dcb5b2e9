"""Plans of the functions that loops and branches run."""

from __future__ import annotations

from tfmem.plan import BodyPlan, Plan
from tfmem.planning.nested import without_budgets


def plans(order: str, outer: int, inner: int) -> tuple[BodyPlan, ...]:
    """The plan of a function whose loop has a planned function itself."""
    within = BodyPlan("cond", 0, Plan(order=tuple(order), budget=inner))
    return (BodyPlan("while", 1, Plan(order=("cond",), budget=outer, bodies=(within,))),)


def test_plans_that_differ_in_budgets_alone_do_the_same() -> None:
    assert without_budgets(plans("ab", 7, 5)) == without_budgets(plans("ab", 8, 6))
    assert without_budgets(plans("ab", 7, 5)) != without_budgets(plans("ba", 7, 5))
    assert without_budgets(()) == ()
