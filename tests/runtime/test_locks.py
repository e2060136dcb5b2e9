"""What must not be cut in two."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tfmem.runtime.locks import SharedLock, uninterrupted


def test_many_share_a_lock_and_one_has_it_alone() -> None:
    lock, seen, both = SharedLock(), list[str](), threading.Barrier(2, timeout=10)
    shared, is_over = threading.Event(), threading.Event()

    def share() -> None:
        with lock.shared(), lock.shared():
            both.wait()  # two are in it at once
            shared.set()
            is_over.wait(10)
            seen.append("shared")

    threads = [threading.Thread(target=share) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert shared.wait(10)
    with pytest.raises(TimeoutError), lock.alone(0.05):
        pass
    is_over.set()
    with lock.alone(10), lock.alone(10), lock.shared():
        seen.append("alone")
        late = threading.Thread(target=lambda: share_late(lock, seen))
        late.start()
        late.join(0.1)
        assert late.is_alive()
    late.join(10)
    for thread in threads:
        thread.join(10)
    assert seen == ["shared", "shared", "alone", "late"]


def share_late(lock: SharedLock, seen: list[str]) -> None:
    with lock.shared():
        seen.append("late")


def test_the_only_one_who_shares_a_lock_may_have_it_alone() -> None:
    lock = SharedLock()
    with lock.shared(), lock.alone(0.05):
        pass
    with lock.alone(0.05):
        pass


def test_ctrl_c_waits_for_the_end_of_a_block() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have jobs ignore it
    done = []

    def block() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inside")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inside"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_are_not_asked_for_signals() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert done == [1]
