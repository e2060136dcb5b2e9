"""What tests/runtime/test_host.py asks of a process of its own: one host process after another."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import tfmem
from tfmem.errors import Error
from tfmem.runtime import host, host_child

MIB = 2**20


def exists(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as fields:
            return fields.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def raised(action: Any) -> str:
    """Type and message of what `action()` raises; "" if nothing."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def life() -> dict[str, Any]:
    """A host process from start to end, with its memory."""
    import tensorflow as tf

    before = tf.Variable(tf.ones([1000]))
    read = tf.function(lambda: tf.reduce_sum(before))
    read()
    with host.host_process(memory_limit=300 * MIB) as device:
        process = host.running()
        facts: dict[str, Any] = {"device": device, "listening": listening(process.pid)}
        with host.host_process() as again:
            facts["again"] = again == device and host.running() is process
        facts["still"] = host.running() is process
        empty = process.memory()
        with tf.device(device):
            kept = tf.Variable(tf.zeros([100, MIB // 4]))
        held = process.memory()
        facts["held"] = held.current_bytes - empty.current_bytes
        facts["memory"] = [held.peak_bytes, held.resident_bytes, held.limit_bytes]
        facts["order"] = overtaken(device)
        facts["full"] = raised(lambda: fill(device))
        facts["usable"] = float(tf.reduce_sum(kept[50, :4]))
        facts["before"] = [float(read()), float(before.assign_add(tf.ones([1000]))[0])]
    facts["ended"] = not exists(process.pid) and host.running() is None
    facts["after"] = float(tf.function(lambda: tf.reduce_sum(before))())
    facts["lost"], facts["near"] = raised(kept.numpy), kept.device
    kept.assign(tf.ones(kept.shape))
    facts["given"] = float(kept[0, 0])
    with host.host_process() as device, tf.device(device):
        facts["second"] = float(tf.reduce_sum(tf.ones([10])))
    return facts


def older() -> dict[str, Any]:
    """What was made before this process was connected: variables and what else is a resource."""
    import tensorflow as tf

    from tfmem.bridge import connection
    from tfmem.runtime import memory

    variable = tf.Variable(tf.zeros([1000, 1000]))
    words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [7]), 0)
    double = tf.function(lambda: variable.assign(2.0 * variable))

    def used(value: float) -> list[float]:
        variable.assign(tf.fill([1000, 1000], value))
        assigned = float(variable[0, 0])
        double()
        return [assigned, float(variable[0, 0]), memory.memory_info("CPU:0")[0] // MIB]

    facts: dict[str, Any] = {"before": used(1.0)}
    with host.host_process():
        facts |= {"within": used(2.0), "word": int(words.lookup(tf.constant(["a"]))[0])}
    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    host.connect({}, anew=True)
    facts["options"] = used(3.0)
    with mock.patch.object(connection, "_SORTED", "nowhere"):
        for _ in range(3):
            host.connect({}, anew=True)
            facts.setdefault("unsorted", []).append(used(4.0))
    return facts


def listening(child: int) -> list[str] | None:
    """Local addresses that this process and its child listen on; None where `ss` is missing."""
    if shutil.which("ss") is None:
        return None
    lines = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout
    ours = re.compile(rf"pid=({os.getpid()}|{child}),")
    return [line.split()[3] for line in lines.splitlines() if ours.search(line)]


def overtaken(device: str) -> int:
    """How often a function does not see an assignment that was made just before its call."""
    import tensorflow as tf

    with tf.device(device):
        variable = tf.Variable(-1.0)

    @tf.function
    def read() -> Any:
        with tf.device(device):
            return variable + 0.0

    wrong = 0
    for i in range(100):
        variable.assign(float(i))
        wrong += float(read()) != i
    return wrong


def fill(device: str) -> None:
    """Asks the host for more than it has."""
    import tensorflow as tf

    with host.guard(), tf.device(device):
        tf.zeros([400, MIB // 4]).numpy()


def death() -> dict[str, Any]:
    """The host process is killed in the middle of a step that uses it throughout."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    near = "/job:localhost/replica:0/task:0/device:CPU:0"
    with host.host_process() as device:
        local = tf.Variable(tf.ones([1000]))

        @tf.function
        def step(x: Any) -> Any:
            with tf.device(near):
                local.assign_add(tf.ones([1000]))
            for _ in range(60):
                with tf.device(device):
                    y = x + 1.0
                with tf.device(near):
                    x = tf.matmul(x, x) * 1e-3 + y
            return x

        def steps() -> None:
            for _ in range(200):
                with host.guard():
                    step(tf.ones([500, 500])).numpy()

        step(tf.ones([500, 500]))
        done = float(local[0])
        killed = []
        process = host.running()
        pid = process.pid
        threading.Timer(1.0, lambda: (killed.append(time.monotonic()), os.kill(pid, 9))).start()
        facts: dict[str, Any] = {"error": raised(steps)}
        facts["seconds"] = time.monotonic() - killed[0]
        facts["intact"] = float(local[0]) > done and bool(tf.reduce_all(local == local[0]))
        facts["next"] = raised(steps)
        facts["asked"] = raised(process.memory)
        facts["memory"] = host.running() is None
        with host.host_process() as device_again:
            facts["same"] = device_again == device
            facts["restarted"] = float(step(tf.ones([500, 500]))[0, 0]) > 0
    return facts


def _stop(pid: int) -> None:
    """Stops a process by a signal, and waits until none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while any(
        one.read_text().rpartition(") ")[2][0] != "T"
        for one in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def pause() -> dict[str, Any]:
    """The host process is stopped by a signal in the middle of steps that use it."""
    import tensorflow as tf

    with host.host_process() as device:
        with tf.device(device):
            far = tf.Variable(0.0)
        step = tf.function(lambda: far.assign_add(1.0) * 2.0)
        step()
        start = time.monotonic()
        _stop(host.running().pid)
        with host.guard():
            result = float(step())
        facts = {"result": result, "value": float(far), "seconds": time.monotonic() - start}

        process = host.running()
        _stop(process.pid)
        with mock.patch.object(host_child, "_PATIENCE", 0.2):
            facts["late"] = raised(process.memory)
        with tf.device(device):
            held = tf.Variable(tf.zeros([MIB, 8]))
        facts["fresh"] = process.memory().current_bytes >= held.shape.num_elements() * 4
        return facts


def refusals() -> dict[str, str]:
    """What host_process() says when it cannot work."""
    import tensorflow as tf

    def enter(**options: Any) -> None:
        with host.host_process(**options):
            pass

    facts = {"slow": raised(lambda: enter(start_timeout=0.01))}
    serve, host_child._SERVE = host_child._SERVE, "import no_such_tensorflow"
    facts["broken"] = raised(enter)
    host_child._SERVE = serve
    facts["small"] = raised(lambda: enter(memory_limit=1000))
    facts["folder"] = raised(lambda: enter(copies="/no/such/folder"))
    facts["tracing"] = raised(lambda: tf.function(enter)())
    server = tf.distribute.Server({"other": ["localhost:0"]}, job_name="other", start=True)
    tf.config.experimental_connect_to_host(server.target, job_name="other")
    facts["cluster"] = raised(enter)
    return facts


def copies(folder: str) -> dict[str, Any]:
    """The host process, which keeps copies, is killed between steps, in one, and in a move."""
    import tensorflow as tf

    import tfmem
    from models.bench.faults_host import adding
    from tfmem.runtime.variables import move_variable

    weights = [tf.Variable(tf.zeros([512, 512]), name=f"w{i}") for i in range(6)]
    count = tf.Variable(0.0)
    x = tf.random.stateless_normal([512, 512], seed=[1, 2])
    add = adding(weights)

    def step(x: Any) -> Any:
        result = add(x)
        count.assign_add(1.0)
        return result

    def values() -> list[float]:
        return [float(tf.reduce_mean(one)) for one in weights]

    def kill() -> None:
        os.kill(host.running().pid, signal.SIGKILL)

    with host.host_process(copies=folder) as device:
        techniques = ("order", "swap", "place")
        options = {"host": device, "techniques": techniques}
        planned = tfmem.optimize(step, budget=least_of(step, x, options), **options)
        for _ in range(3):
            planned(x)
        facts: dict[str, Any] = {"placed": sum(one.device == device for one in weights)}
        with tf.device(device):
            forgotten = tf.Variable(1.0, name="forgotten")
        kill()
        facts |= {"between": raised(lambda: planned(x)), "values": [values()]}
        facts["forgotten"] = [forgotten.device == device, raised(forgotten.numpy)]
        planned(x)
        facts["values"].append(values())
        start, done, several = time.monotonic(), float(count), threading.Event()
        threading.Thread(target=lambda: several.wait() and kill(), daemon=True).start()
        facts["within"] = raised(lambda: train(planned, x, several))
        facts |= {"seconds": time.monotonic() - start, "values": [*facts["values"], values()]}
        facts["steps"] = [float(count) - done, values()[0] - facts["values"][1][0]]
        late = tf.Variable(tf.ones([1000]))
        move_variable(late, device)
        facts["beside"] = kept_by_threads(weights)
        kill()
        facts |= {"moved": raised(planned.restore_variables), "late": float(late[0])}
        planned.restore_variables()
        facts["home"] = sum(one.device != device for one in weights)
        facts["values"].append(values())
        (own,) = (os.path.join(folder, name) for name in os.listdir(folder))
        shutil.rmtree(own)
        with open(own, "wb"):  # a file, which no files can be written to
            facts["full"] = raised(lambda: move_variable(weights[0], device))
        facts["stayed"] = weights[0].device != device
        os.unlink(own)
    return facts


def least_of(step: Any, x: Any, options: dict[str, Any]) -> int:
    """Little more than the least budget of a step: kernels and copies of this machine decide it."""
    import tfmem

    try:
        tfmem.optimize(step, budget=1, **options).plan(x)
    except tfmem.BudgetError as error:
        return int(1.02 * (error.least_bytes or 0))
    raise AssertionError("a step that takes one byte")


def train(step: Any, x: Any, several: threading.Event) -> None:
    """Steps, most of them after the event, which the third sets."""
    for number in range(1000):
        step(x)
        if number == 2:
            several.set()


def kept_by_threads(variables: list[Any]) -> int:
    """How many of the copies that two threads ask for at once are written."""
    done = []

    def keep(own: list[Any]) -> None:
        for _ in range(20):
            host.keep_copies(own, [one.handle for one in own])
            done.append(own)

    parts = variables[::2], variables[1::2]
    threads = [threading.Thread(target=keep, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(done)


def orphan(folder: str) -> None:
    """Dies without a farewell, having told the host process's id."""
    with host.host_process(copies=folder):
        os.write(1, f"{host.running().pid}\n".encode())
        os.kill(os.getpid(), 9)


def unrelated() -> str | None:
    """An error that has nothing to do with the host passes the guard."""
    import tensorflow as tf

    try:
        with host.guard():
            tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
    except Error:
        return None
    except tf.errors.InvalidArgumentError as error:
        return type(error).__name__
    return None


def steps_after_its_block() -> dict[str, Any]:
    """Steps planned for a host process once it is gone, and with another one; with the default."""
    import tensorflow as tf

    weight = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]) / 16)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for _ in range(10):
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y**2)
        weight.assign_sub(0.0 * tape.gradient(loss, weight))
        return loss

    x = tf.random.stateless_normal([1024, 256], [3, 4])
    budget = int(0.7 * tfmem.optimize(step).plan(x).baseline_peak_bytes)
    techniques = ("order", "swap", "recompute")
    facts: dict[str, Any] = {}
    with host.host_process() as device:
        named = tfmem.optimize(step, budget=budget, host=device, techniques=("order", "swap"))
        usual = tfmem.optimize(step, budget=budget, techniques=techniques)
        facts["losses"] = [float(one(x)) for one in (named, usual, usual)]
        facts["evicted"] = [len(one.plans[0].evictions) for one in (named, usual)]
    facts["named"] = raised(lambda: named(x))
    facts["losses"].append(float(usual(x)))
    with host.host_process():
        facts["losses"] += [float(one(x)) for one in (named, usual)]
    return facts
