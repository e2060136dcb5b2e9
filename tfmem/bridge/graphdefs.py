"""NodeDefs: their order, the names of their inputs, the bodies of functions."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.graph.ir import Value
from tfmem.graph.topology import least_first, post_order

GraphDef = Any
NodeDef = Any
FunctionDef = Any
FuncGraph = Any

BODIES = {
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
}
"""Ops that run function bodies, and the attributes that name these."""


def functions_of(node: NodeDef) -> list[str]:
    """Names of the functions that a node refers to, in the order of `BODIES` or of attributes."""
    found = []
    for attr in BODIES.get(node.op) or sorted(node.attr):
        value = node.attr[attr]
        if value.func.name:
            found.append(value.func.name)
        found += [function.name for function in value.list.func]
    return found


def parse_value(name: str) -> Value:
    """The value that TensorFlow writes ``node:index``, or ``node`` for output 0."""
    node, _, index = name.partition(":")
    return Value(node, int(index or 0))


def value_of(tensor: tf.Tensor) -> Value:
    """The value that a graph's tensor is."""
    return Value(tensor.op.name, tensor.value_index)


@functools.lru_cache(maxsize=1024)
def merged_device(explicit: str, device: str) -> str:
    """The user's device, with what it leaves open taken from `device`."""
    if not explicit:
        return device
    base, asked = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(explicit)
    return str(base.make_merged_spec(asked).to_string())


def in_program_order(graph_def: GraphDef, names: Iterable[str]) -> list[NodeDef]:
    """The nodes in a topological order, close to that in which the user's code made them.

    `names` are those of the nodes as the user's code made them. A node that Grappler made, or that
    stands for an earlier one like it, takes the place of the first node that needs it.
    """
    by_name = {node.name: node for node in graph_def.node}
    before = {name: set(map(_source_of, node.input)) for name, node in by_name.items()}
    after: dict[str, list[str]] = {name: [] for name in by_name}
    for name, sources in before.items():
        for source in sources:
            after[source].append(name)

    rank = {name: i for i, name in enumerate(names)}
    last = len(rank)
    for name in (node.name for node in reversed(topological(graph_def.node))):
        rank[name] = min([rank.get(name, last), *(rank[reader] for reader in after[name])])

    names = list(by_name)
    number = {name: i for i, name in enumerate(names)}
    order = least_first(
        [{number[source] for source in sources} for sources in before.values()],
        [[number[reader] for reader in after[name]] for name in names],
        [(rank[name], name) for name in names],
    )
    return [by_name[names[i]] for i in order]


def _source_of(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]


def bare(node: NodeDef) -> NodeDef:
    """A NodeDef without its inputs, which the graph knows."""
    result = type(node)()
    result.CopyFrom(node)
    del result.input[:]
    return result


def drop(graph_def: GraphDef, names: Container[str]) -> None:
    """Takes nodes out of a GraphDef, in place."""
    for place in reversed(range(len(graph_def.node))):
        if graph_def.node[place].name in names:
            del graph_def.node[place]


def topological(nodes: Iterable[NodeDef]) -> list[NodeDef]:
    """NodeDefs sorted so that each follows its inputs; else in the order given."""
    by_name = {node.name: node for node in nodes}

    def before(name: str) -> list[str]:
        sources = map(_source_of, reversed(by_name[name].input))
        return [source for source in sources if source in by_name]

    return [by_name[name] for name in post_order(by_name, before)]


def body_graph_def(function: FunctionDef) -> tuple[GraphDef, list[str]]:
    """A function's nodes with inputs named as graphs name them, and its outputs so named."""
    flat = {arg.name: arg.name for arg in function.signature.input_arg}
    for node in function.node_def:
        index = 0
        for output in op_def_registry.get(node.op).output_arg:
            for i in range(output_count(output, node)):
                flat[f"{node.name}:{output.name}:{i}"] = f"{node.name}:{index}"
                index += 1
    graph_def = tf.compat.v1.GraphDef()
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.attr.pop("_class", None)
        copy.input[:] = [text if text[0] == "^" else flat[text] for text in node.input]
    return graph_def, [flat[function.ret[arg.name]] for arg in function.signature.output_arg]


def output_count(output: Any, node: NodeDef) -> int:
    """How many values an output of an op's definition stands for."""
    if output.number_attr:
        return int(node.attr[output.number_attr].i)
    if output.type_list_attr:
        return len(node.attr[output.type_list_attr].list.type)
    return 1


def runs_at_once(caller: NodeDef) -> int:
    """How many runs of its function a node has under way at once at most."""
    found = caller.attr.get("parallel_iterations")
    return max(1, found.i) if found else 1


def plain(value: Any) -> object:
    """An AttrValue as a number, text, truth or integers; None for what nobody asks for."""
    kind = value.WhichOneof("value")
    if kind in ("s", "list"):
        return value.s.decode(errors="replace") if kind == "s" else tuple(value.list.i)
    return getattr(value, kind) if kind in ("i", "f", "b", "type") else None
