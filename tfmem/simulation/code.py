"""A function as a plan has it, with what a run of it looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfmem.graph.bodies import Body
from tfmem.graph.clones import with_clones
from tfmem.graph.ir import Graph, Node
from tfmem.plan import Plan
from tfmem.simulation.counting import Numbers, numbers_of
from tfmem.simulation.program import Program, program


@dataclass(frozen=True, repr=False)
class Code:
    """A function as a plan has it.

    Attributes:
      body: the function.
      program: what it does, step by step.
      nodes: the nodes by number, clones among them.
      inputs: for each node, the numbers of the values that are its inputs.
      outputs: numbers of the values that it returns; None for one that nobody reads.
      numbers: what it does with whole numbers.
    """

    body: Body
    program: Program
    nodes: Sequence[Node]
    inputs: Sequence[Sequence[int]]
    outputs: Sequence[int | None]
    numbers: Numbers


def code_of(body: Body, plan: Plan, is_read: Sequence[bool] | None = None) -> Code:
    """A function as a plan has it; what is known of its lists is found anew.

    Args:
      body: the function.
      plan: what is done to it.
      is_read: whether somebody reads each of its outputs; None if all are read.
    """
    returns = [one if is_read is None or is_read[i] else None for i, one in enumerate(body.results)]
    nodes = (
        replace(node, stashes=(), holds=(), same=(), is_owned=False) for node in body.graph.nodes
    )
    graph = Graph(tuple(nodes), tuple(filter(None, returns)))
    steps = program(graph, plan)
    form, cloned = steps.graph, with_clones(graph, plan.recomputations)
    inputs = [[form.first[form.number[v.node]] + v.index for v in n.inputs] for n in cloned.nodes]
    outputs = [form.number_of(one) if one else None for one in returns]
    numbers = numbers_of(body)
    return Code(body, steps, cloned.nodes, inputs, outputs, numbers)
