"""Invariants of a graph, and of a rewritten graph against the one it was made from.

`verify` holds for any graph; `verify_rewrite` says that a pass changed nothing but the order, the
place and the moment of a computation. Both raise `RewriteError`: a failure is a bug of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfmem.errors import RewriteError
from tfmem.graph.ir import Graph, Node, Value
from tfmem.graph.ops import facts_of
from tfmem.graph.text import node_to_text

COPY = "Identity"
"""Op of a node that copies a value to the device the node runs on."""

TO_HOST, FROM_HOST = "_CopyFromGpuToHost", "_CopyFromHostToGpu"
"""Ops of a GPU that copy a value to the memory of its host, and from there."""

COPIES = frozenset((COPY, TO_HOST, FROM_HOST))
"""Ops of inserted nodes that copy the value they read."""

BARRIER = "NoOp"
"""Op of a node that only orders others."""

HOLD = "IdentityN"
"""Op of a node that nobody reads: it holds what it reads until its turn. Unlike an Identity's, its
kernel leaves integers in a GPU's memory."""

_MERGED_WITH_PRODUCER = {("Conv2D", "BiasAdd"), ("Pad", "Conv2D"), ("Pad", "_FusedConv2D")}
_MERGED_WITH_SIBLING = {("Conv2DBackpropFilter", "BiasAddGrad")}


def verify(graph: Graph) -> None:
    """Checks that a graph is well formed and that its nodes stand in a topological order.

    Raises:
      RewriteError: names are not unique, or a value or a control input does not exist or comes
        from a later node.
    """
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        if node.name in seen:
            raise RewriteError(f"two nodes are named {node.name!r}")
        for value in node.inputs:
            _check_value(graph, seen, value, node_to_text(node))
        for name in node.after:
            if name not in seen:
                raise RewriteError(_missing(graph, name, node_to_text(node)))
        seen[node.name] = node
    for value in graph.outputs:
        _check_value(graph, seen, value, f"return {value}")


def verify_rewrite(before: Graph, after: Graph) -> None:
    """Checks that `after` computes what `before` does.

    Every node is still there with its op, unless it is pure and nobody uses it; stateful nodes are
    not cloned; what they waited for they still wait for; every new node has an origin and is a
    clone of it, a copy, a hold, or a barrier; inputs differ only by clones and copies of the same
    value; control inputs that were changed do not make oneDNN merge two nodes (see
    `mergeable_pairs`).

    Raises:
      RewriteError: one of these does not hold.
    """
    if tuple(_original(after, value) for value in after.outputs) != tuple(
        _original(before, value) for value in before.outputs
    ):
        raise RewriteError(f"outputs changed from {before.outputs} to {after.outputs}")
    for node in before.nodes:
        if node.name not in after.by_name and not _is_removable(before, after, node):
            raise RewriteError(f"a node that is needed was removed: {node_to_text(node)}")
    for node in after.nodes:
        old = before.by_name.get(node.name)
        if old is not None:
            _check_kept(before, after, old, node)
        else:
            _check_new(before, node)
    for first, second in mergeable_pairs(after):
        _check_apart(before, after, first, second)


def mergeable_pairs(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Pairs that oneDNN's pass after partitioning merges if their control inputs are equal,
    the earlier of the two first.

    Source: TensorFlow's ``mkl_layout_pass.cc``; it looks for no other path between the two.
    """
    for node in graph.nodes:
        if node.op not in _SECOND:
            continue
        for value in node.inputs:
            producer = graph.by_name[value.node]
            if (producer.op, node.op) in _MERGED_WITH_PRODUCER:
                yield producer, node
            for name in graph.consumers[value]:
                sibling = graph.by_name[name]
                if (sibling.op, node.op) in _MERGED_WITH_SIBLING:
                    is_earlier = graph.position[name] < graph.position[node.name]
                    yield (sibling, node) if is_earlier else (node, sibling)


_SECOND = {second for _, second in _MERGED_WITH_PRODUCER | _MERGED_WITH_SIBLING}


def _check_apart(before: Graph, after: Graph, first: Node, second: Node) -> None:
    olds = [before.by_name.get(node.name) for node in (first, second)]
    if [old and old.after for old in olds] == [first.after, second.after]:
        return
    if set(first.after) == set(second.after) and (first.after or _has_detour(after, first, second)):
        raise RewriteError(
            f"oneDNN would merge two nodes whose control inputs are equal, and abort:\n"
            f"  {node_to_text(first)}\n  {node_to_text(second)}\n"
            f"make ^{first.name} a control input of {second.name}"
        )


def _has_detour(graph: Graph, first: Node, second: Node) -> bool:
    """Whether a path other than the direct edge leads from one node to a later one."""
    last = graph.position[second.name]
    seen, stack = {first.name}, [name for name in graph.successors[first.name]]
    stack = [name for name in stack if name != second.name]
    while stack:
        name = stack.pop()
        if name == second.name:
            return True
        if name not in seen and graph.position[name] < last:
            seen.add(name)
            stack.extend(graph.successors[name])
    return False


def _check_value(graph: Graph, seen: dict[str, Node], value: Value, where: str) -> None:
    if value.node not in seen:
        raise RewriteError(_missing(graph, value.node, where))
    if not 0 <= value.index < len(seen[value.node].nbytes):
        raise RewriteError(f"{seen[value.node].name!r} has no output {value.index}: {where}")


def _missing(graph: Graph, name: str, where: str) -> str:
    if name in graph.by_name:
        return f"the order is not topological: {name!r} comes later than its user: {where}"
    return f"there is no node {name!r}: {where}"


def _is_removable(before: Graph, after: Graph, node: Node) -> bool:
    if facts_of(node.op).is_stateful:
        return False
    return all(name not in after.by_name for name in before.successors[node.name])


def _check_kept(before: Graph, after: Graph, old: Node, node: Node) -> None:
    if (old.op, old.nbytes, old.origin) != (node.op, node.nbytes, node.origin):
        raise RewriteError(f"a node was replaced:\n  {node_to_text(old)}\n  {node_to_text(node)}")
    then = tuple(_original(before, value) for value in old.inputs)
    now = tuple(_original(after, value) for value in node.inputs)
    if then != now:
        raise RewriteError(
            f"inputs changed other than to copies or clones:\n"
            f"  {node_to_text(old)}\n  {node_to_text(node)}"
        )
    lost = set(old.after) - set(node.after)
    if any(name in after.by_name for name in lost):
        raise RewriteError(f"control inputs {sorted(lost)} were lost: {node_to_text(node)}")


def _check_new(before: Graph, node: Node) -> None:
    origin = before.by_name.get(node.origin)
    if origin is None:
        raise RewriteError(f"a new node has no origin in the graph before: {node_to_text(node)}")
    if node.op in COPIES or node.op in (BARRIER, HOLD):
        return
    if origin.op != node.op:
        raise RewriteError(f"neither a copy nor a clone: {node_to_text(node)}")
    if facts_of(node.op).is_stateful:
        raise RewriteError(f"a stateful node was cloned: {node_to_text(node)}")


def _original(graph: Graph, value: Value) -> Value:
    """The captured value that a copy or a clone stands for."""
    node = graph.by_name[value.node]
    while node.origin:
        if node.op in COPIES and graph.by_name.get(node.origin, node).op not in COPIES:
            value = node.inputs[0]
        else:
            value = Value(node.origin, value.index)
        node = graph.by_name[value.node]
    return value
