"""What `capture` reads and `rebuild` writes computes the same as the original function."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import tensorflow as tf

from tests.functions import CASES, Case
from tfmem.arguments import flat_arguments
from tfmem.capture import Captured, capture
from tfmem.ir import Graph, Node, Value
from tfmem.rebuild import rebuild


def unchanged(captured: Captured) -> Graph:
    return captured.graph


def in_strict_order(captured: Captured) -> Graph:
    """Each node waits for the one before it."""
    nodes = [node for node in captured.graph.nodes if node.is_input]
    last = ""
    for node in captured.graph.nodes:
        if not node.is_input:
            after = (*node.after, last) if last else node.after
            nodes.append(dataclasses.replace(node, after=after))
            last = node.name
    return Graph(tuple(nodes), captured.graph.outputs)


def with_copies(captured: Captured) -> Graph:
    """Half of all values with a size are read through a copy of a copy."""
    choose = random.Random(0)
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in captured.graph.nodes:
        inputs = tuple(copies.get(value, value) for value in node.inputs)
        nodes.append(dataclasses.replace(node, inputs=inputs))
        for value, nbytes in zip(node.values, node.nbytes, strict=True):
            if nbytes and choose.random() < 0.5 and node.op != "_Variable":
                out = Node(f"{node.name}/out{value.index}", "Identity", (value,), (), (nbytes,),
                           node.device, node.name)  # fmt: skip
                back = Node(f"{node.name}/back{value.index}", "Identity", out.values, (),
                            (nbytes,), node.device, node.name)  # fmt: skip
                nodes += [out, back]
                copies[value] = Value(back.name)
    return Graph(tuple(nodes), captured.graph.outputs)


def run(function, case: Case, steps: int = 3):
    """Outputs of some steps and the variables after them, from the state the case starts in."""
    before = [variable.numpy() for variable in case.variables]
    fixed = case.renew() if case.renew else case.args
    outputs = [function(*fixed, **case.kwargs) for _ in range(steps)]
    after = [variable.numpy() for variable in case.variables]
    for variable, value in zip(case.variables, before, strict=True):
        variable.assign(value)
    return outputs, after


def assert_same(one, other) -> None:
    tf.nest.assert_same_structure(one, other, expand_composites=True)
    for a, b in zip(tf.nest.flatten(one, True), tf.nest.flatten(other, True), strict=True):
        if a is None or isinstance(a, (str, bytes)):
            assert a == b
        elif np.asarray(a).dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


def captured_of(case: Case) -> tuple[object, Captured]:
    args = case.renew() if case.renew else case.args
    concrete = case.function.get_concrete_function(*args, **case.kwargs)
    flat = flat_arguments(concrete, args, case.kwargs)
    return concrete, capture(concrete, device="CPU:0", args=flat)


@pytest.mark.parametrize("rewrite", [unchanged, in_strict_order, with_copies])
@pytest.mark.parametrize("name", CASES)
def test_same_results(name, rewrite):
    case = CASES[name]()
    expected = run(case.function, case)
    _, captured = captured_of(case)
    rewritten = rebuild(captured, rewrite(captured))
    assert_same(expected, run(rewritten, case))
