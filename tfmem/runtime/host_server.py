"""What runs in the processes that `tfmem.host_process` starts: a TensorFlow server, and its waker.

Talks with its owner in lines over the standard streams: writes ``{"port": ...}`` once it serves,
and answers each line, ``memory`` or ``reset``, with its memory in JSON; the second lets the peak
begin anew. It ends itself when its standard input closes or its parent changes, which is how it
learns that its owner is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import TextIO

from tfmem.runtime import loopback

_LOOK, _PAUSE = 0.5, 2.0
"""Seconds between two looks at a process, and those for which it may be stopped by a signal."""


def main() -> None:
    """Serves until the owner is gone; arguments: job name and the owner's process id."""
    job, owner = sys.argv[1], int(sys.argv[2])
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what else is printed here must not pass for an answer

    for keras in ("keras", "tf_keras"):  # TensorFlow would load one, which takes as long as it does
        sys.modules[keras] = None  # type: ignore[assignment]
    import tensorflow as tf

    # Not started yet: the port listens, and is restricted before any request is served.
    server = tf.distribute.Server({job: ["127.0.0.1:0"]}, job_name=job, task_index=0, start=False)
    port = int(server.target.rsplit(":", 1)[1])
    loopback.restrict(port)
    server.start()
    _answer(answers, port)
    os._exit(0)  # destructors of TensorFlow would wait for calls in flight


def _answer(answers: TextIO, port: int) -> None:
    import tensorflow as tf

    print(json.dumps({"port": port}), file=answers)
    for line in sys.stdin:
        if line.strip() == "reset":
            tf.config.experimental.reset_memory_stats("CPU:0")
        if line.strip():
            used = tf.config.experimental.get_memory_info("CPU:0")
            print(json.dumps(used | {"resident": resident_bytes()}), file=answers)


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process in bytes, from /proc; default: of this one."""
    with open(f"/proc/{pid or 'self'}/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _end_with(owner: int) -> None:
    while os.getppid() == owner:
        time.sleep(0.5)
    os._exit(0)


def wake() -> None:
    """Lets a process go on whenever a signal has stopped it, and deletes what its owner leaves.

    What waits for it in the owner would wait for ever, and what it holds is nowhere else.
    Arguments: its id, the owner's, and a folder to be deleted if the owner ends first; "" for none.
    """
    pid, owner, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    stopped = 0.0
    while os.getppid() == owner and (state := _state(pid)) not in ("", "Z"):
        stopped = stopped + _LOOK if state == "T" else 0.0
        if stopped >= _PAUSE:
            os.kill(pid, signal.SIGCONT)
        time.sleep(_LOOK)
    if folder and os.getppid() != owner:
        shutil.rmtree(folder, ignore_errors=True)


def _state(pid: int) -> str:
    """The letter that Linux has for what a process does; "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as facts:
            return facts.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
