"""What TensorFlow would run of a function: its nodes, rewritten ahead of time, on their devices.

ConcreteFunction -> Grappler -> loops as graphs, if asked for -> long sums in parts -> devices
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfmem.bridge import (
    additions,
    graphdefs,
    grappler,
    kernels,
    norms,
    onednn,
    randoms,
    reads,
    sums,
)
from tfmem.bridge.graphdefs import BODIES, GraphDef, NodeDef
from tfmem.bridge.inference import import_sized
from tfmem.bridge.inputs import Input, is_variable, placeholder_name
from tfmem.bridge.refusals import refuse_old_loops
from tfmem.bridge.tensors import full
from tfmem.bridge.unrolled import Unrolled, unrolled
from tfmem.graph.ir import Value

_SUMMED = {t.as_datatype_enum for t in (tf.float16, tf.bfloat16, tf.float32, tf.float64)}


def nodes_of(
    concrete: Any,
    inputs: Sequence[Input],
    places: Mapping[str, str],
    device: str,
    to_unroll: tuple[Sequence[Input], Mapping[Value, tuple[int, ...]]] | None,
) -> tuple[GraphDef, list[NodeDef], frozenset[str]]:
    """What TensorFlow would run: the GraphDef, its nodes in program order, on their devices.

    Also the names of the reads of variables for which others serve.
    """
    graph_def = grappler.optimize(concrete, inputs, places, device)
    randoms.tell(graph_def)
    turns = dict[str, list[str]]()
    if to_unroll and (found := _unrolled(graph_def, concrete, *to_unroll)):
        graph_def, turns = found.graph_def, found.turns
    sums.split(graph_def, _SUMMED)
    norms.take_apart(graph_def, inputs)
    onednn.name_convolutions(graph_def)
    refuse_old_loops(graph_def, concrete)
    traced = (op.name for op in concrete.graph.get_operations())
    names = [name for one in traced for name in turns.get(one, [one])]
    kept = {graphdefs.parse_value(t.name).node for t in concrete.outputs}
    handles = {i.name for i in inputs if is_variable(i)}
    gone = reads.share(graph_def, handles, kept, names)
    gone |= additions.make(graph_def, concrete, inputs, _SUMMED)
    nodes = graphdefs.in_program_order(graph_def, names)
    _place_nodes(nodes, inputs, places, device)
    return graph_def, nodes, gone | turns.keys()


def _unrolled(
    graph_def: GraphDef,
    concrete: Any,
    inputs: Sequence[Input],
    known: Mapping[Value, tuple[int, ...]],
) -> Unrolled | None:
    """The function without loops, if none has to stay."""
    library = {one.signature.name: one for one in graph_def.library.function}
    sized, fixed = import_sized(graph_def, inputs, library, known, concrete.graph)
    names = {op.name for op in sized.get_operations()}
    placeholders = {one.name: placeholder_name(i) for i, one in enumerate(inputs)}

    def shape_of(text: str) -> tuple[int, ...] | None:
        value = graphdefs.parse_value(text)
        name = placeholders.get(value.node, value.node)
        if value in fixed or name not in names:
            return fixed.get(value)
        return full(sized.get_tensor_by_name(f"{name}:{value.index}").shape)

    outputs = [graphdefs.parse_value(t.name).node for t in concrete.outputs]
    effects = [op.name for op in concrete.graph.control_outputs]
    return unrolled(graph_def, placeholders, outputs, effects, shape_of)


def _place_nodes(
    nodes: Iterable[NodeDef], inputs: Iterable[Input], places: Mapping[str, str], device: str
) -> None:
    """Gives each node its device: beside the resource it uses, else where the user put it.

    What a GPU has no kernel for runs on the CPU beside it, as it does when TensorFlow places nodes.

    The colocation that Grappler or the user asked for is dropped: it is obeyed by now, and would
    contradict a node that a pass moves.
    """
    resource_place = {i.name: places[i.name] for i in inputs if i.dtype == tf.resource}
    for node in nodes:
        if node.name in places:
            continue
        node.attr.pop("_class", None)
        node.attr.pop("_output_shapes", None)
        if node.op not in BODIES:
            for source in node.input:
                if (place := resource_place.get(source.partition(":")[0])) is not None:
                    node.device = place
                    break
        kernels.place(node, device)
        if node.op in ("Identity", "VarHandleOp") and _is_resource(node):
            resource_place[node.name] = node.device


def _is_resource(node: NodeDef) -> bool:
    return bool(node.op == "VarHandleOp" or node.attr["T"].type == tf.resource.as_datatype_enum)
