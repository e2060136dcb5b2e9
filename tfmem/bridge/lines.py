"""The lines of user code that made the nodes of a function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from tfmem.bridge.graphdefs import FuncGraph
from tfmem.errors import UnsupportedFunctionError

_NOT_USERS = (
    "/tensorflow/",
    "/keras/",
    "/tf_keras/",
    "<",
    f"{Path(__file__).parents[1].as_posix()}/",
)


def lines_of(names: Iterable[str], graph: FuncGraph, most: int | None = None) -> dict[str, str]:
    """Lines as ``file:line`` by node, of the first of some nodes that the graph has.

    Of a line that is nobody's but TensorFlow's, Keras's or tfmem's, "".
    """
    operations = {op.name: op for op in graph.get_operations()}
    there = islice((name for name in names if name in operations), most)
    return {name: _line(operations[name]) for name in there}


@contextmanager
def told(graph: FuncGraph) -> Iterator[None]:
    """Adds the line of the node to errors that say for which node a function is refused."""
    try:
        yield
    except UnsupportedFunctionError as error:
        line = lines_of([error.node], graph).get(error.node)
        if not line:
            raise
        raise UnsupportedFunctionError(f"{error} ({line})") from error


def _line(operation: Any) -> str:
    """The innermost frame outside TensorFlow, Keras and tfmem, as ``file:line``; "" if none is.

    TensorFlow's object for the traceback must not outlive the graph: its address is used again for
    the next one, and creating an op then fails.
    """
    for frame in reversed(operation.traceback.get_user_frames()):
        path = frame.filename.replace("\\", "/")
        if not any(part in path for part in _NOT_USERS):
            return f"{frame.filename}:{frame.lineno}"
    return ""
