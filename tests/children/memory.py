"""What tests/runtime/test_memory.py asks of processes of their own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import TestCase, mock

import tfmem
from tests.children.host import MIB, raised
from tfmem.functions.resolve import with_room
from tfmem.planning.request import Request
from tfmem.runtime import devices, heap, memory
from tfmem.runtime.partition import partition


def figures() -> dict[str, Any]:
    """A step whose memory is known: a variable of 16 MiB, two temporaries of 16 MiB at the peak."""
    import tensorflow as tf

    shape = [16, MIB // 4]
    variable = tf.Variable(tf.zeros(shape))
    earlier = tf.zeros([60, MIB // 4])
    del earlier

    @tf.function
    def step(x: Any) -> Any:
        variable.assign_add(tf.ones_like(variable) * x)
        y = tf.cumsum(variable, axis=1)
        return {"loss": tf.reduce_max(tf.cumsum(y, axis=0) * 0.0 + x), "large": variable + 1.0}

    found = memory.measure(step, tf.constant(2.0), steps=3)
    return {
        "device": found.device,
        "peak": found.peak_bytes,
        "current": found.current_bytes,
        "seconds": found.step_seconds,
        "scalars": found.scalars,
        "value": float(variable[0, 0]),
        "limit": memory.device_limit("CPU:0"),
        "scarce": devices.scarce(),
        "no steps": raised(lambda: memory.measure(step, tf.constant(2.0), steps=0)),
    }


def names() -> dict[str, str]:
    """What becomes of device names."""
    given = ["CPU:0", "/cpu:0", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:CPU:0"]
    wrong = ["GPU:5", "banana", "", "/job:ps/device:CPU:0"]
    return {
        "same": " ".join({devices.full_name(name) for name in given}),
        **{name: raised(lambda name=name: devices.full_name(name)) for name in wrong},
        "none": raised(lambda: devices.full_name(None)),  # type: ignore[arg-type]
    }


def largest() -> list[bool]:
    """Whether requests of 10, 20, 30, 90 MiB fit, each freed before the next."""
    import tensorflow as tf

    def fits(mib: int) -> bool:
        try:
            tf.raw_ops.Empty(shape=[mib, MIB], dtype=tf.uint8)
        except tf.errors.ResourceExhaustedError:
            return False
        return True

    return [fits(mib) for mib in (10, 20, 30, 90)]


def variable_mib(mib: int) -> int:
    """Holds a variable of so many MiB; its first bytes."""
    import tensorflow as tf

    return int(tf.Variable(tf.zeros([mib, MIB], tf.uint8))[0, 0])


def probed(free_mib: int) -> list[float]:
    """Rates found on a device that has little room left."""
    import tensorflow as tf

    from tfmem.functions import pricing
    from tfmem.runtime import devices, memory

    current, _ = memory.memory_info("CPU:0")
    region = memory.region_bytes("CPU:0") or 0
    others = tf.zeros([region - current - free_mib * MIB], tf.uint8)
    rates = pricing.rates_of(devices.full_name("CPU:0"))
    assert others.shape[0] > 0
    return [] if rates is None else [rates.flops, rates.nbytes]


def fails() -> None:
    """An error of the user's."""
    raise KeyError("of mine")


def killed() -> None:
    """Is killed."""
    os.kill(os.getpid(), 9)


def sleeps() -> None:
    """Takes long."""
    time.sleep(60)


def environment() -> list[str | None]:
    """The allocator's variables, and one given."""
    names = ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB", "OF_MINE")
    return [os.environ.get(name) for name in names]


def no_statistics() -> dict[str, str]:
    """What is said where the allocator keeps none; run with the variables removed or set late."""
    import tensorflow as tf

    os.environ.pop("TF_CPU_ALLOCATOR_USE_BFC")
    tf.zeros([10])
    facts = {"without": raised(lambda: memory.measure(lambda: 1))}
    facts["limit"] = str(memory.device_limit("CPU:0"))
    return facts


def main() -> None:
    """Run as a module: a line of JSON, and the exit status that is asked for."""
    sys.stdout.write("not this\n" + json.dumps({"arguments": sys.argv[1:]}) + "\n")
    sys.exit(int(sys.argv[1]))


if __name__ == "__main__":
    main()


def free_chunks() -> dict[str, Any]:
    """Holes of known sizes between buffers that stay; the rest claimed; chunks walled off."""
    import tensorflow as tf

    def buffer(nbytes: int) -> Any:
        return tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8)

    device, limit = devices.full_name("CPU:0"), memory.device_limit("CPU:0") or 0
    sizes = [3 * MIB, MIB // 2, 3 * MIB, 40 * 1024]
    pairs = [(buffer(nbytes), buffer(3 * MIB)) for nbytes in sizes]
    made = [wall for _, wall in pairs]
    del pairs
    first = heap.measured(device)
    heap.claim(device)
    with mock.patch.object(heap, "pool_of", return_value=(0, limit - 3 * 2**16, MIB)):
        heap.claim(device)  # what was measured is a region off: nothing more is to be had
    claimed = heap.measured(device)
    apart = partition(device, (5 * MIB, 2**16, 2**16))
    parted = heap.measured(device)
    del apart
    joined = heap.measured(device)
    apart = partition(device, (5 * MIB, 2**16, 2**16))
    beside = []
    while made:  # what lies behind each hole
        made.pop()
        beside.append(heap.measured(device))
    assert apart
    assert first
    assert all(beside)
    assert claimed
    assert parted
    assert joined
    return {
        "holes": sizes,
        "first": (first.in_use, first.free, first.unclaimed),
        "claimed": (claimed.in_use, claimed.free, claimed.unclaimed),
        "parted": parted.free,
        "joined": joined.free,
        "limit": limit,
        "beside": [one.free for one in beside if one],
    }


def chunks_alike(first_grains: int, second_grains: int) -> dict[str, Any]:
    """Two free chunks of so many grains, the largest there are, of which one is parted."""
    import tensorflow as tf

    def side_by_side(count: int, nbytes: int) -> list[Any]:
        return [tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8) for _ in range(count)]

    device = devices.full_name("CPU:0")
    chunks, walls = [], side_by_side(8, 256) + side_by_side(2, MIB)
    for grains in (first_grains, second_grains):
        chunks += [side_by_side(8, MIB), side_by_side(grains, 256)]
        walls += side_by_side(1, 2**16)
    walls += side_by_side(12, MIB)
    del chunks
    before = heap.measured(device)
    apart = partition(device, (2**16, MIB))
    after = heap.measured(device)
    assert before
    assert after
    return {"before": before.free, "after": after.free, "walls": len(apart) + len(walls)}


def untold() -> dict[str, Any]:
    """What is said to be free while the profiler is in use, and while others ask for buffers."""
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    traced = heap.traced

    @contextmanager
    def with_others(name: str) -> Iterator[list[Any]]:
        with traced(name) as events:
            yield events
        events += events

    request = Request(budget=150 * MIB, device=device)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        profiled = heap.measured(device)
        with TestCase().assertLogs("tfmem") as told:
            room = with_room(request, lambda _: ()).room
        tf.profiler.experimental.stop()
    with mock.patch.object(heap, "traced", with_others):
        disturbed = heap.measured(device)
    in_use, _ = memory.memory_info(device)
    most = memory.region_bytes(device) or memory.device_limit(device) or 0
    return {
        "profiled": profiled,
        "disturbed": disturbed,
        "left": most - in_use,
        "room": room,
        "told": told.output,
        "parted": heap.measured(device) is not None,
    }


def nearly_full() -> list[tuple[tuple[int, ...], int]]:
    """The free chunks and what is unclaimed, before and after all but two chunks are taken.

    Of those a buffer of 256 KiB takes the one, and the next the other, the largest.
    """
    import tensorflow as tf

    def buffer(nbytes: int) -> Any:
        return tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8)

    device = devices.full_name("CPU:0")
    pairs = [(buffer(nbytes), buffer(256)) for nbytes in (404 * 1024, 260 * 1024)]
    walls = [wall for _, wall in pairs]
    del pairs
    before = heap.measured(device)
    assert before
    held = [buffer(nbytes) for nbytes in sorted(before.free)[2:]]
    after = heap.measured(device)
    assert after
    assert walls
    assert held
    return [(one.free, one.unclaimed) for one in (before, after)]


def constants() -> dict[str, Any]:
    """Bytes in use before and after steps whose gradient of a mean TensorFlow would fold."""
    import tensorflow as tf

    import tfmem

    weights = [tf.Variable(tf.random.stateless_normal([256, 256], [i, 1]) / 16) for i in range(8)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.gelu(y @ weight)
            loss = tf.reduce_mean(y**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal([8192, 256], [1, 2])
    optimized = tfmem.optimize(step, budget=150 * MIB)
    plan = optimized.plan(x)
    before, _ = memory.memory_info("CPU:0")
    measured = memory.measure(optimized, x, steps=2, warmup=2)
    return {
        "before": before,
        "after": measured.current_bytes,
        "peak": measured.peak_bytes,
        "predicted": plan.peak_bytes,
        "budget": plan.budget,
        "is noop": plan.is_noop,
    }


def no_room_for_variables() -> tuple[str, str, int]:
    """What is raised where a function's own variables have no room: its type, text, plans made."""
    import tensorflow as tf

    made: list[tf.Variable] = []

    def step(x: tf.Tensor) -> tf.Tensor:
        if not made:
            made.extend(tf.Variable(tf.random.normal((1024, 1024))) for _ in range(8))
        return tf.reduce_sum(x @ made[0])

    optimized = tfmem.optimize(step, budget="15MiB")
    try:
        optimized(tf.zeros((4, 1024)))
    except tfmem.Error as error:
        return type(error).__name__, str(error), len(optimized.plans)
    return "", "", len(optimized.plans)


def copied_back() -> dict[str, Any]:
    """Free chunks and bytes in use as variables were copied, and as that was foreseen."""
    import tensorflow as tf

    from tfmem.functions.resolve import _after_copies
    from tfmem.runtime import buffers, devices, heap

    device, sizes = devices.full_name("CPU:0"), (480, 160, 1000, 160, 70, 480, 310)
    made = [tf.Variable(tf.random.stateless_normal([kib, 256], [kib, 1])) for kib in sizes]
    expected = [variable.numpy() for variable in made]
    del made[1], made[3], expected[1], expected[3]  # among them, and beside others
    later, before = buffers.unsettled(made, device), heap.measured(device)
    assert before is not None
    foreseen, _ = _after_copies(before, later.copied)
    buffers.unshare(made, device)
    after = heap.measured(device)
    assert after is not None
    return {
        "count": [len(later.missing), len(later.copied)],
        "foreseen": [foreseen.begins, foreseen.free, foreseen.in_use],
        "after": [after.begins, after.free, after.in_use],
        "equal": all((v.numpy() == e).all() for v, e in zip(made, expected, strict=True)),
    }
