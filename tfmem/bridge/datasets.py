"""Bounds of what the functions of data sets take, which run while a function reads them.

AutoGraph makes of `for x in dataset` a ScanDataset whose function is the loop's body, and a
ReduceDataset that pulls its elements:

    data = BatchDataset(TensorSliceDataset(x), 4)
    loop = ScanDataset(data, total:0, weights:0)     the body: (total, element, weights) -> total
    y = ReduceDataset(loop, total:0)                 runs the body for each element

TensorFlow runs such functions as it likes, several nodes at once; no pass reaches them. So what
counts is what they may have in use in any order, and the elements that data sets hold.

Source: TensorFlow's ``autograph/operators/control_flow.py`` and ``kernels/data/``, version 2.21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import tensorflow as tf

from tfmem.bridge.graphdefs import FunctionDef, NodeDef, functions_of, parse_value
from tfmem.bridge.inputs import Input, as_shape, handle_of
from tfmem.costs.types import GRAIN
from tfmem.errors import UnsupportedFunctionError
from tfmem.graph import device_names
from tfmem.graph.any_order import most_in_use
from tfmem.graph.bodies import LOOPS, Body
from tfmem.runtime import devices

PULLING = ("ReduceDataset", "DatasetToSingleElement")
"""Ops that run the data set which is their first input."""

_KEEPING = ("PrefetchDataset", "ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3")
"""Ops that hold as many elements as their second input says."""

_AT_ONCE = {
    **dict.fromkeys(("ParallelMapDataset", "ParallelMapDatasetV2", "ParallelFilterDataset"), -1),
    **dict.fromkeys((f"ParallelInterleaveDatasetV{version}" for version in (2, 3, 4)), -1),
    "ParallelBatchDataset": 2,
    "MapAndBatchDataset": -2,
}
"""Ops that make several elements at once; which input says how many."""

_LISTING = ("TensorListPushBack", "OptionalFromValue")


def _pulled(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
    """A node that pulls elements, and the data sets of the graph that these go through."""
    found, todo = {node.name: node}, [node]
    while todo:
        for text in todo.pop().input:
            source = nodes.get(parse_value(text.removeprefix("^")).node)
            if source is not None and _is_dataset(source) and source.name not in found:
                found[source.name] = source
                todo.append(source)
    return list(found.values())


def most_pulled(
    node: NodeDef,
    nodes: Mapping[str, NodeDef],
    ops: Mapping[str, tf.Operation],
    functions: Mapping[str, FunctionDef],
    read: Callable[[FunctionDef, Sequence[Input], NodeDef, int], Body],
) -> int:
    """Most bytes that the data sets which a node runs take while it runs.

    Args:
      node: that pulls elements.
      nodes: of the graph, by name.
      ops: of the nodes, by name.
      functions: that they run, by name.
      read: gives one of a data set's functions, for its inputs, that data set and its number.
    """
    total = 0
    for one in _pulled(node, nodes):
        op, is_here = ops[one.name], not device_names.is_gpu(one.device)
        if is_here and one is not node:
            total += _held(one, op)
        for number, name in enumerate(functions_of(one)):
            inputs = _inputs_of(functions[name], one, op)
            body = read(functions[name], inputs, one, number)
            total += _runs_of(one, op) * _at_once(body, len(inputs) - _captured_by(one))
    return total


def _is_dataset(node: NodeDef) -> bool:
    return "Dataset" in node.op and "output_shapes" in node.attr


def _captured_by(node: NodeDef) -> int:
    """How many of the last inputs of a data set's function are captured."""
    return len(_types(node, "Targuments"))


def _types(node: NodeDef, *names: str) -> list[int]:
    return [one for name in names if name in node.attr for one in node.attr[name].list.type]


def _inputs_of(function: FunctionDef, node: NodeDef, op: tf.Operation) -> list[Input]:
    """What a data set's function is given: state, the parts of elements, what it captured."""
    state, captured = len(_types(node, "Tstate")), _captured_by(node)
    arguments = function.signature.input_arg
    tensors = dict(enumerate(list(op.inputs)[1 : 1 + state]))
    others = list(op.inputs)[1 + state : 1 + state + captured]
    tensors |= dict(enumerate(others, len(arguments) - captured))
    inputs = []
    for index, argument in enumerate(arguments):
        dtype = tf.as_dtype(argument.type)
        if index in tensors:
            tensor = tensors[index]
            shape, handle = as_shape(tensor.shape), handle_of(tensor)
        else:
            traced = function.arg_attr[index].attr["_output_shapes"].list.shape
            shape = as_shape(tf.TensorShape(traced[0])) if traced else None
            handle = None
        inputs.append(Input(argument.name, dtype, handle, shape))
    return inputs


def _runs_of(node: NodeDef, op: tf.Operation) -> int:
    """How many elements a data set makes at once at most; where it may choose, one a thread."""
    if node.op not in _AT_ONCE:
        return 1
    number = tf.get_static_value(op.inputs[_AT_ONCE[node.op]])
    return int(number) if number is not None and number > 0 else devices.lanes()


def _at_once(body: Body, given: int = 0) -> int:
    """Bytes in use at most while a function runs, and of some that it is given.

    Args:
      body: the function.
      given: how many of its first inputs count; its caller has the others.

    Raises:
      UnsupportedFunctionError: a loop in it may keep something in each of its turns.
    """
    inputs = [node for node in body.graph.nodes if node.is_input]
    workspace = dict(body.workspace)
    for node in body.graph.nodes:
        functions = body.bodies.get(node.name, ())
        if node.op in LOOPS and any(map(_keeps, functions)):
            raise UnsupportedFunctionError(
                f"the loop {node.name} runs in a function of a data set, where what it keeps in "
                "each of its turns is not counted; loop over iter(dataset) instead",
                node.name,
            )
        inside = sum(one.turns * _at_once(one) for one in functions)
        workspace[node.name] = workspace.get(node.name, 0) + inside
    most = most_in_use(body.graph, workspace, granularity=GRAIN, lanes=devices.lanes())
    return sum(sum(node.nbytes) for node in inputs[:given]) + most


def _keeps(body: Body) -> bool:
    inner = (one for functions in body.bodies.values() for one in functions)
    return any(node.op in _LISTING for node in body.graph.nodes) or any(map(_keeps, inner))


def _held(node: NodeDef, op: tf.Operation) -> int:
    """Bytes of the elements that a data set holds; of those whose size is known."""
    types = _types(node, "output_types", "Toutput_types")
    shapes, element = node.attr["output_shapes"].list.shape, 0
    for one, shape in zip(types, shapes, strict=True):
        dims = as_shape(tf.TensorShape(shape))
        if dims is not None:
            known = prod(dim or 0 for dim in dims)
            element += known * int(tf.as_dtype(one).size)
    count = _runs_of(node, op)
    if node.op in _KEEPING:
        number = tf.get_static_value(op.inputs[1])
        count += max(int(number), 1) if number is not None else 1
    return count * element
