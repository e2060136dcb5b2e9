"""What shapes tell about a kernel's scratch: bytes that it holds only while it runs.

Read in TensorFlow's kernels and measured on the CPU (TensorFlow 2.21, BFC statistics). Of some 80
kernels tried alone these are the ones that hold more than a few per cent of their operands; matrix
products, convolutions (their scratch is not the allocator's), batch norms, softmaxes, gathers,
transpositions, scans and elementwise kernels hold next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tfmem.bridge.shapes import Call, Shape


def workspace(call: Call, on_gpu: bool = False) -> tuple[int, ...]:
    """Bytes of the buffers that a node's kernel holds only while it runs; none known of, none.

    A 0 stands where the kernel makes its outputs; without one it makes them first. What a GPU's
    convolutions hold is chosen by cuDNN when it tries its algorithms: it is measured.
    """
    rule = _RULES.get(call.op) or (None if on_gpu else _ONEDNN_RULES.get(call.op))
    if rule is None or None in (*call.inputs, *call.outputs[:1]) or not call.outputs:
        return ()
    found = rule(call, [s for s in call.inputs if s is not None], call.outputs[0] or ())
    return (found,) * bool(found) if isinstance(found, int) else found


def _einsum(call: Call, inputs: list[Shape], out: Shape) -> tuple[int, ...]:
    """Copies of operands whose axes do not stand as a batched matrix product wants them.

    The product takes (batch, free, contracted) or (batch, contracted, free); its result, (batch,
    free of the first, free of the second), is copied once more if the output is another.
    """
    equation = call.attrs.get("equation")
    if not isinstance(equation, str) or "..." in equation:
        return ()
    left, result = equation.replace(" ", "").split("->")
    terms = left.split(",")
    copied: list[int] = []
    product = ""
    for term, shape in zip(terms, inputs, strict=False):
        others = "".join(other for other in terms if other is not term)
        batch = "".join(a for a in term if a in others and a in result)
        free = "".join(a for a in term if a not in others and a in result)
        contracted = "".join(a for a in term if a in others and a not in result)
        kept = batch + free + contracted
        if len(kept) == len(term) and term not in (kept, batch + contracted + free):
            copied.append(prod(shape) * call.itemsize)
        product = (product or batch) + free
    if len(terms) == 2 and product != result:
        copied.append(prod(out) * call.itemsize)
    return (*copied, 0) if copied else ()


def _reduction(call: Call, inputs: list[Shape], out: Shape) -> int:
    """A transposed copy of the input, unless axes that lie together leave one of the short forms.

    `ReductionHelper` joins neighbouring axes that are all reduced or all kept and leaves out those
    of size 1; up to three such groups with the reduced ones on both sides or in the middle have
    kernels of their own.
    """
    axes = call.constants.get(1)
    if axes is None:
        return 0
    rank = len(inputs[0])
    reduced = {axis % rank for axis in axes} if rank else set()
    groups: list[bool] = []
    for axis, size in enumerate(inputs[0]):
        if size != 1 and groups[-1:] != [axis in reduced]:
            groups.append(axis in reduced)
    return prod(inputs[0]) * call.itemsize if len(groups) > 3 else 0


def _max_pool(call: Call, inputs: list[Shape], out: Shape) -> int:
    """One byte for each output: where the maximum was (oneDNN)."""
    return prod(out)


def _max_pool_gradient(call: Call, inputs: list[Shape], out: Shape) -> int:
    """The output once more, and the index of each maximum as an int64."""
    return prod(inputs[1]) * (call.itemsize + 8)


_Rule = Callable[[Call, list[Shape], Shape], int | tuple[int, ...]]

_RULES: dict[str, _Rule] = {
    "Einsum": _einsum,
    **{op: _reduction for op in ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")},
}

_ONEDNN_RULES: dict[str, _Rule] = {"MaxPool": _max_pool, "MaxPoolGrad": _max_pool_gradient}
"""Of kernels that a CPU alone has."""

WORKSPACE_OPS: Sequence[str] = (*_RULES, *_ONEDNN_RULES)
"""Ops that `workspace` has a rule for; reductions need their second input's constant."""
