"""What TensorFlow said of a step that ran out of memory, what is told of it here; and of bugs."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import tensorflow as tf

from tfmem.errors import BudgetError, Error, HostMemoryError, OutOfMemoryError, RewriteError
from tfmem.functions.entry import Entry
from tfmem.graph.ir import Graph
from tfmem.graph.ops import facts_of
from tfmem.runtime import host as host_module
from tfmem.runtime import memory, variables
from tfmem.runtime.limited import is_out_of_memory
from tfmem.units import format_bytes

_NODES = re.compile(r"\{\{node ([^}]+)\}\}|\[\[([^\]{}]+)\]\]")
_ASKED = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+) on (\S+)")
_SAID = re.compile(r"^.*(?:OOM|out of memory|[Ff]ailed to allocate|memory limit).*$", re.MULTILINE)

_NAMED = 5
"""Most variables that a message names."""


_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Raised = TypeVar("_Raised", bound=BaseException)


def tells_bugs(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Lets a function of tfmem raise nothing but what is raised on purpose, or by TensorFlow.

    What TensorFlow raises about a host that is gone or full becomes a HostMemoryError; what it says
    where a graph's constants have no room, a BudgetError.

    It must run none of the user's code.
    """

    @functools.wraps(function)
    def told(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        try:
            with host_module.guard():
                return function(*args, **kwargs)
        except (Error, tf.errors.OpError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise BudgetError(
                    f"TensorFlow finds no memory to plan in: {_line(error)}. The function and its "
                    "variables are as they were. Raise the limit of the device, or free what else "
                    "is held there, by other threads, too"
                ) from error
            raise RewriteError(
                f"a bug of tfmem ({type(error).__name__}: {error}); the function and its variables "
                "are as they were. Please report this with the traceback, what `tfmem doctor` "
                "prints and, if you can, the function"
            ) from error

    return told


def outlives_host(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Lets a function of the user's go on after the end of a host process that keeps copies.

    The error is raised once it has been started again. AutoGraph does not convert the function.
    """

    @functools.wraps(function)
    def outliving(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except HostMemoryError as error:
            found = variables.recover()
            if found is None:
                raise
            raise HostMemoryError(
                f"{error}\nIt has been started again: {found.copied} variables there are as they "
                f"were copied last{_lost(found.lost)}. Those on the device are as this call left "
                "them, where it made a step some may be ahead by one. Go on, or restore a "
                "checkpoint. If it was killed for want of memory, raise memory_limit or move less "
                "to it"
            ) from error

    as_it_is: Callable[_Args, _Result] = tf.autograph.experimental.do_not_convert(outliving)
    return as_it_is


def _lost(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f", {len(names)} that no step had updated are lost ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    """Names as text, the first few of many."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


@dataclass(frozen=True)
class Failure:
    """What is known of a step that ran out of memory.

    Attributes:
      said: TensorFlow's own line about it.
      nodes: the nodes that it names.
      nbytes: bytes of the tensor that found no room; 0 where that is not told.
      device: full name of the device; "" where that is not told.
      peak_bytes: the most that was in use on it; None where its allocator keeps no statistics.
    """

    said: str
    nodes: tuple[str, ...] = ()
    nbytes: int = 0
    device: str = ""
    peak_bytes: int | None = None

    def nodes_of(self, names: Container[str]) -> list[str]:
        """The nodes of a graph that failed, by their names.

        What runs within a loop or branch is named after it: ``while/body/_1/mul``.
        """
        found = []
        for name in self.nodes:
            while name and name not in names:
                name = name.rpartition("/")[0]
            found += [name] if name else []
        return found


def is_failure(error: BaseException) -> bool:
    """Whether an exception out of a step says that a device of TensorFlow's is out of memory."""
    return isinstance(error, tf.errors.OpError) and is_out_of_memory(error)


def failure_of(error: BaseException) -> Failure:
    """What an exception says, and the allocator."""
    text = str(error)
    asked, said = _ASKED.search(text), _SAID.search(text)
    device = asked[3] if asked else ""
    peak = None
    with contextlib.suppress(Error):  # no statistics, or no such device
        peak = memory.step_peak(device) if device else None
    return Failure(
        said=said[0].strip() if said else _line(error),
        nodes=tuple(inner or outer for inner, outer in _NODES.findall(text)),
        nbytes=_nbytes(asked[1], asked[2]) if asked else 0,
        device=device,
        peak_bytes=peak,
    )


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return str(error).strip().partition("\n")[0].strip()


def _nbytes(shape: str, dtype: str) -> int:
    try:
        count = int(tf.as_dtype(dtype).size)
    except TypeError:
        return 0
    for size in filter(None, shape.split(",")):
        count *= int(size)
    return count


@contextlib.contextmanager
def explained(told: Callable[[Failure], Error]) -> Iterator[None]:
    """A scope in which an error for lack of memory becomes the one that tells of it."""
    try:
        yield
    except Exception as error:
        if not is_failure(error):
            raise
        raise told(failure_of(error)) from error


def out_of_memory(
    entry: Entry,
    failure: Failure,
    restored: list[str] | None = None,
    why: str = "Its steps are no longer watched",
) -> Error:
    """The error that tells of a step that ran out of memory.

    Args:
      entry: what ran.
      failure: what is known.
      restored: variables that were given their values back; None if there was no copy of them.
      why: why the step is not made again.
    """
    node = next(iter(failure.nodes), "")
    plan = entry.plan
    predicted = f"{format_bytes(plan.peak_bytes)} were predicted"
    if plan.budget:
        predicted += f" for a budget of {format_bytes(plan.budget)}"
    state, updated = _state(entry, failure, restored)
    return OutOfMemoryError(
        f"{entry.name} ran out of memory"
        f"{f' on {failure.device}' if failure.device else ''}{f' at {node!r}' if node else ''}: "
        f"{failure.said} ({predicted}). {why}. {state}. Lower the budget, so that the plan leaves "
        "more room on the device, make the batch smaller, or free what else is held there",
        is_restored=restored is not None,
        updated=updated,
    )


def _state(
    entry: Entry, failure: Failure, restored: list[str] | None
) -> tuple[str, tuple[str, ...]]:
    """What state the variables are in, as text, and those that may have been updated."""
    variables = entry.captured.variables
    if restored is not None:
        return "Its variables are as they were before the step", ()
    graph = entry.rewritten.graph if entry.rewritten else entry.captured.graph
    failed = failure.nodes_of(graph.by_name)
    begun = [str(variables[name].name) for name in _begun(graph, failed, variables)]
    if not begun:
        return "No variable had been updated: they are as they were before the step", ()
    return (
        f"{len(begun)} of its variables may have been updated already ({_listed(begun)}), the "
        "others are as they were: restore them from a checkpoint before training goes on"
    ), tuple(begun)


def _begun(graph: Graph, failed: Iterable[str], variables: Iterable[str]) -> list[str]:
    """The variables, by the names of their nodes, whose updates did not wait for what failed."""
    waiting: set[str] = set()
    stack = list(failed)
    while stack:
        for name in graph.successors[stack.pop()]:
            if name not in waiting:
                waiting.add(name)
                stack.append(name)
    known = set(variables)
    begun = {
        value.node
        for node in graph.nodes
        if node.name not in waiting
        for position, value in enumerate(node.inputs)
        if value.node in known and facts_of(node.op).reads != position
    }
    return [node.name for node in graph.nodes if node.name in begun]


def without_frames(error: _Raised) -> _Raised:
    """An exception whose frames, which hold tensors, are gone; so are those of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return error
