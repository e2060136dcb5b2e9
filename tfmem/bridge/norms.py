"""Batch norms that Grappler has fused with what follows, taken apart where that cannot be imported.

On a CPU Grappler makes one node of a batch norm and a ReLU, whatever the channels are; the shape
function of the fused op, written for GPUs, refuses channels that are no multiple of four. What runs
a function never asks it, what imports a graph does::

    y = _FusedBatchNormEx(x, scale, ...)      y      = FusedBatchNormV3(x, scale, ...)
                                              y/relu = Relu(y), which all readers of y:0 read

The numbers are the same, and so is what is in use: the ReLU takes the buffer of its input over.

Source: `FusedBatchNormExShape` in `tensorflow/core/framework/common_shape_fns.cc`, and
`tensorflow/core/grappler/optimizers/remapper.cc`, TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfmem.bridge.graphdefs import GraphDef, NodeDef
from tfmem.bridge.inputs import Input, as_shape

_FUSED, _MULTIPLE = "_FusedBatchNormEx", 4


def take_apart(graph_def: GraphDef, inputs: Iterable[Input]) -> None:
    """Takes fused batch norms apart, in place, unless their channels are known to be no problem.

    Args:
      graph_def: the graph, with its functions.
      inputs: of the graph.
    """
    by_name = {node.name: node for node in graph_def.node}
    channels = {one.name: _channels(one) for one in inputs}

    def is_fine(node: NodeDef) -> bool:
        scale = by_name.get(node.input[1])
        read = scale.input[0] if scale is not None and scale.op == "ReadVariableOp" else ""
        return channels.get(read or node.input[1], 1) % _MULTIPLE == 0

    _take_apart(graph_def.node, is_fine)
    for function in graph_def.library.function:
        made = _take_apart(function.node_def, lambda _: False, ":y:0", ":activations:0")
        for name, text in function.ret.items():
            function.ret[name] = made.get(text, text)


def _channels(one: Input) -> int:
    """Numbers of a vector that is an input, or a variable's; 1 where nothing is known."""
    shape = one.shape
    if one.handle is not None and one.handle.shape_and_type:
        shape = as_shape(tf.TensorShape(one.handle.shape_and_type[0].shape))
    return shape[0] or 1 if shape else 1


def _take_apart(
    nodes: Any, is_fine: Callable[[NodeDef], bool], old: str = "", new: str = ""
) -> dict[str, str]:
    """Does so among nodes; what is to be read instead of what.

    `old` and `new` stand behind the names of nodes where a norm's and an activation's outputs are
    read.
    """
    instead: dict[str, str] = {}
    for node in list(nodes):
        if node.op != _FUSED or node.attr["num_side_inputs"].i or is_fine(node):
            continue
        op = node.attr["activation_mode"].s.decode()
        made = nodes.add(name=f"{node.name}/{op.lower()}", op=op, device=node.device)
        made.attr["T"].CopyFrom(node.attr["T"])
        node.op = "FusedBatchNormV3"
        del node.attr["activation_mode"], node.attr["num_side_inputs"]
        instead[node.name + old] = made.name + new
    for node in nodes:
        node.input[:] = [instead.get(text, text) for text in node.input]
    by_name = {node.name: node for node in nodes}
    for norm, activation in instead.items():
        by_name[activation.removesuffix(new)].input.append(norm)
    return instead
