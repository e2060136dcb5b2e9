"""What a step leaves behind beside its outputs, and whether that can be taken back.

A step that is to be made again must find everything as it was: the variables that it updates, the
elements that it took from iterators, and the counters that seeded random kernels keep. What else
an op may do to the world (print, write, run Python, fill a table or a queue) cannot be undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.framework import op_def_registry

from tfmem.bridge.capture import Captured
from tfmem.bridge.graphdefs import BODIES, FunctionDef, NodeDef, functions_of
from tfmem.bridge.inputs import is_variable
from tfmem.graph import device_names
from tfmem.graph.ops import facts_of

_PURE = re.compile(
    r"""
    Assert | CheckNumerics(V2)? | DeepCopy | Empty | GuaranteeConst | Timestamp | ReadFile
    | NonDeterministicInts | StatelessRandomGetAlg | While | If | Case | (Stateful)?PartitionedCall
    | TensorArray\w*V3 | TensorArrayGradWithShape | MutexV2 | MutexLock | ConsumeMutexLock
    | LookupTable(Find|Size|Export)V2
    | (Anonymous|Dummy|Delete)(Iterator|MemoryCache|SeedGenerator|RandomSeedGenerator)(V[23])?
    | DummyIterationCounter | MakeIterator | IteratorGetNext(Sync|AsOptional)?
    | DatasetToSingleElement | (?!Save|Cache|Snapshot|ListSnapshot|InitializeTable)\w*Dataset(V\d)?
    """,
    re.VERBOSE,
)
"""Stateful ops that leave nothing behind: what they make lives for the step, or is only read."""

_ON_VARIABLES = re.compile(
    r"""
    Resource(Apply|SparseApply|Scatter|Gather|StridedSliceAssign|CountUpTo)\w*
    | Assign\w*VariableOp | ReadVariableOp | DisableCopyOnRead | Var(HandleOp|IsInitializedOp)
    | VariableShape | Stateful(Uniform|StandardNormal|TruncatedNormal|Random)\w* | Rng\w+
    """,
    re.VERBOSE,
)
"""Ops whose only state is that of the variables among their inputs."""

_COUNTING = re.compile(
    r"""
    Random(Uniform|UniformInt|StandardNormal|Gamma|Poisson|PoissonV2|Shuffle|Crop)
    | (Parameterized)?TruncatedNormal | Multinomial | SampleDistortedBoundingBox(V2)?
    | (Uniform|LogUniform|ThreadUnsafeUnigram|FixedUnigram|All)CandidateSampler
    | CudnnRNN(Backprop)?(V[23])?
    """,
    re.VERBOSE,
)
"""Ops whose kernels count the random numbers that they have given out."""

_LASTING = frozenset(("PyFuncStateless",))
"""Ops that are not marked as stateful and may have an effect."""

NEXT = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_OPENS = ("MakeIterator", "ReduceDataset", "DatasetToSingleElement")


@dataclass(frozen=True)
class Element:
    """What one op takes from an iterator: the types and shapes of an element's components."""

    types: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]


@dataclass(frozen=True)
class Effects:
    """What a step of a function leaves behind beside its outputs.

    Attributes:
      written: inputs, by name, that are variables which it may update.
      elements: what it takes from each iterator among its inputs, by name, in order.
      counts: whether a random op with a seed counts what it has given out, so that a function that
        is made anew begins with other numbers.
      is_counted: whether every step moves those counters equally far.
      lasting: nodes whose effects cannot be undone, as "name (op)".
    """

    written: tuple[str, ...] = ()
    elements: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)
    counts: bool = False
    is_counted: bool = True
    lasting: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Use:
    """A node as it stands in the function or in one of its bodies; inputs are nodes' names."""

    name: str
    definition: NodeDef
    inputs: tuple[str, ...]

    @property
    def op(self) -> str:
        return str(self.definition.op)


def effects_of(captured: Captured) -> Effects:
    """What a step of a captured function leaves behind."""
    main = [
        _Use(node.name, captured.node_defs[node.name], tuple(value.node for value in node.inputs))
        for node in captured.graph.nodes
        if not node.is_input
    ]
    library = captured.library
    within = list(_within(main, library))
    random = [use for use in main if _is_seeded(use)]
    hidden = [use for use in within if _is_seeded(use)]
    bounded = {value.node for value in captured.bounds}
    elements, lasting = _elements(captured, main, within)
    lasting += [use for use in (*main, *within) if not _can_be_undone(use)]
    variables = {item.name for item in captured.inputs if is_variable(item)}
    return Effects(
        written=tuple(sorted(_written(variables, main, library, {}))),
        elements=elements,
        counts=bool(random or hidden),
        is_counted=not hidden and not any(use.name in bounded for use in random),
        lasting=tuple(dict.fromkeys(f"{use.name} ({use.op})" for use in lasting)),
    )


def _within(uses: Iterable[_Use], library: Mapping[str, FunctionDef]) -> Iterator[_Use]:
    """The nodes of every function that some nodes refer to, loops' bodies and others."""
    seen: set[str] = set()
    waiting = [name for use in uses for name in functions_of(use.definition)]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for use in _uses_of(library[name]):
            yield use
            waiting += functions_of(use.definition)


def _uses_of(function: FunctionDef) -> Iterator[_Use]:
    for node in function.node_def:
        texts = (text for text in node.input if text[0] != "^")
        yield _Use(node.name, node, tuple(text.partition(":")[0] for text in texts))


def _is_seeded(use: _Use) -> bool:
    attrs = use.definition.attr
    seeds = [attrs[name].i for name in ("seed", "seed2") if name in attrs]
    return bool(_COUNTING.fullmatch(use.op)) and any(seeds)


def _can_be_undone(use: _Use) -> bool:
    """Whether what an op does is nothing, or can be taken back."""
    op = use.op
    if op in _LASTING:
        return False
    known = op_def_registry.get(op)
    if known is None or not known.is_stateful or facts_of(op).uses_variable:
        return True
    return any(kind.fullmatch(op) for kind in (_PURE, _ON_VARIABLES, _COUNTING))


# Variables.


def _written(
    variables: set[str],
    uses: Iterable[_Use],
    library: Mapping[str, FunctionDef],
    known: dict[str, set[str]],
) -> set[str]:
    """Those of some variables, by the names of their nodes, that nodes do more to than read.

    Args:
      variables: the names.
      uses: the nodes.
      library: the functions that they run, by name.
      known: arguments that functions may write; what is found out is added.
    """
    found: set[str] = set()
    for use in uses:
        for position, source in enumerate(use.inputs):
            if source not in variables or source in found:
                continue
            if _may_write(use, position, library, known):
                found.add(source)
    return found


def _may_write(
    use: _Use, position: int, library: Mapping[str, FunctionDef], known: dict[str, set[str]]
) -> bool:
    """Whether a node may update the variable that is one of its inputs."""
    if use.op not in BODIES:
        return facts_of(use.op).reads != position and use.op != "VarIsInitializedOp"
    if use.op.endswith(("If", "Case")):
        position -= 1  # the first input chooses the branch
    for name in functions_of(use.definition):
        if name not in library:
            return True
        arguments = [argument.name for argument in library[name].signature.input_arg]
        if name not in known:
            known[name] = _written(set(arguments), _uses_of(library[name]), library, known)
        if arguments[position] in known[name]:
            return True
    return False


# Iterators.


def _elements(
    captured: Captured, main: Iterable[_Use], within: Iterable[_Use]
) -> tuple[dict[str, tuple[Element, ...]], list[_Use]]:
    """What is taken from iterators among the inputs, and nodes of which that cannot be told.

    A data set among the inputs may count what it has given out, in a shuffle with a seed.
    """
    uses = {use.name: use for use in main}
    others = [item for item in captured.inputs if not is_variable(item)]
    handles = {item.name for item in others if item.dtype == tf.resource}
    has_datasets = any(item.dtype == tf.variant for item in others)
    unknown = [
        use
        for use in (*uses.values(), *within)
        if (handles and use.op in NEXT and use.name not in uses)
        or (has_datasets and use.op in _OPENS)
    ]
    found: dict[str, list[Element]] = {}
    for node in captured.graph.nodes:
        use = uses.get(node.name)
        if use is None or use.op not in NEXT:
            continue
        source = use.inputs[0]
        while source in uses and uses[source].op == "Identity":
            source = uses[source].inputs[0]
        if source in handles and device_names.kind(node.device) == "CPU":
            found.setdefault(source, []).append(_element(use.definition))
        elif source in handles:
            unknown.append(use)
    return {name: tuple(elements) for name, elements in found.items()}, unknown


def _element(node: NodeDef) -> Element:
    shapes = node.attr["output_shapes"].list.shape
    return Element(
        tuple(tf.as_dtype(kind) for kind in node.attr["output_types"].list.type),
        tuple(tf.TensorShape(shape) for shape in shapes),
    )
