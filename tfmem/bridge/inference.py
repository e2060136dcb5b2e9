"""Shape inference: a GraphDef in a graph of its own, where every shape that can be told is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import func_graph as func_graph_lib

from tfmem.bridge import looped, shapes
from tfmem.bridge.graphdefs import FuncGraph, FunctionDef, GraphDef, parse_value
from tfmem.bridge.inputs import Input, handle_of, import_graph
from tfmem.bridge.nesting import Element
from tfmem.bridge.seen import NOTHING_SEEN, Seen, stacked
from tfmem.bridge.shapes import Shape
from tfmem.bridge.slices import range_size
from tfmem.bridge.tensors import constant, full
from tfmem.graph.bodies import STACKING_OPS
from tfmem.graph.ir import Value

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NOTHING_TAKEN: Mapping[Value, Element] = MappingProxyType({})


def import_sized(
    graph_def: GraphDef,
    inputs: Iterable[Input],
    functions: Mapping[str, FunctionDef],
    known: Mapping[Value, Shape],
    traced: FuncGraph | None = None,
    taken: Mapping[Value, Element] = _NOTHING_TAKEN,
    seen: Seen = NOTHING_SEEN,
) -> tuple[FuncGraph, dict[Value, Shape]]:
    """The graph with inferred shapes.

    A value that is `known`, or whose shape TensorFlow's Python code told the trace, is fed to its
    readers as if it were an input of that shape; so is what is `taken` out of lists, where
    inference does not know it, and what a loop passes on. Axes that follow from shapes, and shapes
    of variables, are constants to their readers. All such shapes are returned with the graph.

    Args:
      graph_def: the nodes.
      inputs: what stands in the place of some of them, with their actual sizes.
      functions: that nodes run, by name.
      known: shapes of values.
      traced: the graph as the user's code made it.
      taken: what nodes take out of lists and optionals.
      seen: of this function.
    """
    follow = partial(_following, traced=traced, seen=seen)
    sized = list(inputs)
    nodes = _bare(graph_def, {item.name for item in sized}, functions)
    graph = func_graph_lib.FuncGraph("tfmem_sizes")
    try:
        import_graph(graph, nodes, sized)
    except ValueError:  # a branch that is not taken need not be able to run with what is known
        sized = [replace(item, value=None) for item in sized]
        graph = func_graph_lib.FuncGraph("tfmem_sizes")
        import_graph(graph, nodes, sized)
    fixed: dict[Value, Shape] = {}
    numbers = _numbers(graph)
    numbers |= {v: one.numbers for v, one in taken.items() if one.numbers is not None}
    handles = {value: one.handle for value, one in taken.items() if one.handle is not None}
    elements: dict[Value, Shape] = {
        value: one.shape or ()
        for value, one in taken.items()
        if value in handles or (one.shape is not None and _is_open(graph, value))
    }
    told = {**_told(graph, traced, graph_def.library), **follow(graph)}
    wanted = {**told, **known, **elements, **_shapes_of(numbers)}
    while wanted.keys() - fixed.keys():
        fixed = wanted
        extra = [
            Input(_fixed_name(v), graph.get_tensor_by_name(str(v)).dtype, handles.get(v), shape)
            for v, shape in fixed.items()
            if v not in numbers
        ]
        graph = func_graph_lib.FuncGraph("tfmem_sizes")
        import_graph(graph, _reading_inputs(nodes, fixed, numbers), [*sized, *extra])
        numbers |= _numbers(graph)
        wanted = {**follow(graph), **_shapes_of(numbers), **fixed}
    return graph, fixed


def _bare(
    graph_def: GraphDef, inputs: Collection[str], functions: Mapping[str, FunctionDef]
) -> GraphDef:
    """The nodes but for inputs, without devices, on which the import spends half its time."""
    nodes = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
    nodes.node.extend(node for node in graph_def.node if node.name not in inputs)
    for node in nodes.node:
        node.device = ""
    looped.bypass(nodes, functions)
    return nodes


def _numbers(graph: FuncGraph) -> dict[Value, np.ndarray]:
    return {
        Value(op.name, i): numbers
        for op in graph.get_operations()
        for i, numbers in enumerate(numbers_of(op))
    }


def numbers_of(
    op: tf.Operation, standing: Callable[[tf.Tensor], tf.Tensor] = lambda tensor: tensor
) -> list[np.ndarray]:
    """Axes over which a gradient of a broadcast is summed, a variable's shape; [] if not known.

    Args:
      op: the node.
      standing: gives the tensor that stands for another.
    """
    found: Sequence[Shape] = ()
    if op.type == "BroadcastGradientArgs":
        before, other = (constant(standing(tensor)) for tensor in op.inputs)
        if before is not None and other is not None:
            found = shapes.broadcast_axes(before, other)
    elif op.type == "VariableShape" and (shape := _shape_held(op.inputs[0])) is not None:
        found = (shape,)
    outputs = zip(found, op.outputs, strict=False)
    return [np.array(one, tensor.dtype.as_numpy_dtype) for one, tensor in outputs]


def _shape_held(handle: tf.Tensor) -> Shape | None:
    """The shape of the variable that a handle refers to."""
    known = handle_of(handle)
    return full(tf.TensorShape(known.shape_and_type[0].shape)) if known and known.is_set else None


def _shapes_of(constants: Mapping[Value, np.ndarray]) -> dict[Value, Shape]:
    return {value: found.shape for value, found in constants.items()}


def _following(graph: FuncGraph, traced: FuncGraph | None, seen: Seen) -> dict[Value, Shape]:
    """Shapes that follow from others which TensorFlow's inference does not look at."""
    known = {Value(op.name, i) for op in graph.get_operations() for i in range(len(op.outputs))}
    found = {**_stacked(graph, seen), **_ensured(graph, traced), **_of_python(graph, traced)}
    found |= _ranged(graph)
    found |= {value: shape for (path, value), shape in seen.passed.items() if path == seen.path}
    return {v: shape for v, shape in found.items() if v in known and _is_open(graph, v)}


def _ensured(graph: FuncGraph, traced: FuncGraph | None) -> dict[Value, Shape]:
    """Shapes of what an `EnsureShape` reads, or read when the function was traced.

    With another one the step fails.
    """
    ops = [*(traced.get_operations() if traced is not None else ()), *graph.get_operations()]
    read = [(op.inputs[0], full(op.outputs[0].shape)) for op in ops if op.type == "EnsureShape"]
    return {Value(t.op.name, t.value_index): shape for t, shape in read if shape is not None}


def _of_python(graph: FuncGraph, traced: FuncGraph | None) -> dict[Value, Shape]:
    """Shapes of gradients of `tf.py_function`: those of what the function was given.

    The node of the gradients is another function of Python, made in the scope of a gradient, which
    first of all waits for the one that it belongs to.
    """
    known = {op.name: op for op in graph.get_operations() if op.type == "EagerPyFunc"}
    found: dict[Value, Shape] = {}
    for op in traced.get_operations() if traced is not None else ():
        waited = [one.name for one in op.control_inputs if one.name in known]
        if op.name not in known or not waited or "gradient" not in op.name:
            continue
        given = known[waited[0]].inputs
        if [one.dtype for one in given] != [one.dtype for one in op.outputs]:
            continue
        for i, tensor in enumerate(given):
            if (shape := full(tensor.shape)) is not None:
                found[Value(op.name, i)] = shape
    return found


def _stacked(graph: FuncGraph, seen: Seen) -> dict[Value, Shape]:
    """Shapes of lists that become a tensor, where the number of their elements is known."""
    return {
        Value(op.name, i): shape
        for op in graph.get_operations()
        if op.type in STACKING_OPS
        for i, shape in enumerate(stacked(op, seen))
        if shape is not None
    }


def _ranged(graph: FuncGraph) -> dict[Value, Shape]:
    """Shapes of ranges of which only the difference of their ends is known."""
    ranges = [op for op in graph.get_operations() if op.type == "Range"]
    sizes = {op.name: range_size(op) for op in ranges if not op.outputs[0].shape.is_fully_defined()}
    return {Value(name): (size,) for name, size in sizes.items() if size is not None}


def _is_open(graph: FuncGraph, value: Value) -> bool:
    return not graph.get_tensor_by_name(str(value)).shape.is_fully_defined()


def _told(graph: FuncGraph, traced: FuncGraph | None, library: Any) -> dict[Value, Shape]:
    """Shapes that are open in `graph` and were not while the function was traced (`set_shape`)."""
    if traced is None:
        return {}
    result = {}
    before = {op.name: op for op in traced.get_operations()}
    functions = {function.signature.name: function for function in library.function}
    for op in graph.get_operations():
        if all(tensor.shape.is_fully_defined() for tensor in op.outputs):
            continue
        outputs = _traced_outputs(op, before.get(op.name), traced, functions)
        for i, (tensor, then) in enumerate(zip(op.outputs, outputs, strict=False)):
            if not tensor.shape.is_fully_defined() and (shape := full(then.shape)) is not None:
                result[Value(op.name, i)] = shape
    return result


def _traced_outputs(
    op: tf.Operation,
    before: tf.Operation | None,
    traced: FuncGraph,
    functions: Mapping[str, FunctionDef],
) -> list[tf.Tensor]:
    """A node's outputs as it was traced; none where they are others.

    Grappler gives a call that stays a function of its own, without the outputs that nobody reads.
    """
    if before is None or before.type != op.type:
        return []
    if len(before.outputs) == len(op.outputs):
        return list(before.outputs)
    names = [op.get_attr("f").name, before.get_attr("f").name] if op.type in _CALLS else []
    if len(names) < 2 or names[0] not in functions or names[1] not in traced._functions:
        return []
    now, then = functions[names[0]], traced._functions[names[1]].cached_definition
    index = {arg.name: i for i, arg in enumerate(then.signature.output_arg)}
    kept = [index.get(arg.name) for arg in now.signature.output_arg]
    return [before.outputs[i] for i in kept if i is not None] if None not in kept else []


def _reading_inputs(
    graph_def: GraphDef, fixed: Mapping[Value, Shape], constants: Mapping[Value, np.ndarray]
) -> GraphDef:
    """A copy in which readers of `fixed` values read inputs, and constants, named for them."""
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    for value, numbers in constants.items():
        made = result.node.add(name=_fixed_name(value), op="Const")
        made.attr["dtype"].type = tf.as_dtype(numbers.dtype).as_datatype_enum
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(numbers))
    for node in result.node:
        for i, text in enumerate(node.input):
            if text[0] != "^" and (value := parse_value(text)) in fixed:
                node.input[i] = _fixed_name(value)
    return result


def _fixed_name(value: Value) -> str:
    return f"tfmem_fixed/{value.node}/{value.index}"
