"""Convolutions that Grappler has fused for oneDNN, under the name of oneDNN's own op.

Grappler makes a `_FusedConv2D` of a convolution and what follows also where all is bfloat16, which
that op does not allow. What runs a function never asks; it puts oneDNN's op in its place, which
allows it. What imports a graph does ask::

    y = _FusedConv2D(x, kernel, ...)          y = _MklNativeFusedConv2D(x, kernel, ...)

Source: `tensorflow/core/grappler/optimizers/remapper.cc` and
`tensorflow/core/common_runtime/mkl_layout_pass.cc`, TensorFlow 2.21.
"""

from __future__ import annotations

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.bridge.graphdefs import GraphDef, NodeDef

FUSED, ONEDNNS = "_FusedConv2D", "_MklNativeFusedConv2D"

_LABEL = b"MklNameChangeOp"
"""Of the kernels of ops that are oneDNN's alone."""


def name_convolutions(graph_def: GraphDef) -> None:
    """Names fused convolutions, in place, whose type only oneDNN's op allows."""
    for nodes in (graph_def.node, *(one.node_def for one in graph_def.library.function)):
        for node in nodes:
            if node.op == FUSED and not _allows(FUSED, node) and _allows(ONEDNNS, node):
                node.op = ONEDNNS
                node.attr["_kernel"].s = _LABEL


def _allows(op: str, node: NodeDef) -> bool:
    """Whether an op, if there is one, may have the type of a node."""
    known = op_def_registry.get(op)
    types = (one for one in known.attr if one.name == "T") if known else ()
    return any(node.attr["T"].type in one.allowed_values.list.type for one in types)
