"""Plans that share the free memory of a device are made anew a few times, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.captures import LOCAL
from tfmem.errors import BudgetError, HostMemoryError
from tfmem.functions.entry import Entry, Tenant
from tfmem.functions.layouts import RENEWALS, Layouts


def tenant(name: str) -> Any:
    return Tenant(name, LOCAL, (None, 1), is_fit=False)  # type: ignore[arg-type]


def entry(name: str, layouts: Layouts) -> Entry:
    """One whose plan does not fit."""
    made = tenant(name)
    layouts._tenants.setdefault(LOCAL, set()).add(made)  # type: ignore[arg-type]
    return Entry(name, None, (), 0.0, 0, tenants=(made,))  # type: ignore[arg-type]


def test_a_plan_without_room_is_refused_once_it_was_made_often_enough() -> None:
    """Whatever became of other functions of its name."""
    layouts, tries = Layouts(), RENEWALS
    for _ in range(RENEWALS):
        tries = layouts.tries_left(entry("step", layouts), tries)
    with pytest.raises(BudgetError, match=f"step: what is free on {LOCAL} is too scattered"):
        layouts.tries_left(entry("step", layouts), tries)
    assert layouts.tries_left(entry("step", layouts), RENEWALS) == RENEWALS - 1


def test_a_plan_that_others_displace_again_and_again_stays_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layouts = Layouts()
    first = entry("step", layouts)
    entries: dict[Any, Entry] = {"one": first, "same": first}

    def make(*_: Any) -> Entry:
        entries["one"] = replace(first, tenants=(tenant("step"),), seconds=1.0)
        return entries["one"]

    for turn in range(RENEWALS):
        assert layouts.renewed(entries["one"], entries, make, (), {}).renewals == turn + 1
    kept = entries["one"]
    assert layouts.renewed(kept, entries, make, (), {}) is kept is entries["one"]
    assert kept.is_fit
    assert "its next steps may run out of memory" in caplog.text


@pytest.mark.parametrize("error", [HostMemoryError("the host is full"), KeyboardInterrupt()])
def test_a_plan_stays_where_it_is_if_another_cannot_be_made(error: BaseException) -> None:
    layouts = Layouts()
    first = entry("step", layouts)
    entries: dict[Any, Entry] = {"one": first, "same": first}

    def make(*_: Any) -> Entry:
        raise error

    if isinstance(error, HostMemoryError):
        assert layouts.renewed(first, entries, make, (), {}) is first
        assert first.is_fit
    else:
        with pytest.raises(KeyboardInterrupt):
            layouts.renewed(first, entries, make, (), {})
        assert not first.is_fit  # the next call plans again
    assert entries == {"one": first, "same": first}
    assert layouts._tenants[LOCAL] == set(first.tenants)
