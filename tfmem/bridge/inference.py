"""Shape inference: a GraphDef in a graph of its own, where every shape that can be told is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import func_graph as func_graph_lib

from tfmem.bridge import shapes
from tfmem.bridge.graphdefs import (
    FuncGraph,
    FunctionDef,
    GraphDef,
    body_graph_def,
    parse_value,
    value_of,
)
from tfmem.bridge.inputs import UNSIZED, Input, as_shape, handle_of, import_graph
from tfmem.bridge.nesting import Element
from tfmem.bridge.shapes import Shape
from tfmem.bridge.tensors import argument, constant, full
from tfmem.graph.bodies import LOOPS, Lengths
from tfmem.graph.ir import Value

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")

_RESIZES = "resize_if_index_out_of_bounds"  # an attribute of TensorListSetItem

STACKING_OPS = ("TensorListStack", "TensorListConcatV2")
"""Ops of which `stacked` knows outputs."""


def import_sized(
    graph_def: GraphDef,
    inputs: Iterable[Input],
    actual: Mapping[str, tf.Tensor],
    known: Mapping[Value, Shape],
    traced: FuncGraph | None = None,
    taken: Mapping[Value, Element] | None = None,
    lengths: Lengths | None = None,
    functions: Mapping[str, FunctionDef] | None = None,
) -> tuple[FuncGraph, dict[Value, Shape]]:
    """The graph with inferred shapes, where open dimensions take their actual sizes.

    A value that is `known`, or whose shape TensorFlow's Python code told the trace, is fed to its
    readers as if it were an input of that shape; so is what is `taken` out of lists, where
    inference does not know it, and what a loop passes on. Axes that follow from shapes, and shapes
    of variables, are constants to their readers. All such shapes are returned with the graph.

    Args:
      graph_def: the nodes.
      inputs: what stands in the place of some of them.
      actual: tensors passed for inputs, by name.
      known: shapes of values.
      traced: the graph as the user's code made it.
      taken: what nodes take out of lists and optionals.
      lengths: as of `stacked`.
      functions: that loops run, by name.
    """
    taken = taken or {}
    follow = partial(_following, traced=traced, lengths=lengths, functions=functions or {})
    sized = [_with_actual_shape(item, actual.get(item.name)) for item in inputs]
    nodes = _bare(graph_def, {item.name for item in sized})
    graph = func_graph_lib.FuncGraph("tfmem_sizes")
    try:
        import_graph(graph, nodes, sized)
    except ValueError:  # a branch that is not taken need not be able to run with what is known
        sized = [replace(item, value=None) for item in sized]
        graph = func_graph_lib.FuncGraph("tfmem_sizes")
        import_graph(graph, nodes, sized)
    fixed: dict[Value, Shape] = {}
    numbers = _numbers(graph)
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


def _bare(graph_def: GraphDef, inputs: Collection[str]) -> GraphDef:
    """The nodes but for inputs, without devices, on which the import spends half its time."""
    nodes = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
    nodes.node.extend(node for node in graph_def.node if node.name not in inputs)
    for node in nodes.node:
        node.device = ""
    _bypass_loops(nodes)
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


def _following(
    graph: FuncGraph,
    traced: FuncGraph | None,
    lengths: Lengths | None,
    functions: Mapping[str, FunctionDef],
) -> dict[Value, Shape]:
    """Shapes that follow from others which TensorFlow's inference does not look at."""
    known = {Value(op.name, i) for op in graph.get_operations() for i in range(len(op.outputs))}
    found = {**_stacked(graph, lengths), **_ensured(graph, traced), **_of_python(graph, traced)}
    found |= _looped(graph, functions)
    return {v: shape for v, shape in found.items() if v in known and _is_open(graph, v)}


def _looped(graph: FuncGraph, functions: Mapping[str, FunctionDef]) -> dict[Value, Shape]:
    """Shapes of the variables of loops that no turn changes, though the trace left them open."""
    found: dict[Value, Shape] = {}
    for op in graph.get_operations():
        if op.type not in LOOPS or not any(_is_open(graph, value_of(t)) for t in op.outputs):
            continue
        function = functions.get(op.get_attr("body").name)
        for i, shape in enumerate(_unchanged(function, op.inputs, functions) if function else ()):
            if shape is not None and (known := full(tf.TensorShape(shape))) is not None:
                found[Value(op.name, i)] = known
    return found


def _unchanged(
    function: FunctionDef, tensors: Sequence[tf.Tensor], functions: Mapping[str, FunctionDef]
) -> list[tuple[int | None, ...] | None]:
    """What a loop's function leaves of its variables' shapes, however often it is run."""
    graph_def, outputs = body_graph_def(function)
    names = [one.name for one in function.signature.input_arg]
    given = [argument(name, t, runs_once=False) for name, t in zip(names, tensors, strict=True)]
    while True:
        graph, fixed = import_sized(graph_def, given, {}, {}, functions=functions)
        shapes_given = {Value(one.name): one.shape for one in given}
        changed = False
        for i, value in enumerate(map(parse_value, outputs)):
            before = given[i].shape
            if before is None or given[i].dtype in UNSIZED:
                continue
            after = shapes_given[value] if value in shapes_given else fixed.get(value)
            if value not in shapes_given and after is None:
                after = as_shape(graph.get_tensor_by_name(str(value)).shape)
            same = _common(before, after)
            if same != before:
                given[i], changed = replace(given[i], shape=same), True
        if not changed:
            return [one.shape for one in given]


def _common(
    before: tuple[int | None, ...], after: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """The dimensions in which two shapes agree; None where the ranks differ."""
    if after is None or len(before) != len(after):
        return None
    return tuple(a if a == b else None for a, b in zip(before, after, strict=True))


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


def _stacked(graph: FuncGraph, lengths: Lengths | None) -> dict[Value, Shape]:
    """Shapes of lists that become a tensor, where the number of their elements is known."""
    return {
        Value(op.name, i): shape
        for op in graph.get_operations()
        if op.type in STACKING_OPS
        for i, shape in enumerate(stacked(op, lengths))
        if shape is not None
    }


def may_grow(graph_def: GraphDef) -> bool:
    """Whether a list may get more elements than were reserved, by a function or those it runs."""
    functions = (function.node_def for function in graph_def.library.function)
    nodes = chain(graph_def.node, *functions)
    return any(_RESIZES in node.attr and node.attr[_RESIZES].b for node in nodes)


def stacked(
    op: tf.Operation,
    lengths: Lengths | None,
    standing: Callable[[tf.Tensor], tf.Tensor] = lambda tensor: tensor,
) -> list[Shape | None]:
    """Shapes of what one of `STACKING_OPS` makes of a list, as far as they are known.

    Args:
      op: the node.
      lengths: of the lists that nodes read, where lists may grow; None where all are as long as
        was reserved.
      standing: gives the tensor that stands for another.
    """
    result: list[Shape | None] = [None] * len(op.outputs)
    count = _reserved(op, standing) if lengths is None else lengths.of(op.name)
    if count is None:
        return result
    row = op.outputs[0].shape[1:]
    if op.type == "TensorListConcatV2":
        result[1] = (count,)
        element = constant(standing(op.inputs[1])) or (-1,)
        count = count * element[0] if element[0] >= 0 else -1
    if count >= 0 and row.is_fully_defined():
        result[0] = (count, *row)
    return result


def _reserved(op: tf.Operation, standing: Callable[[tf.Tensor], tf.Tensor]) -> int | None:
    """How many elements were reserved in the list that a node reads, if that is known."""
    source = op.inputs[0].op
    found = constant(standing(source.inputs[1])) if source.type == "TensorListReserve" else None
    return found[0] if found else None


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


def _bypass_loops(graph_def: GraphDef) -> None:
    """Lets readers of a handle or a list that went through a loop read what went in.

    A loop changes neither what a handle refers to nor the shape of a list's elements, but
    TensorFlow's inference forgets both at its output.
    """
    kinds = [dtype.as_datatype_enum for dtype in UNSIZED]
    entered = {
        Value(node.name, i): text
        for node in graph_def.node
        if node.op in ("While", "StatelessWhile")
        for i, (kind, text) in enumerate(zip(node.attr["T"].list.type, node.input, strict=False))
        if kind in kinds
    }
    for node in graph_def.node if entered else ():
        for i, text in enumerate(node.input):
            while text[0] != "^" and parse_value(text) in entered:
                text = entered[parse_value(text)]
            node.input[i] = text


def _fixed_name(value: Value) -> str:
    return f"tfmem_fixed/{value.node}/{value.index}"


def _with_actual_shape(item: Input, actual: Any) -> Input:
    tensor = item.external if item.external is not None else actual
    shape = as_shape(getattr(tensor, "shape", None))
    if item.dtype in UNSIZED or shape is None:
        return item
    return Input(item.name, item.dtype, item.handle, shape)
