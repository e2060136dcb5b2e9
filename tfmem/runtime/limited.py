"""Runs a piece of Python in a process of its own under a hard limit of device memory.

What happened comes back as data: a result, an out-of-memory error, another error, a crash, or a
time-out. A benchmark asks many such questions in a row, and none may take the asker down.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tfmem.errors import Error, OutOfMemoryError
from tfmem.runtime import memory
from tfmem.runtime.host_child import ending

_RUN = "import sys; del sys.path[0]; from tfmem.runtime.limited import main; main()"
_ANSWER = "import sys; del sys.path[0]; from tfmem.runtime.limited import answer_calls as a; a()"

_DYING = 1.0
"""Seconds that a process which ends may take to be gone after its pipes are."""

Status = Literal["ok", "out_of_memory", "error", "crashed", "timeout"]


@dataclass(frozen=True)
class Outcome:
    """What became of a limited run.

    Attributes:
      status: ``ok``; ``out_of_memory`` (the allocator refused, or Python ran out); ``error``
        (another exception, or an exit status other than 0); ``crashed`` (ended by a signal, for
        example by the system for want of memory); ``timeout``.
      result: what the callable returned, or the JSON of a module's last line of output.
      error: the exception's type and message, or what ended the process; "" if ok.
      output: the end of what it wrote to standard output and standard error.
      limit_bytes: the limit it had.
      seconds: how long it ran.
    """

    status: Status
    result: Any
    error: str
    output: str
    limit_bytes: int
    seconds: float


def run_limited(
    target: str | Callable[..., Any],
    *args: Any,
    limit_bytes: int,
    timeout: float,
    reserve: bool = False,
    gpu: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs `target` in a child process whose device has a hard limit.

    Args:
      target: a module-level function, ``"module:function"``, or ``"module"``, which is run as
        ``python -m module`` is.
      *args: its arguments: JSON values for a function, texts (its command line) for a module.
      limit_bytes: limit of the child's device, rounded down to whole MiB (2^20 bytes).
      timeout: seconds after which the child is killed.
      reserve: take the whole limit from the system at once (`memory.claim_memory`).
      gpu: limit GPU:0 instead of CPU:0.
      environment: variables to set for the child besides this process's.

    Raises:
      tfmem.Error: the target cannot be named, or the limit is less than 1 MiB.
    """
    limit_mib = limit_bytes // memory.MIB
    if limit_mib < 1:
        raise Error(f"limit_bytes={limit_bytes} is less than 1 MiB; give the limit in bytes")
    with tempfile.TemporaryDirectory(prefix="tfmem-limited-") as folder:
        job = {"target": _name(target), "args": args, "reserve": reserve}
        job |= {"gpu_limit_mib": limit_mib if gpu else None, "answer": f"{folder}/answer.json"}
        variables = _environment(limit_mib, gpu, environment or {})
        return _run(json.dumps(job), Path(folder), variables, limit_mib * memory.MIB, timeout)


def _run(
    job: str, folder: Path, variables: Mapping[str, str], limit_bytes: int, timeout: float
) -> Outcome:
    started = time.monotonic()
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        child = _start(job, variables, out, err)
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()
            child.wait()

    seconds = time.monotonic() - started
    printed = (folder / "out").read_text(errors="replace")
    output = (printed[-4000:] + (folder / "err").read_text(errors="replace")[-4000:]).strip()
    answer = folder / "answer.json"
    status, result, error = _judge(code, answer.read_text() if answer.exists() else "", timeout)
    if status == "ok" and result is None:
        result = _last_json(printed)
    return Outcome(status, result, error, output, limit_bytes, seconds)


class Elsewhere:
    """A process that calls functions for this one, under a hard limit of its CPU's memory.

    It begins with the first call, and anew with the next one after a call that ended it.

    Args:
      limit_bytes: the limit, rounded down to whole MiB (2^20 bytes).
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_mib = limit_bytes // memory.MIB
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def call(self, target: str, *args: Any, timeout: float) -> Any:
        """What a function, named as ``"module:function"``, returns there, as JSON.

        Args:
          target: the function.
          *args: its arguments, JSON values.
          timeout: seconds after which the process is killed.

        Raises:
          tfmem.Error: it raised an error, did not return in time, or ended the process.
        """
        child = self._child = self._child or self._begin()
        assert child.stdin is not None
        assert child.stdout is not None
        killer = threading.Timer(timeout, child.kill)
        killer.start()
        try:
            child.stdin.write(json.dumps([target, args]) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:
            answer = ""
        finally:
            killer.cancel()
        if not answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_DYING)
            self._end()
            raise Error(f"{target}: its process ended {_ending(child.wait())}")
        fields = json.loads(answer)
        if fields["error"]:
            raise Error(f"{target}: {fields['error']}")
        return fields["result"]

    def _begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _ANSWER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(self._limit_mib, False, {}),
            text=True,
        )

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                stream and stream.close()


def answer_calls() -> None:
    """The child of `Elsewhere`: answers calls until nobody can ask any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is no answer
    for line in sys.stdin:
        target, args = json.loads(line)
        fields: dict[str, Any] = {"result": None, "error": ""}
        try:
            fields["result"] = _call(target, args)
        except Exception as error:
            fields["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(fields) + "\n")
        answers.flush()
    os._exit(0)  # TensorFlow's destructors have nothing to add


def _start(
    job: str, variables: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> subprocess.Popen[bytes]:
    """A new process that runs a job: `main` is what it does."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, job],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=dict(variables),
    )


def _judge(code: int | None, answer: str, timeout: float) -> tuple[Status, Any, str]:
    """Status, result and error from an exit status and what the child left."""
    if code is None:
        return "timeout", None, f"still running after {timeout:g} s"
    if answer:
        fields = json.loads(answer)
        return fields["status"], fields["result"], fields["error"]
    return "crashed", None, f"ended {_ending(code)}" + " and no answer" * (code >= 0)


def _ending(code: int) -> str:
    """How a process ended, by its exit status."""
    return f"{'by' if code < 0 else 'with'} {ending(code)}"


def _last_json(printed: str) -> Any:
    lines = printed.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def _name(target: str | Callable[..., Any]) -> str:
    """The target as text that the child can import."""
    if isinstance(target, str):
        return target
    module, name = target.__module__, target.__qualname__
    if "<" in name or module == "__main__":
        raise Error(
            f"{module}.{name} cannot be run in another process, which could not import it; pass a "
            "function at the top level of a module"
        )
    return f"{module}:{name}"


def _environment(limit_mib: int, gpu: bool, extra: Mapping[str, str]) -> dict[str, str]:
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    variables = {**os.environ, "PYTHONPATH": paths}
    if not gpu:
        variables["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
        variables["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mib)
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    return {**variables, **extra}


def main() -> None:
    """The child: runs the job given as its argument and writes how it ended."""
    job = json.loads(sys.argv[1])
    try:
        if job["gpu_limit_mib"] is not None:
            memory.limit_gpu(job["gpu_limit_mib"])
        if job["reserve"]:
            memory.claim_memory()
        answer = {"status": "ok", "result": _call(job["target"], job["args"]), "error": ""}
        text = json.dumps(answer)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        status = "out_of_memory" if is_out_of_memory(error) else "error"
        message = f"{type(error).__name__}: {error}"
        text = json.dumps({"status": status, "result": None, "error": message})
    partial = Path(job["answer"] + ".part")
    partial.write_text(text)
    partial.rename(job["answer"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # TensorFlow's destructors have nothing to add


def _call(target: str, args: Sequence[Any]) -> Any:
    module, colon, name = target.partition(":")
    if colon:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found(*args)
    sys.argv = [module, *args]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    return None


_NO_ROOM = (
    "Cannot parse tensor from proto",
    "Unable to evaluate a constant node",
    "Dst tensor is not initialized",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that caused it, says that memory ran out.

    What was being handled counts too, but not where it was raised `from None`, as by TensorFlow.
    tfmem's error says so itself: tf-keras raises it anew, without its cause. Where memory for a
    constant is missing, TensorFlow 2.21 cannot parse or evaluate the constant; where a GPU has none
    for a copy, the copy's tensor is not initialized.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | OutOfMemoryError):
            return True
        if type(seen).__name__ == "ResourceExhaustedError":
            return True
        if any(text in str(seen) for text in _NO_ROOM):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False
