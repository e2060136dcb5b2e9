"""Bounds of what depends on data.

How many elements `tf.unique` or `tf.where` give, and which of its functions a branch runs, is known
only in the step; how many they can be at most, and at least, is known before. Here the nodes after
them are made again, one by one, with tensors of these extreme shapes, or with these extreme
numbers, in the place of what they read. What follows from one of them alone, rising or falling with
it in a straight line, keeps to it: rows and what fills them up to a fixed size have that size
together. All else is taken at either end, whatever the others are, so that bounds hold of all that
lies between (interval arithmetic), and may not be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import func_graph as func_graph_lib

from tfmem.bridge import shapes
from tfmem.bridge.ends import (
    NO_LIMITS,
    Ends,
    Limits,
    between_numbers,
    ends_of,
    is_number,
    is_open,
    of_shape,
    shaped_like,
)
from tfmem.bridge.graphdefs import (
    FuncGraph,
    FunctionDef,
    body_graph_def,
    functions_of,
    parse_value,
    value_of,
)
from tfmem.bridge.inference import import_sized, numbers_of
from tfmem.bridge.inputs import placeholder
from tfmem.bridge.looped import CHOOSING_OPS
from tfmem.bridge.seen import NOTHING_SEEN, Seen, stacked
from tfmem.bridge.shapes import Shape
from tfmem.bridge.slices import most_cut, parts_at_most
from tfmem.bridge.standing import Bounds
from tfmem.bridge.tensors import argument, constant, counted, full, whole_numbers
from tfmem.graph.bodies import BRANCHES, STACKING_OPS
from tfmem.graph.ir import Value
from tfmem.graph.scalars import between

_STITCHING = ("DynamicStitch", "ParallelDynamicStitch")
_CUTTING = ("Slice", "StridedSlice")

_DRAWING = (
    "RandomUniformInt",
    "StatefulUniformInt",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
)
"""Ops that draw whole numbers from their last but one input to below their last."""

_SUMS = (
    "Add",
    "AddV2",
    "Cast",
    "ConcatV2",
    "Fill",
    "Identity",
    "Neg",
    "Pack",
    "Pad",
    "PadV2",
    "Sub",
)
"""Ops whose outputs have sizes, or numbers, that are sums of the numbers which they read."""

_PARTS = ("ExpandDims", "GatherV2", "Reshape", "Squeeze", "StridedSlice")
"""Ops whose outputs are some of the numbers that are their first input."""

_APART = 3
"""Most inputs of one node that take either end each; others go together."""


def bounded(
    graph: FuncGraph,
    functions: Mapping[str, FunctionDef],
    seen: Seen = NOTHING_SEEN,
    limits: Limits = NO_LIMITS,
) -> Bounds:
    """What stands for each value that depends on data and has a largest shape.

    Args:
      graph: with all shapes that do not depend on data.
      functions: that its nodes run, by name.
      seen: of this function.
      limits: of what the function is given, or takes out of lists.
    """
    return _Maker(functions, seen, limits).made(graph.get_operations())


class _Maker:
    def __init__(self, functions: Mapping[str, FunctionDef], seen: Seen, limits: Limits) -> None:
        self._functions, self._seen, self._limits = functions, seen, limits
        self._graph = func_graph_lib.FuncGraph("tfmem_bounds")
        self._most: dict[Value, tf.Tensor] = {}
        self._least: dict[Value, tf.Tensor] = {}
        self._sources: dict[Value, Value] = {}
        self._at_ends: dict[Value, tuple[tf.Tensor, tf.Tensor]] = {}  # of the source
        self._given: dict[Value, tf.Tensor] = {}

    def made(self, operations: Iterable[tf.Operation]) -> Bounds:
        """What stands for outputs of operations, which come in a topological order."""
        with self._graph.as_default():
            for op in operations:
                if self._takes(op):
                    continue
                if self._depends(op):
                    for i, ends in enumerate(self._outputs(op)):
                        self._stand(Value(op.name, i), ends)
        return Bounds(self._most, self._least)

    def _stand(self, value: Value, ends: Ends) -> None:
        if ends.most is not None:
            self._most[value] = ends.most
        if ends.most is not None and ends.least is not None:
            self._least[value] = ends.least
            self._sources[value] = ends.source or value
            self._at_ends[value] = ends.at or (ends.most, ends.least)

    def _takes(self, op: tf.Operation) -> bool:
        """Whether the ends are known of what a node is given, or takes out of a list."""
        numbers, sizes = self._limits.numbers, self._limits.sizes
        known = [Value(op.name, i) for i in range(len(op.outputs))]
        known = [value for value in known if value in numbers or value in sizes]
        for value in known:
            if value in numbers:
                self._stand(value, Ends(*map(tf.constant, numbers[value])))
            else:
                like = op.outputs[value.index]
                self._stand(value, Ends(*(of_shape(like, one) for one in sizes[value])))
        return bool(known)

    def _depends(self, op: tf.Operation) -> bool:
        """Whether an output's shape, or a number that shapes are made of, depends on data."""
        if any(map(is_open, op.outputs)):
            return True
        is_late = any(value_of(tensor) in self._most for tensor in op.inputs)
        is_first = op.type in CHOOSING_OPS or op.type in _DRAWING or self._cap(op) is not None
        return any(map(is_number, op.outputs)) and (is_late or is_first)

    def _outputs(self, op: tf.Operation) -> Sequence[Ends]:
        if op.type in CHOOSING_OPS:
            return self._returned_by_any(op)
        if op.type in _DRAWING and is_number(op.outputs[0]):
            return [self._drawn(op)]
        if (cap := self._cap(op)) is not None:
            return [between_numbers(op.outputs[0], cap, 0)]
        if numbers := numbers_of(op, self._given_as):
            return [Ends(tf.constant(one)) for one in numbers]
        source = self._followed(op)
        given = self._at_both(op.inputs) if source else self._extremes(op.inputs)
        found = [self._again(op, one) for one in given]
        if op.type in _CUTTING and self._may_turn(op.inputs[1:3]):
            found.insert(0, self._by_rule(op, [None]))
        elif None in found[0]:
            found.insert(0, self._by_rule(op, found[0]))
        source = None if any(None in outputs for outputs in found) or len(found) > 2 else source
        more = self._between(op) if len(found) > 1 else ()
        return [
            ends_of(like, [outputs[i] for outputs in found], more, source)
            for i, like in enumerate(op.outputs)
        ]

    def _cap(self, op: tf.Operation) -> int | None:
        """What a number is at most that is the lesser of this and one of which nothing is known.

        Of such a number, a count of what data decide, sizes are made: it is not less than nothing.
        """
        if op.type != "Minimum" or not is_number(op.outputs[0]):
            return None
        known = [constant(self._given_as(tensor)) for tensor in op.inputs]
        told = [one for one in known if one is not None]
        return told[0][0] if len(told) == 1 and len(told[0]) == 1 and told[0][0] > 0 else None

    def _drawn(self, op: tf.Operation) -> Ends:
        """The ends of whole numbers that are drawn at random."""
        begin, end = op.inputs[-2:]
        least = constant(self._least.get(value_of(begin), self._given_as(begin)))
        most = constant(self._given_as(end))
        if not least or not most:
            return Ends()
        return between_numbers(op.outputs[0], most[0] - 1, least[0])

    def _may_turn(self, places: Iterable[tf.Tensor]) -> bool:
        """Whether some numbers count from the start or from the end, as it happens.

        Between such ends more may be cut than at either of them.
        """
        values = [value for t in places if (value := value_of(t)) in self._least]
        ends = [
            zip(constant(self._least[v]) or (), constant(self._most[v]) or (), strict=True)
            for v in values
        ]
        return any(least < 0 <= most for pairs in ends for least, most in pairs)

    def _followed(self, op: tf.Operation) -> Value | None:
        """The value that an op follows in a straight line, if there is one."""
        late = [i for i, t in enumerate(op.inputs) if value_of(t) in self._sources]
        sources = {self._sources[value_of(op.inputs[i])] for i in late}
        numbers = [i for i in late if is_number(op.inputs[i])]
        is_straight = (
            not numbers
            or op.type in _SUMS
            or (op.type in _PARTS and numbers == [0])
            or (op.type == "Mul" and len(numbers) == 1)
        )
        return sources.pop() if is_straight and len(sources) == 1 else None

    def _by_rule(
        self, op: tf.Operation, made: Sequence[tf.Tensor | None]
    ) -> Sequence[tf.Tensor | None]:
        """The outputs of an op, where the shapes of some follow only from what is known of it."""
        if op.type in STACKING_OPS:
            found = stacked(op, self._seen, self._given_as)
        elif op.type in _STITCHING:
            found = [self._stitched(op)]
        elif op.type in _CUTTING:
            found = [most_cut(op, full(self._given_as(op.inputs[0]).shape))]
        elif op.type == "SplitV":
            whole, sizes, axis = map(self._given_as, op.inputs)
            found = parts_at_most(full(whole.shape), constant(sizes), len(made), constant(axis))
        else:
            inputs = [full(self._given_as(tensor).shape) for tensor in op.inputs]
            found = [
                shapes.most_elements(op.type, inputs, i, like.shape.rank)
                for i, like in enumerate(op.outputs)
            ]
        return [
            of_shape(like, shape) if tensor is None else tensor
            for like, shape, tensor in zip(op.outputs, found, made, strict=True)
        ]

    def _at_both(self, inputs: Sequence[tf.Tensor]) -> Iterator[list[tf.Tensor]]:
        """What a node reads at one end of the only source of its inputs, and at the other."""
        for end in (0, 1):
            yield [
                self._at_ends[value][end]
                if (value := value_of(tensor)) in self._at_ends
                else self._given_as(tensor)
                for tensor in inputs
            ]

    def _extremes(self, inputs: Sequence[tf.Tensor]) -> Iterator[list[tf.Tensor]]:
        """What a node may read: the most of everything, then each input's most or least."""
        late = sorted({value_of(tensor) for tensor in inputs} & self._least.keys())
        place = {value: min(i, _APART - 1) for i, value in enumerate(late)}
        for are_least in product((False, True), repeat=min(len(late), _APART)):
            yield [
                self._least[value]
                if (value := value_of(tensor)) in place and are_least[place[value]]
                else self._given_as(tensor)
                for tensor in inputs
            ]

    def _between(self, op: tf.Operation) -> Sequence[int]:
        """Numbers that an op may give between its ends, beyond those that it gives there."""
        greatest = [max(constant(self._given_as(tensor)) or (0,)) for tensor in op.inputs]
        return between(op.type, greatest)

    def _stitched(self, op: tf.Operation) -> Shape | None:
        """The shape of what is put together again of the parts of one partition."""
        count = len(op.inputs) // 2
        places, rows = op.inputs[:count], full(self._given_as(op.inputs[count]).shape)
        if rows is None or any(place.op.type != "DynamicPartition" for place in places):
            return None
        wholes = {value_of(place.op.inputs[0]): place.op.inputs[0] for place in places}
        total = counted(next(iter(wholes.values()))) if len(wholes) == 1 else None
        return None if total is None else (total, *rows[len(places[0].shape) :])

    def _again(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor | None]:
        """The outputs of the same op that reads other inputs; None where they cannot be told."""
        if op.type == "LookupTableFindV2" and op.outputs[0].shape.rank is None:
            sizes = [full(tensor.shape) for tensor in inputs[1:]]
            return [of_shape(op.outputs[0], shapes.looked_up(*sizes))]
        if op.type == "ShapeN":  # which TensorFlow does not evaluate
            known = [full(tensor.shape) for tensor in inputs]
            return [
                None if shape is None else tf.constant(shape, like.dtype, [len(shape)])
                for like, shape in zip(op.outputs, known, strict=True)
            ]
        node = op.node_def
        attrs = {key: value for key, value in node.attr.items() if not key.startswith("_")}
        for given in _agreeing(inputs):
            try:
                made = self._graph.create_op(
                    op.type, given, [t.dtype for t in op.outputs], name=op.name, attrs=attrs
                )
            except ValueError:  # bounds that differ, of sizes that are equal in every step
                continue
            return [tensor if tensor.shape.is_fully_defined() else None for tensor in made.outputs]
        return [None] * len(op.outputs)

    def _given_as(self, tensor: tf.Tensor) -> tf.Tensor:
        value = value_of(tensor)
        if value in self._most:
            return self._most[value]
        if value not in self._given:
            self._given[value] = placeholder(argument(value.node, tensor))
        return self._given[value]

    def _returned_by_any(self, op: tf.Operation) -> list[Ends]:
        """The ends of what functions return, where it is open, or where it is numbers."""
        found: list[list[tf.Tensor | None]] = [[] for _ in op.outputs]
        for number, given in enumerate(self._extremes(op.inputs[int(op.type in BRANCHES) :])):
            for branch in range(len(functions_of(op.node_def))):
                try:
                    returned = self._returned_by(op, branch, given)
                except ValueError:  # some function cannot run for the smallest shapes
                    if not number:
                        raise
                    continue
                for ends, more in zip(found, returned, strict=True):
                    ends += more
        return [
            Ends() if None in ends else ends_of(like, ends)
            for like, ends in zip(op.outputs, found, strict=True)
        ]

    def _returned_by(
        self, op: tf.Operation, branch: int, given: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor | None]]:
        """What stands for each output of a function that an op runs, at either end."""
        function = self._functions[functions_of(op.node_def)[branch]]
        seen = self._seen.within(op.name, op.type, branch)
        graph_def, outputs = body_graph_def(function)
        names = [one.name for one in function.signature.input_arg]
        inputs = [argument(name, tensor) for name, tensor in zip(names, given, strict=True)]
        graph, fixed = import_sized(graph_def, inputs, self._functions, {}, seen=seen)
        bounds = bounded(graph, self._functions, seen)
        passed = dict(zip(map(Value, names), given, strict=True))
        result = []
        for like, value in zip(op.outputs, map(parse_value, outputs), strict=True):
            ends = [one[value] for one in (bounds.most, bounds.least, passed) if value in one]
            found = ends or [graph.get_tensor_by_name(str(value))]
            if is_number(like):
                numbers = map(whole_numbers, found)
                result.append([None if one is None else tf.constant(one) for one in numbers])
            elif is_open(like):
                sizes = (fixed.get(value, full(tensor.shape)) for tensor in found)
                result.append([of_shape(like, shape) for shape in sizes])
            else:
                result.append([None])
        return result


def _agreeing(given: Sequence[tf.Tensor]) -> Iterator[Sequence[tf.Tensor]]:
    """What a node reads, then the same with the dimensions equal that must be."""
    yield given
    found = [full(tensor.shape) for tensor in given]
    for is_broadcast in (True, False):
        equal = shapes.least_common(found, from_last=is_broadcast)
        yield [
            shaped_like(now, shape) if shape is not None and shape != before else now
            for now, before, shape in zip(given, found, equal, strict=True)
        ]
