"""What stands for an iterator while a function is traced that takes elements from it.

The function gets elements that are arguments; where it does more with the iterator, it cannot be
told how many it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python.autograph.operators import py_builtins

_PARTS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
"""What describes components of elements that are tensors, or made of tensors."""

_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, np.ndarray, np.generic)
"""Arguments that are tensors, made of them, or become them."""

_TRACED = ("__array__", "__tf_flatten__", "__tf_tracing_type__")
"""Attributes of objects that are traced as something else than what they are."""


class Handed:
    """Stands for an iterator: hands out elements, the last one whenever there are no more.

    Attributes:
      element_spec: of the iterator.
      count: how many elements were asked for.
      misuse: what else was done with it, as far as is known; "" if nothing.
    """

    def __init__(self, elements: Sequence[Any], element_spec: Any) -> None:
        self.element_spec = element_spec
        self.count, self.misuse = 0, ""
        self._elements, self._graph = elements, tf.compat.v1.get_default_graph()

    def get_next(self) -> Any:
        """The next element."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise self.misused("elements are taken within a loop, a branch or a function")
        self.count += 1
        return self._elements[min(self.count, len(self._elements)) - 1]

    def __next__(self) -> Any:
        return self.get_next()

    def __iter__(self) -> Any:
        raise self.misused("a loop runs over it")

    def __getattr__(self, name: str) -> Any:
        raise self.misused(f"it is asked for {name}")

    def misused(self, how: str) -> AttributeError:
        """An error to be raised, which is remembered whatever becomes of it."""
        self.misuse = how
        return AttributeError(f"in the place of an iterator: {how}")


def _next(handed: Handed, default: Any = py_builtins.UNSPECIFIED) -> Any:
    """The builtin, as AutoGraph calls it."""
    if default is not py_builtins.UNSPECIFIED:
        raise handed.misused("next has a default")
    return next(handed)


py_builtins.next_registry.register(Handed, _next)


@dataclass(frozen=True)
class Parts:
    """The arguments of a call, taken apart.

    Attributes:
      structure: the arguments, with None for what is in the other fields.
      places: of iterators, then of tensors, in the flat structure.
      iterators: whose elements have open sizes.
      tensors: and arrays, and what is made of tensors.
      specs: of the tensors.
    """

    structure: Any
    places: tuple[int, ...]
    iterators: tuple[Any, ...]
    tensors: tuple[Any, ...]
    specs: tuple[Any, ...]


def _is_iterator(item: Any) -> bool:
    """Whether something is an iterator whose elements are tensors."""
    if not isinstance(item, tf.data.Iterator):
        return False
    return all(isinstance(spec, _PARTS) for spec in tf.nest.flatten(item.element_spec))


def _is_sized(iterator: Any) -> bool:
    specs = tf.nest.flatten(iterator.element_spec)
    return all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in specs)


def parts_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Parts | None:
    """The arguments of a call; None if there is no iterator whose elements have open sizes.

    Nor are they taken apart if one is neither a tensor nor the same in each call, or if an iterator
    is there twice: which takes first is not known.
    """
    flat = tf.nest.flatten((args, kwargs))
    iterators = [i for i, item in enumerate(flat) if _is_iterator(item)]
    if all(_is_sized(flat[i]) for i in iterators):
        return None
    tensors = [i for i, item in enumerate(flat) if isinstance(item, _TENSORS)]
    rest = [None if i in {*iterators, *tensors} else item for i, item in enumerate(flat)]
    is_any_twice = len({id(flat[i]) for i in iterators}) < len(iterators)
    if is_any_twice or not all(map(_is_constant, rest)):
        return None
    return Parts(
        tf.nest.pack_sequence_as((args, kwargs), rest),
        (*iterators, *tensors),
        tuple(flat[i] for i in iterators),
        tuple(flat[i] for i in tensors),
        tuple(map(_spec_of, (flat[i] for i in tensors))),
    )


def _is_constant(item: Any) -> bool:
    """Whether a function that is traced with an argument can have it as it is."""
    if isinstance(item, tf.Variable):
        return True
    is_whole = tf.nest.flatten(item, expand_composites=True)[:1] == [item]
    return is_whole and not any(hasattr(item, name) for name in _TRACED)


def _spec_of(tensor: Any) -> Any:
    if isinstance(tensor, (np.ndarray, np.generic)):
        return tf.TensorSpec(tensor.shape, tensor.dtype)
    return tf.type_spec_from_value(tensor)


def of_elements(original: Any, parts: Parts, counts: Sequence[int]) -> tuple[Any, list[Handed]]:
    """A function of elements and tensors that calls another one for them.

    Args:
      original: the tf.function that takes iterators.
      parts: of the arguments of its calls.
      counts: how many elements of each iterator there are.

    Returns:
      A tf.function of a tuple for each iterator, then the tensors; what stands for the iterators
      while it is traced, from then on.
    """
    stand_ins: list[Handed] = []
    element_specs = [iterator.element_spec for iterator in parts.iterators]
    structure, places = parts.structure, parts.places  # not the tensors, which would be kept

    def arguments(given: Sequence[Any]) -> Any:
        stand_ins[:] = map(Handed, given, element_specs)
        flat = tf.nest.flatten(structure)
        for place, item in zip(places, [*stand_ins, *given[len(stand_ins) :]], strict=True):
            flat[place] = item
        return tf.nest.pack_sequence_as(structure, flat)

    as_it_is = tf.autograph.experimental.do_not_convert(arguments)

    def step(*given: Any) -> Any:
        args, kwargs = as_it_is(given)
        return original.python_function(*args, **kwargs)

    step.__name__ = getattr(original.python_function, "__name__", step.__name__)
    function = tf.function(
        step,
        input_signature=[
            *((spec,) * count for spec, count in zip(element_specs, counts, strict=True)),
            *parts.specs,
        ],
        autograph=original._autograph,
        jit_compile=original._jit_compile,
        experimental_autograph_options=original._experimental_autograph_options,
    )
    return function, stand_ins
