"""Largest shapes of what depends on data.

How many elements `tf.unique` or `tf.where` give, and which of its functions a branch runs, is known
only in the step; how many they can be at most is known before. Here the nodes after them are made
again, one by one, with tensors of these largest shapes in the place of what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import func_graph as func_graph_lib
from tensorflow.python.framework import tensor_util

from tfmem.bridge import shapes
from tfmem.bridge.graphdefs import (
    FuncGraph,
    FunctionDef,
    body_graph_def,
    functions_of,
    parse_value,
    value_of,
)
from tfmem.bridge.inference import (
    MAX_CONSTANT,
    STACKING_OPS,
    argument,
    constant,
    full,
    import_sized,
    numbers_of,
    stacked,
    whole_numbers,
)
from tfmem.bridge.inputs import UNSIZED, Input, handle_of, placeholder
from tfmem.bridge.shapes import Shape
from tfmem.graph.bodies import BRANCHES
from tfmem.graph.ir import Value

CHOOSING_OPS = (*BRANCHES, "PartitionedCall", "StatefulPartitionedCall")
"""Ops that run one function of theirs, once."""

_STITCHING = ("DynamicStitch", "ParallelDynamicStitch")

Standing = Mapping[Value, tf.Tensor]
"""Tensors of the largest shapes, or of the values that follow from these, in the place of values
that depend on data."""


def largest(graph: FuncGraph, functions: Mapping[str, FunctionDef]) -> Standing:
    """What stands for each value that depends on data and has a largest shape.

    Args:
      graph: with all shapes that do not depend on data.
      functions: that its nodes run, by name.
    """
    return _Maker(functions).made(graph.get_operations())


class _Maker:
    def __init__(self, functions: Mapping[str, FunctionDef]) -> None:
        self._functions = functions
        self._graph = func_graph_lib.FuncGraph("tfmem_bounds")
        self._standing: dict[Value, tf.Tensor] = {}
        self._given: dict[Value, tf.Tensor] = {}

    def made(self, operations: Iterable[tf.Operation]) -> Standing:
        """What stands for outputs of operations, which come in a topological order."""
        with self._graph.as_default():
            for op in operations:
                if self._depends(op):
                    for i, tensor in enumerate(self._outputs(op)):
                        if tensor is not None:
                            self._standing[Value(op.name, i)] = tensor
        return self._standing

    def _depends(self, op: tf.Operation) -> bool:
        """Whether an output's shape, or a number that shapes are made of, depends on data."""
        if any(map(_is_open, op.outputs)):
            return True
        is_late = any(value_of(tensor) in self._standing for tensor in op.inputs)
        return any(map(_is_number, op.outputs)) and (is_late or op.type in CHOOSING_OPS)

    def _outputs(self, op: tf.Operation) -> Sequence[tf.Tensor | None]:
        if op.type in CHOOSING_OPS:
            return self._returned_by_any(op)
        if numbers := numbers_of(op, self._given_as):
            return [tf.constant(one) for one in numbers]
        made = self._again(op)
        if None not in made:
            return made
        if op.type in STACKING_OPS:
            found = stacked(op, self._given_as)
        elif op.type in _STITCHING:
            found = [self._stitched(op)]
        else:
            inputs = [full(self._given_as(tensor).shape) for tensor in op.inputs]
            found = [shapes.most_elements(op.type, inputs, i) for i in range(len(made))]
        return [
            _of_shape(like, shape) if tensor is None else tensor
            for like, shape, tensor in zip(op.outputs, found, made, strict=True)
        ]

    def _stitched(self, op: tf.Operation) -> Shape | None:
        """The shape of what is put together again of the parts of one partition."""
        count = len(op.inputs) // 2
        places, rows = op.inputs[:count], full(self._given_as(op.inputs[count]).shape)
        if rows is None or any(place.op.type != "DynamicPartition" for place in places):
            return None
        wholes = {value_of(place.op.inputs[0]): place.op.inputs[0] for place in places}
        counted = _counted(next(iter(wholes.values()))) if len(wholes) == 1 else None
        return None if counted is None else (counted, *rows[len(places[0].shape) :])

    def _again(self, op: tf.Operation) -> Sequence[tf.Tensor | None]:
        """The outputs of the same op that reads what stands for its inputs."""
        node = op.node_def
        attrs = {key: value for key, value in node.attr.items() if not key.startswith("_")}
        for given in self._given_to(op):
            try:
                made = self._graph.create_op(
                    op.type, given, [t.dtype for t in op.outputs], name=op.name, attrs=attrs
                )
            except ValueError:  # bounds that differ, of sizes that are equal in every step
                continue
            return [tensor if tensor.shape.is_fully_defined() else None for tensor in made.outputs]
        return [None] * len(op.outputs)

    def _given_to(self, op: tf.Operation) -> Iterator[list[tf.Tensor]]:
        """What a node may read: what stands for its inputs, or that with equal dimensions."""
        given = [self._given_as(tensor) for tensor in op.inputs]
        yield given
        found = [full(tensor.shape) for tensor in given]
        for is_broadcast in (True, False):
            equal = shapes.least_common(found, from_last=is_broadcast)
            yield [
                _like(now, shape) if shape is not None and shape != before else now
                for now, before, shape in zip(given, found, equal, strict=True)
            ]

    def _given_as(self, tensor: tf.Tensor) -> tf.Tensor:
        value = value_of(tensor)
        if value in self._standing:
            return self._standing[value]
        if value not in self._given:
            self._given[value] = placeholder(argument(value.node, tensor))
        return self._given[value]

    def _returned_by_any(self, op: tf.Operation) -> list[tf.Tensor | None]:
        """Outputs of the largest shapes that functions return; numbers if all return the same."""
        given = [self._given_as(t) for t in op.inputs[int(op.type in BRANCHES) :]]
        names = functions_of(op.node_def)
        results = [self._returned_by(self._functions[name], given) for name in names]
        found: list[tf.Tensor | None] = []
        for like, ends in zip(op.outputs, zip(*results, strict=True), strict=True):
            shape = shapes.holding_all([one_shape for one_shape, _ in ends])
            numbers = [number for _, number in ends]
            if all(one is not None and np.array_equal(one, numbers[0]) for one in numbers):
                found.append(tf.constant(numbers[0]))
            else:
                found.append(_of_shape(like, shape) if _is_open(like) else None)
        return found

    def _returned_by(
        self, function: FunctionDef, given: Sequence[tf.Tensor]
    ) -> list[tuple[Shape | None, np.ndarray | None]]:
        graph_def, outputs = body_graph_def(function)
        names = [one.name for one in function.signature.input_arg]
        inputs = [argument(name, tensor) for name, tensor in zip(names, given, strict=True)]
        graph, fixed = import_sized(graph_def, inputs, {}, {})
        tensors = dict(zip(map(Value, names), given, strict=True))
        tensors |= largest(graph, self._functions)
        found = []
        for value in map(parse_value, outputs):
            tensor = tensors.get(value)
            if tensor is None:
                tensor = graph.get_tensor_by_name(str(value))
            found.append((fixed.get(value, full(tensor.shape)), whole_numbers(tensor)))
        return found


def _counted(tensor: tf.Tensor) -> int | None:
    """How many numbers a tensor has, if they are 0, 1, 2 and so on."""
    while tensor.op.type in ("Reshape", "Identity"):
        tensor = tensor.op.inputs[0]
    count = tensor.shape.num_elements()
    if tensor.op.type == "Range":
        begin, _, step = map(constant, tensor.op.inputs)
        is_counted = (begin, step) == ((0,), (1,))
    else:
        found = tensor_util.constant_value(tensor)
        is_counted = found is not None and np.array_equal(found.ravel(), np.arange(count))
    return count if is_counted else None


def _is_open(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in UNSIZED and not tensor.shape.is_fully_defined()


def _is_number(tensor: tf.Tensor) -> bool:
    count = tensor.shape.num_elements()
    is_whole = tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(is_whole and count is not None and count <= MAX_CONSTANT)


def _of_shape(like: tf.Tensor, shape: Shape | None) -> tf.Tensor | None:
    """What stands for a tensor of a largest shape, if there is one."""
    return None if shape is None or like.dtype in UNSIZED else _like(like, shape)


def _like(tensor: tf.Tensor, shape: Shape) -> tf.Tensor:
    return placeholder(Input(tensor.op.name, tensor.dtype, handle_of(tensor), shape))
