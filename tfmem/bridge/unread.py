"""Outputs of branches that nobody reads.

What makes such an output runs all the same, but nobody waits for it, so it runs whenever TensorFlow
comes to it, after the branch too, and holds up what it reads. A number is given instead, as soon
as the output has been made:

    branch(x) -> a, b       a = Neg(x)   b = MatMul(x, x)        nobody reads b
    branch(x) -> a, b/n     a = Neg(x)   b = MatMul(x, x)   b/n = Const(^b)

Who waits for all outputs then waits for `b`, too, whose buffer is gone by then.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import tensorflow as tf

from tfmem.bridge.graphdefs import FunctionDef, NodeDef, functions_of
from tfmem.graph.bodies import BRANCHES

Unread = dict[str, list[int]]
"""Numbers of the outputs for which a number is given, by the node that branches."""


def give_numbers(
    nodes: Collection[NodeDef],
    returned: Iterable[str],
    library: Mapping[str, FunctionDef],
    runs: Mapping[str, int],
) -> Unread:
    """Changes the functions of branches so that they give numbers instead of what nobody reads.

    A function that others run as well stays as it is, and so do outputs that are no plain tensors.

    Args:
      nodes: of a graph or a function, with their inputs.
      returned: what it gives back, written as inputs are.
      library: functions by name, which are changed.
      runs: how many nodes refer to each of them.
    """
    branching = {node.name: node for node in nodes if node.op in BRANCHES}
    read: dict[str, set[int]] = {name: set() for name in branching}
    for text in (*(text for node in nodes for text in node.input), *returned):
        name, _, rest = text.partition(":")
        if name in read:
            read[name].add(int(rest.rpartition(":")[2] or 0))
    found: Unread = {}
    for name, node in branching.items():
        names = functions_of(node)
        functions = [library[one] for one in names if runs[one] == 1]
        types = [tf.as_dtype(one) for one in node.attr["Tout"].list.type]
        unread = [i for i, one in enumerate(types) if i not in read[name] and _is_plain(one)]
        if len(functions) < len(names) or not unread:
            continue
        found[name] = unread
        for number in unread:
            if number < len(node.attr["output_shapes"].list.shape):
                node.attr["output_shapes"].list.shape[number].Clear()
                node.attr["output_shapes"].list.shape[number].unknown_rank = True
            for function in functions:
                _give_number(function, number)
    return found


def count_runs(groups: Iterable[Iterable[NodeDef]]) -> dict[str, int]:
    """How many nodes refer to each function, by its name."""
    names = (name for nodes in groups for node in nodes for name in functions_of(node))
    return collections.Counter(names)


def _is_plain(dtype: tf.DType) -> bool:
    is_handle = dtype in (tf.resource, tf.variant, tf.string)
    return not (is_handle or dtype.is_quantized or dtype._is_ref_dtype)


def _give_number(function: FunctionDef, number: int) -> None:
    output = function.signature.output_arg[number]
    source = function.ret[output.name].partition(":")[0]
    made = function.node_def.add(name=f"{output.name}/tfmem_number", op="Const")
    if any(node.name == source for node in function.node_def):
        made.input.append(f"^{source}")
    made.attr["dtype"].type = output.type
    zero = np.zeros([], tf.as_dtype(output.type).as_numpy_dtype)
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(zero))
    function.ret[output.name] = f"{made.name}:output:0"
