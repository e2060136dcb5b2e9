"""What tests/runtime/test_variables.py asks of a process of its own under a hard limit."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from typing import Any

import tfmem
from tests.children.host import MIB, raised
from tfmem.graph import device_names
from tfmem.runtime import buffers, creation, devices, host, memory, variables

SHAPE = [3, 32, MIB // 4]  # 96 MiB of float32, in pieces of 32
NBYTES = 96 * MIB


def used() -> int:
    """Bytes in use on this process's CPU:0."""
    gc.collect()
    return memory.memory_info("CPU:0")[0]


def moving() -> dict[str, Any]:
    """One large variable goes to the host and back, with functions that knew it before."""
    import tensorflow as tf

    with host.host_process() as device:
        base = used()
        variable = tf.Variable(tf.reshape(tf.range(NBYTES // 4, dtype=tf.float32), SHAPE), name="v")
        old = functions(variable)
        traced = tf.function(lambda: old["read"]() + 1.0)
        first = [float(old["read"]()), float(traced())]
        identity = (id(variable), variable.name, variable._unique_id)
        facts: dict[str, Any] = {"moves": [variables.moves()]}
        buffers.copy_reads([variable], devices.full_name("CPU:0"))
        facts["peak"] = added(lambda: variables.move_variable(variable, device))
        facts["moves"].append(variables.moves())
        facts["freed"] = used() - base
        facts["device"] = variable.device == device
        facts["identity"] = identity == (id(variable), variable.name, variable._unique_id)
        facts["value"] = exact(variable)
        facts["nested"] = [float(traced()), first[1]]
        facts["old"] = done(old, variable)
        facts["new"] = [float(functions(variable)["read"]()), first[0]]
        facts["checkpoint"] = round_trip(variable)
        back = functions(variable)
        back["read"]()
        facts["peak_back"] = added(lambda: variables.move_variable(variable, "CPU:0"))
        facts["read_back"] = added(variable.read_value)
        facts["back"] = [device_names.is_local(variable.device), exact(variable)]
        variables.pin([variable, variable], device)  # the host stands for a GPU
        facts["pinned"] = [device_names.is_local(variable.device), exact(variable)]
        facts["old_on_host"] = done(back, variable)
        facts["checkpoint_back"] = round_trip(variable)
        facts["host_bytes"] = host.running().memory().current_bytes
    return facts


def added(action: Any) -> int:
    """Most bytes in use on this process's CPU:0 in `action()`, beside those before."""
    before = used()
    memory.reset_peak("CPU:0")
    action()
    return memory.memory_info("CPU:0")[1] - before


def functions(variable: Any) -> dict[str, Any]:
    """Traced functions that read and write `variable`."""
    import tensorflow as tf

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable[0] * 2.0)
        return tape.gradient(loss, variable)[0, 0, 0]

    made = {
        "read": tf.function(lambda: variable[2, 31, 7]),
        "add": tf.function(lambda: variable[0, 0, 0].assign(5.0) is None),
        "assign": tf.function(lambda: variable.assign(tf.zeros(SHAPE)) is None),
        "gradient": gradient,
    }
    for function in made.values():
        function.get_concrete_function()
    return made


def done(functions: dict[str, Any], variable: Any) -> dict[str, Any]:
    """What functions give that were traced before a move, and what they do to the variable."""
    read, gradient = float(functions["read"]()), float(functions["gradient"]())
    functions["add"]()
    added = float(variable[0, 0, 0])
    functions["assign"]()
    assigned = float(variable[2, 31, 7])
    variable.assign(wanted(variable))
    return {"read": read, "gradient": gradient, "add": added, "assign": assigned}


def exact(variable: Any) -> bool:
    """Whether each element is what it was made with."""
    import tensorflow as tf

    with tf.device(variable.device):
        return bool(tf.reduce_all(variable == wanted(variable)))


def wanted(variable: Any) -> Any:
    """What the variable was made with, where it is."""
    import tensorflow as tf

    with tf.device(variable.device):
        return tf.reshape(tf.range(NBYTES // 4, dtype=tf.float32), SHAPE)


def round_trip(variable: Any) -> bool:
    """Saves, overwrites and restores: whether the value is right again."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(variable=variable)
        path = checkpoint.save(f"{folder}/saved")
        variable.assign(tf.zeros(SHAPE))
        checkpoint.restore(path).assert_consumed()
        return exact(variable)


def all_or_nothing() -> dict[str, Any]:
    """The host becomes full, then dies, while several variables are moved to it."""
    import tensorflow as tf

    facts: dict[str, Any] = {}
    with host.host_process(memory_limit=200 * MIB) as device:
        several = [tf.Variable(tf.fill([60, MIB // 4], float(i))) for i in range(3)]
        first = several[0]
        read = tf.function(lambda: first[0, 0])
        read()
        facts["full"] = raised(lambda: variables.move_variables(several, device))
        facts["kept"] = kept(several) and float(read()) == 0
        gc.collect()
        variables.move_variables([first, first], device)
        facts["one"] = first.device == device
        groups = {"CPU:0": [first], device: several[1:]}
        facts["groups"] = raised(lambda: variables.move_groups(groups))
        facts["kept_groups"] = first.device == device and float(first[59, 3]) == 0
        variables.move_variables([first], "CPU:0")
        os.kill(host.running().pid, 9)
        facts["dead"] = raised(lambda: variables.move_variables(several, device))
        facts["kept_dead"] = kept(several)
        facts["unknown"] = raised(lambda: variables.move_variables(several, "GPU:7"))
    return facts


def scattered() -> dict[str, Any]:
    """Variables that began with one buffer, where no chunk has room for a second of the largest."""
    import tensorflow as tf

    begin, little = tf.ones([4 * MIB]), tf.ones([MIB // 16])
    large, small = ([tf.Variable(one) for _ in range(6)] for one in (begin, little))
    del begin, little
    limit = memory.device_limit(devices.full_name("CPU:0")) or 0
    several = [tf.zeros([2 * MIB]) for _ in range((limit - used()) // (8 * MIB))]
    del several[::2]
    before, start = used(), time.monotonic()
    buffers.unshare([*large, *small], devices.full_name("CPU:0"))
    return {"seconds": time.monotonic() - start, "bytes": used() - before, "free": limit - before}


def shared() -> dict[str, Any]:
    """Variables that began with one buffer, one of which has no room for a second."""
    import tensorflow as tf

    begin = tf.random.stateless_normal([4 * MIB], seed=[1, 2])
    pair = [tf.Variable(begin), tf.Variable(begin)]
    expected = begin.numpy()
    del begin
    large = tf.Variable(tf.ones([32 * MIB]))
    before = used()
    buffers.unshare([*pair, large], devices.full_name("CPU:0"))
    after = used()
    pair[0].assign_add(tf.ones([4 * MIB]))
    updated = used()
    read = pair[1].read_value()  # shares the variable's buffer
    reads = [used() - updated]
    del read
    for change in (buffers.copy_reads, buffers.unshare):
        change([pair[1], tf.Variable(1.0)], devices.full_name("CPU:0"))
        read = pair[1].read_value()
        reads.append(used() - updated)
        del read
    return {
        "bytes": [before, after, updated],
        "read": reads,
        "values": [bool((pair[1].numpy() == expected).all()), float(tf.reduce_sum(large))],
    }


def crowded() -> list[int]:
    """Bytes in use before and after a pair that began with one buffer gets two, and an update.

    Those before it have their own, of which not all have room for a copy beside the others'.
    """
    import tensorflow as tf

    memory.claim_memory()
    large = [tf.Variable(tf.zeros([8 * MIB]) + float(one)) for one in range(4)]
    begin = tf.ones([4 * MIB])
    pair = [tf.Variable(begin), tf.Variable(begin)]
    del begin
    found = [used()]
    buffers.unshare([*large, *pair], devices.full_name("CPU:0"))
    found.append(used())
    pair[1].assign_add(tf.ones([4 * MIB]))
    return [*found, used()]


def kept(several: list[Any]) -> bool:
    """Whether all variables are here with the values they were made with."""
    return all(
        device_names.is_local(variable.device) and float(variable[59, 3]) == i
        for i, variable in enumerate(several)
    )


def refusals() -> dict[str, str]:
    """Variables that cannot be moved, and hosts that are not there."""
    import tensorflow as tf

    move = variables.move_variable
    with tf.Graph().as_default():
        graph_variable = tf.Variable(1.0)
    variable = tf.Variable(1.0)

    @tf.function
    def inside() -> None:
        move(variable, "CPU:0")

    def scope() -> None:
        with creation.host_variables():
            pass

    return {
        "tensor": raised(lambda: move(tf.constant(1.0), "CPU:0")),
        "graph": raised(lambda: move(graph_variable, "CPU:0")),
        "traced": raised(inside),
        "scope": raised(scope),
    }


def made_on_the_host() -> dict[str, Any]:
    """Variables of every kind made in a scope; of 256 MiB for a device of 150 MiB."""
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_keras

    def places(*made: Any) -> list[bool]:
        plain = [getattr(variable, "_value", variable) for variable in made]
        return [not device_names.is_local(variable.device) for variable in plain]

    facts: dict[str, Any] = {}
    with host.host_process():
        tf.config.experimental.reset_memory_stats("CPU:0")
        with creation.host_variables():
            large = tf.Variable(lambda: tf.zeros([256, MIB // 4]), shape=[256, MIB // 4])
            array = tf.Variable(np.zeros([MIB // 4], np.float32))
            small = tf.Variable(lambda: tf.zeros([10]))
            facts["plain"] = places(large, array, small)
            dense = tf_keras.layers.Dense(1000)
            dense.build([None, 1000])
            facts["tf_keras"] = places(dense.kernel, dense.bias)
            tf.random.set_seed(7)
            there = tf.Variable(lambda: tf.random.normal([600, 1000]))
            keras.utils.set_random_seed(7)
            three = keras.layers.Dense(1000)
            three.build([None, 1000])
            facts["keras"] = places(three.kernel, three.bias)
            facts["lazy"] = places(*lazily_made())
            too_large = {"shape": [2**40], "dtype": tf.float32, "name": "everything"}
            facts["too large"] = raised(lambda: tf.Variable(lambda: tf.zeros([2**40]), **too_large))
        facts["peak"] = memory.memory_info("CPU:0")[1]
        tf.random.set_seed(7)
        here = tf.Variable(lambda: tf.random.normal([600, 1000]))
        keras.utils.set_random_seed(7)
        local = keras.layers.Dense(1000)
        local.build([None, 1000])
        facts["outside"] = places(here, *local.weights)
        facts["same"] = [
            np.array_equal(here.numpy(), there.numpy()),
            np.array_equal(local.kernel.numpy(), three.kernel.numpy()),
        ]
        variables.move_variable(three.kernel, "CPU:0")
        facts["keras_moved"] = places(three.kernel)
        facts["slots"] = (
            slots(dense, tf_keras.optimizers.Adam()),
            slots(local, keras.optimizers.Adam()),
        )
        facts["nested"] = made_in_a_nested_function()
    return facts


def made_in_a_nested_function() -> list[Any]:
    """What an optimised step counts in a variable that a function within it makes, and where."""
    import tensorflow as tf

    made: list[Any] = []

    @tf.function
    def inner(x: Any) -> Any:
        if not made:
            with tf.init_scope():
                made.append(tf.Variable(tf.zeros([MIB // 4, 2])))
        made[0].assign_add(x)
        return tf.reduce_sum(made[0])

    step = tfmem.optimize(tf.function(lambda x: inner(x)), budget="100MiB", profile="static")
    ones = tf.ones([MIB // 4, 2])
    return [float(step(ones)), float(step(ones)), device_names.is_local(made[0].device)]


def lazily_made() -> list[Any]:
    """Variables that a function makes when it is traced."""
    import tensorflow as tf

    made: list[Any] = []

    @tf.function
    def step() -> Any:
        if not made:
            made.append(tf.Variable(tf.ones([1000, 500])))
            made.append(tf.Variable(3.0))
        return tf.reduce_sum(made[0]) + made[1]

    assert float(step()) == 500_003
    return made


def slots(layer: Any, optimizer: Any) -> list[bool]:
    """Whether an optimizer's slots, made while a step is traced, are on the host; a step runs."""
    import tensorflow as tf

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x))
        found = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))

    with creation.created_on(host.DEVICE, lambda nbytes: nbytes >= MIB):
        step.get_concrete_function(tf.ones([1, 1000]))
    with host.guard():
        step(tf.ones([1, 1000]))
    made = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    plain = [getattr(variable, "_value", variable) for variable in made]
    large = [variable for variable in plain if variable.shape.num_elements() >= MIB // 4]
    return [variable.device == host.DEVICE for variable in large]
