"""A graph as integers: what the replay of `liveness` and the search of `planning.order` run on.

Nodes are numbered by their place in `Graph.nodes`, values consecutively in the same order. The form
depends on the graph alone (not on order, plan or device) and is made once for each graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tfmem.errors import Error
from tfmem.graph import ops
from tfmem.graph.ir import ARG, NOTHING, VARIABLE, Graph, Node, Value

PLAIN, VIEW, READ, UPDATE, ASSIGN, KEPT, HANDLE = range(7)
"""What a node does with buffers: makes new ones (taking inputs over where it may), gives out an
input's, gives out a variable's, updates variables, lets a variable adopt an input's buffer, gives
out buffers that live as long as the step, gives out variable handles."""

TINY = 2**8
"""Bytes of the largest values that no step misses: an allocator hands out no less."""

SMALL = 2**16
"""Bytes of the largest buffers that count as small: chunks of their own serve them, so that where
they lie shatters nothing (`simulation.replay`)."""


@dataclass(slots=True)
class Compact:
    """The graph as integers; every list is indexed by node or by value number.

    Attributes:
      names: name of each node.
      priced: name under which `Costs` has each node: a clone's is its original's.
      number: number of each node by its name.
      first: number of each node's first value, its stashes behind its outputs; one more at the end.
      nbytes: exact size of each value; for a VARIABLE node's output that of the variable.
      uses: how many times each value is read, counting each edge and each return.
      returned: which values are outputs of the function, as a set of numbers.
      reads: values each node reads, one entry for each edge, handles of variables left out; and
        what these refer to.
      kind: PLAIN, VIEW, READ, UPDATE, ASSIGN, KEPT or HANDLE.
      source: the value whose buffer a VIEW gives out or an ASSIGN adopts, or the handle that a
        HANDLE passes on, else -1.
      takes: for PLAIN nodes, values whose buffer an output may take over, in order of preference.
      taker: the value that takes it over, else -1.
      outputs: each node's values in the order in which they are allocated.
      variables: numbers of the variables each node holds, reads or updates.
      copied: numbers of the variables in copy-on-read mode.
      variable_nodes: node of each variable.
      predecessors: nodes each node waits for, each once.
      successors: nodes that wait for each node, each once.
      is_input: whether each node is an input of the function.
      may_repeat: whether running each node once more changes nothing and gives the same.
      producer: node of each value.
      stashes: parts of each value that is a stash (see `Stash`).
      pinned: values that others refer to: nothing is freed by computing them again.
      passed: of nodes whose kernels pass a buffer on, the value that it is (see `Node.passed`).
      on_host: of kernels on a GPU, the values from there that they read in the memory of the host.
      from_host: values that such kernels make there, and others read on the GPU.
      lent: of nodes whose kernels may take an input as scratch, that value (see `Node.lent`).
    """

    names: list[str] = field(default_factory=list)
    priced: list[str] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=lambda: [0])
    nbytes: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    takes: list[tuple[int, ...]] = field(default_factory=list)
    taker: list[int] = field(default_factory=list)
    outputs: list[Sequence[int]] = field(default_factory=list)
    variables: list[tuple[int, ...]] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    variable_nodes: list[int] = field(default_factory=list)
    predecessors: list[tuple[int, ...]] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    is_input: list[bool] = field(default_factory=list)
    may_repeat: list[bool] = field(default_factory=list)
    producer: list[int] = field(default_factory=list)
    stashes: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)
    passed: dict[int, int] = field(default_factory=dict)
    on_host: dict[int, tuple[int, ...]] = field(default_factory=dict)
    from_host: set[int] = field(default_factory=set)
    lent: dict[int, int] = field(default_factory=dict)

    def value(self, number: int) -> Value:
        """The value of this number."""
        node = self.producer[number]
        return Value(self.names[node], number - self.first[node])

    @property
    def copied_variables(self) -> Iterator[str]:
        """The names of the variables in copy-on-read mode."""
        return (self.names[self.variable_nodes[number]] for number in sorted(self.copied))

    def is_copy(self, node: int) -> bool:
        """Whether a node is a read or an assignment of a variable in copy-on-read mode."""
        is_whole = self.kind[node] in (READ, ASSIGN)
        return is_whole and not self.copied.isdisjoint(self.variables[node])

    def handle(self, variable: int) -> int:
        """The value that is a variable's handle."""
        return self.first[self.variable_nodes[variable]]

    def root(self, value: int) -> int:
        """The value whose buffer a value shares through views: itself, or a variable's handle."""
        while True:
            node = self.producer[value]
            if self.kind[node] == READ and not self.is_copy(node):
                return self.handle(self.variables[node][0])
            if self.kind[node] not in (VIEW, HANDLE) or self.source[node] < 0:
                return value
            value = self.source[node]

    def number_of(self, value: Value) -> int:
        """The number of a value.

        Raises:
          Error: the graph has no such value.
        """
        node = self.number.get(value.node)
        if node is None or not 0 <= value.index < self.first[node + 1] - self.first[node]:
            raise Error(f"the graph has no value {value}; name an output of one of its nodes")
        return self.first[node] + value.index


def compact(graph: Graph) -> Compact:
    """The compact form of a graph; `Graph.form` makes it once and keeps it."""
    made = Compact()
    handles: dict[int, int] = {}  # value number -> variable it is a handle of
    references = _References(made)
    for node in graph.nodes:
        made.number[node.name] = len(made.names)
        made.names.append(node.name)
        made.priced.append(node.origin or node.name)
        made.is_input.append(node.is_input)
        made.may_repeat.append(not ops.facts_of(node.op).is_stateful)
        _add_values(made, node, handles)
        _add_node(made, node, handles, references)
        references.add(node)
    returned = references.buffers([made.number_of(value) for value in graph.outputs])
    outputs = references.with_held(returned)
    made.returned = {v for v in outputs if v not in handles}
    _count_uses(made, outputs)
    made.successors = [[] for _ in made.names]
    for node_number, before in enumerate(made.predecessors):
        for other in before:
            made.successors[other].append(node_number)
    return made


def _add_values(made: Compact, node: Node, handles: dict[int, int]) -> None:
    number, first = len(made.names) - 1, made.first[-1]
    made.first.append(first + len(node.nbytes) + len(node.stashes) + bool(node.passed))
    made.producer.extend([number] * (made.first[-1] - first))
    made.nbytes.extend(node.nbytes)
    for stash in node.stashes:
        made.stashes[len(made.nbytes)] = stash.parts
        made.nbytes.append(stash.nbytes)
    made.from_host.update(first + index for index in node.from_host)
    if node.passed:
        made.passed[number] = len(made.nbytes)
        made.nbytes.append(node.passed)
    if node.op == VARIABLE:
        handles[first] = len(made.variable_nodes)
        made.variable_nodes.append(number)


class _References:
    """What values refer to, without being it.

    Attributes:
      same: for an output that is another value's buffer, that value.
      held: for any other output that refers to values, these.
    """

    def __init__(self, made: Compact) -> None:
        self.made = made
        self.same: dict[int, int] = {}
        self.held: dict[int, dict[int, None]] = {}

    def add(self, node: Node) -> None:
        """Notes what the outputs of the node that was added last refer to."""
        made, first = self.made, self.made.first[-2]
        for stash_number, stash in enumerate(node.stashes, first + len(node.nbytes)):
            for output in stash.outputs:
                self.held.setdefault(first + output, {})[stash_number] = None
        for output, value in node.holds:
            target = self._target(value)
            self.held.setdefault(first + output, {})[target] = None
            self.held[first + output] |= self.held.get(target, {})
        for output, value in node.same:
            made.nbytes[first + output] = 0
            if value != NOTHING:
                self.same[first + output] = self._target(value)
        if made.kind[-1] == VIEW and made.source[-1] in self.held:
            for output in range(len(node.nbytes)):
                self.held[first + output] = self.held[made.source[-1]]

    def _target(self, value: Value) -> int:
        number = self.made.first[self.made.number[value.node]] + value.index
        number = self.same.get(number, number)
        self.made.pinned.add(number)
        return number

    def buffers(self, values: Sequence[int]) -> Sequence[int]:
        """The values whose buffers these are."""
        return [self.same.get(value, value) for value in values] if self.same else values

    def with_held(self, values: Sequence[int]) -> Sequence[int]:
        """Values, behind them what they refer to."""
        if not self.held:
            return values
        more = dict.fromkeys(held for value in values for held in self.held.get(value, ()))
        return [*values, *more]


def _add_node(made: Compact, node: Node, handles: dict[int, int], references: _References) -> None:
    facts, number, first = ops.facts_of(node.op), made.number, made.first
    try:
        makers = [number[value.node] for value in node.inputs]
        after = [number[name] for name in node.after]
    except KeyError as error:
        raise Error(
            f"node {node.name} ({node.op}) stands before {error} which it waits for; "
            "put the nodes in a topological order"
        ) from error
    made.predecessors.append(tuple(dict.fromkeys(makers + after)))
    pairs = zip(makers, node.inputs, strict=True)
    inputs = references.buffers([first[maker] + value.index for maker, value in pairs])
    touched = _touched(made, node, facts, inputs, handles)
    made.variables.append(touched)

    kind, source = _kind_of(node, facts, inputs, handles, touched)
    if kind == HANDLE and node.op != VARIABLE:
        handles[first[-2]] = handles[source]
    made.kind.append(kind)
    made.source.append(source if kind in (VIEW, ASSIGN, HANDLE) else -1)
    read = references.with_held(inputs)
    if facts.passed is not None:
        read = [*read, *_passed(made, facts.passed, inputs)]
    made.reads.append(tuple([value for value in read if value not in handles]))
    if node.on_host:
        made.on_host[len(made.names) - 1] = _sent(made, [inputs[i] for i in node.on_host])
    if node.lent is not None:
        made.lent[len(made.names) - 1] = inputs[node.lent]
    _add_outputs(made, node, kind, facts, inputs)


def _touched(
    made: Compact,
    node: Node,
    facts: ops.Facts,
    inputs: Sequence[int],
    handles: Mapping[int, int],
) -> tuple[int, ...]:
    """The variables that a node is, reads or updates; notes which are in copy-on-read mode."""
    touched: tuple[int, ...] = ()
    if facts.writes:
        touched = tuple(handles[inputs[i]] for i in facts.writes if inputs[i] in handles)
    if not touched and facts.reads is not None and inputs[facts.reads] in handles:
        touched = (handles[inputs[facts.reads]],)
    if facts.is_sparse:
        made.copied.update(touched)
    if node.op == VARIABLE:
        touched = (len(made.variable_nodes) - 1,)
        made.copied.update(touched if node.rows else ())
    elif node.rows:
        made.copied.update(handles[inputs[i]] for i in node.rows if inputs[i] in handles)
    return touched


def _sent(made: Compact, values: Iterable[int]) -> tuple[int, ...]:
    """Those of the values, each once, that are not in the memory of the host already."""
    once = dict.fromkeys(values)
    return tuple(value for value in once if made.nbytes[value] and value not in made.from_host)


def _passed(made: Compact, number: int, inputs: Sequence[int]) -> Iterator[int]:
    """What a node is passed, beside an input, by the kernel whose gradient it computes."""
    if number < len(inputs):
        maker = made.producer[inputs[number]]
        if maker in made.passed and inputs[number] == made.first[maker]:
            yield made.passed[maker]


def _kind_of(
    node: Node,
    facts: ops.Facts,
    inputs: Sequence[int],
    handles: dict[int, int],
    touched: tuple[int, ...],
) -> tuple[int, int]:
    shares = node.shares if node.shares is not None else facts.shares
    if node.op == VARIABLE:
        return HANDLE, -1
    if touched and facts.is_sparse:
        return PLAIN, -1  # in place whoever reads: copy-on-read leaves the variable its own buffer
    if node.op in (ARG, "Const"):
        return (PLAIN if node.is_owned else KEPT), -1
    if touched and node.op == "AssignVariableOp":
        return ASSIGN, inputs[1]
    if touched and facts.writes:
        return UPDATE, -1
    if touched and facts.shares is not None:
        return READ, -1
    if shares is not None and shares < len(inputs) and not node.from_host:
        return (HANDLE if inputs[shares] in handles else VIEW), inputs[shares]
    return PLAIN, -1


def _add_outputs(
    made: Compact, node: Node, kind: int, facts: ops.Facts, inputs: Sequence[int]
) -> None:
    first, end = made.first[-2:]
    output = first + facts.taker
    takes: list[int] = []
    inplace = facts.inplace if node.inplace is None else node.inplace
    if kind == PLAIN and inplace and output < end and made.nbytes[output] > 0:
        for i in inplace:
            if i < len(inputs) and made.nbytes[inputs[i]] == made.nbytes[output]:
                takes.append(inputs[i])
    made.takes.append(tuple(takes))
    made.taker.append(output if takes else -1)
    outputs: Sequence[int] = range(first, end)
    if (last := node.last) is not None:
        outputs = sorted(outputs, key=lambda value: value == first + last)
    made.outputs.append(outputs)


def _count_uses(made: Compact, outputs: Iterable[int]) -> None:
    made.uses = [0] * len(made.nbytes)
    for reads in made.reads:
        for value in reads:
            made.uses[value] += 1
    for value in outputs:
        made.uses[value] += 1
