"""The graph that tfmem plans and rewrites: frozen data with cached indices, free of TensorFlow.

A `Graph` is a tuple of `Node`s in execution order plus the values it returns. Node attributes
(dtype, shapes, kernels' parameters) stay behind in `capture`; what is kept here is what planning
needs: who reads what, how many bytes each output takes, and on which device a node runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tfmem.graph.compact import Compact

ARG = "_Arg"
"""Op of a function input that is a tensor (or a resource that is not a variable: 0 bytes)."""

VARIABLE = "_Variable"
"""Op of a function input that is a variable's handle; its bytes are those of the variable."""


class Value(NamedTuple):
    """One output of one node, written ``node:index``."""

    node: str
    index: int = 0  # type: ignore[assignment]  # tuple.index is never wanted here

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


NOTHING = Value("")
"""What has no memory that is counted in this graph, such as the contents of a caller's variable."""


class Stash(NamedTuple):
    """Memory that outputs of a node refer to without being it: elements of lists and optionals.

    It counts as one more output of the node, behind those that it has, and lives as long as what
    refers to it.

    Attributes:
      parts: its buffers in the order in which they are made, as runs of equal ones: (bytes as
        allocated, how many).
      outputs: indices of the node's outputs that refer to it.
    """

    parts: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""
        return sum(nbytes * number for nbytes, number in self.parts)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
      name: unique in its graph.
      op: TensorFlow's op type, or `ARG` or `VARIABLE` for a function input.
      inputs: the values read, in the order of the op's arguments.
      after: names of nodes that must have finished first (TensorFlow's control inputs).
      nbytes: exact size in bytes of each output; as long as the node has outputs.
      device: full TensorFlow device name, such as ``/job:localhost/.../device:CPU:0``.
      origin: for a node made by a pass, the captured node it is a clone or a copy of; else "".
      shares: index of the input whose buffer all outputs share, where that depends on attributes
        (a slice along the first dimension); None where `ops` knows it from the op type.
      passed: bytes of a buffer that its kernel passes on to that of its gradient, and makes anyway;
        it counts as one more output, behind the stashes (see `Facts.passed`).
      last: index of the output that its kernel makes after all others; None if they are in order.
      inplace: indices of inputs whose buffer its first output may take over, where that depends on
        its kernel; None where the op alone decides (see `Facts.inplace`).
      lent: index of the input whose buffer its kernel takes as its first scratch if nobody reads it
        later; None if there is none.
      rows: indices of inputs whose variables the functions that it runs access by rows (see
        `Facts.is_sparse`); of a function's variable (0,) where the graph around accesses it so.
      on_host: indices of inputs that its kernel on a GPU reads in the memory of the host, where
        TensorFlow copies them; handles are not among them.
      from_host: indices of outputs that its kernel makes in the memory of the host although it runs
        on a GPU, where TensorFlow copies them for those who read them there.
      stashes: memory that its outputs refer to, made by it or by the functions that it runs.
      holds: (index of an output, value) for each value, or stash of a node, that an output refers
        to, other than its own stashes.
      same: (index of an output, value) for each output that is the buffer of an older value, or
        stash, or `NOTHING`, and has none of its own.
      is_owned: for an input, whether nobody else holds it: it then dies with its last reader.
    """

    name: str
    op: str
    inputs: tuple[Value, ...] = ()
    after: tuple[str, ...] = ()
    nbytes: tuple[int, ...] = ()
    device: str = ""
    origin: str = ""
    shares: int | None = None
    passed: int = 0
    last: int | None = None
    inplace: tuple[int, ...] | None = None
    lent: int | None = None
    rows: tuple[int, ...] = ()
    on_host: tuple[int, ...] = ()
    from_host: tuple[int, ...] = ()
    stashes: tuple[Stash, ...] = ()
    holds: tuple[tuple[int, Value], ...] = ()
    same: tuple[tuple[int, Value], ...] = ()
    is_owned: bool = False

    @property
    def is_input(self) -> bool:
        """Whether this node is an input of the function rather than a computation."""
        return self.op in (ARG, VARIABLE)

    @property
    def values(self) -> tuple[Value, ...]:
        """This node's outputs."""
        return tuple(Value(self.name, i) for i in range(len(self.nbytes)))

    @property
    def predecessors(self) -> Iterator[str]:
        """Names of the nodes this one waits for, data first; a name may come more than once."""
        for value in self.inputs:
            yield value.node
        yield from self.after


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order and the values returned.

    `nodes` is a topological order of data and control edges. TensorFlow obeys the data and
    control edges only; `passes.linearise` turns the order into control edges.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Each node by its name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Each node's place in `nodes`."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def consumers(self) -> dict[Value, tuple[str, ...]]:
        """Names of the nodes that read each value, in execution order, each named once."""
        readers: dict[Value, list[str]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node.name)
        return {value: tuple(names) for value, names in readers.items()}

    @cached_property
    def successors(self) -> dict[str, tuple[str, ...]]:
        """Names of the nodes that wait for each node by data or control, in execution order."""
        waiting: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in dict.fromkeys(node.predecessors):
                waiting[name].append(node.name)
        return {name: tuple(names) for name, names in waiting.items()}

    @cached_property
    def form(self) -> Compact:
        """The graph as integers."""
        from tfmem.graph import compact

        return compact.compact(self)

    def nbytes(self, value: Value) -> int:
        """Size of a value in bytes."""
        return self.by_name[value.node].nbytes[value.index]

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        from tfmem.graph import text

        return text.to_text(self)
