"""What steps held on each device, where that is counted."""

from __future__ import annotations

import pytest

from tfmem.errors import Error
from tfmem.functions.peaks import Peaks
from tfmem.runtime import memory


def test_a_device_that_counts_nothing_is_asked_once_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, counter = [], {"a": 70}

    def begin(device: str, budget: int) -> None:
        asked.append(device)
        if device not in counter:
            raise Error(f"{device} keeps no statistics")
        counter[device] = 10

    monkeypatch.setattr(memory, "begin_step", begin)
    monkeypatch.setattr(memory, "step_peak", counter.__getitem__)
    peaks = Peaks()
    for held, most in ((30, 30), (20, 30), (40, 40)):
        with peaks.counted(("none", "a")):
            counter["a"] = max(counter["a"], held)
        assert peaks.of("a") == most
        assert peaks.of("none") is None
    assert asked == ["none", "a"]
