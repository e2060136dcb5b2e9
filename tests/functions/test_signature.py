"""Keys of calls, as tf.function tells them apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfmem
from tfmem.functions.signature import signature_of


def test_numbers_of_numpy_count_by_type_as_arrays_do() -> None:
    """TensorFlow traces them as tensors: a learning rate that changes makes no new trace."""
    assert signature_of((np.float64(0.1),), {}) == signature_of((np.float64(0.2),), {})
    assert signature_of((np.float64(0.1),), {}) != signature_of((np.float32(0.1),), {})
    assert signature_of((0.1,), {}) != signature_of((0.2,), {})


def test_ragged_and_sparse_arguments_count_by_what_their_parts_hold() -> None:
    short, long = (tf.ragged.constant([[1.0] * length, [2.0]]) for length in (3, 400))
    assert signature_of((short,), {}) == signature_of((short + 1.0,), {})
    assert signature_of((short,), {}) != signature_of((long,), {})
    few, many = (tf.sparse.from_dense(np.eye(8)[:rows]) for rows in (3, 5))
    few = tf.SparseTensor(few.indices, few.values, many.dense_shape)
    assert signature_of((few,), {}) != signature_of((many,), {})


def test_no_number_is_the_same_as_no_number() -> None:
    assert signature_of((float("nan"),), {}) == signature_of((float("nan"),), {})
    assert signature_of((float("nan"),), {}) != signature_of((0.0,), {})


def test_a_variable_in_the_place_of_one_that_is_gone_is_another() -> None:
    keys = set()
    for _ in range(20):  # each is gone before the next one is made, at the same address
        keys.add(signature_of((tf.Variable(1.0),), {}))
    assert len(keys) == 20
    variable = tf.Variable(1.0)
    assert signature_of((variable,), {}) == signature_of((variable,), {})


def test_what_tensors_are_made_of_counts_by_type_and_shape() -> None:
    """A variable of Keras 3, such as a learning rate, has no end of itself as a part."""
    rate, other = keras.Variable(0.1), keras.Variable(0.2)
    assert signature_of((rate,), {}) == signature_of((other,), {})
    assert signature_of((rate,), {}) != signature_of((keras.Variable([0.1]),), {})


@dataclasses.dataclass
class Masked:
    """A class that tells TensorFlow which of its fields are traced."""

    values: Any
    mask: Any
    name: str

    def __tf_flatten__(self) -> tuple[Any, Any]:
        return (self.name,), (self.values, self.mask)

    @classmethod
    def __tf_unflatten__(cls, static: Any, traced: Any) -> Masked:
        return cls(*traced, *static)


def test_of_classes_that_take_themselves_apart_what_is_not_traced_counts_by_value() -> None:
    one = Masked(tf.zeros(3), tf.ones(3), "one")
    assert signature_of((one,), {}) == signature_of(
        (dataclasses.replace(one, mask=one.values),), {}
    )
    for other in (
        dataclasses.replace(one, name="other"),
        dataclasses.replace(one, mask=tf.ones(4)),
        dataclasses.replace(one, mask=dataclasses.replace(one, name="inner")),
    ):
        assert signature_of((one,), {}) != signature_of((other,), {})
    step = tfmem.optimize(lambda x: x.values + len(x.name), budget="100MiB", profile="static")
    assert [float(step(dataclasses.replace(one, name=name))[0]) for name in ("a", "bcd")] == [1, 3]


def test_texts_shapes_and_complex_numbers_count_by_value() -> None:
    for one, other in (
        (np.array(["relu", "tanh"])[0], np.array(["relu", "tanh"])[1]),
        (tf.TensorShape([1, 2]), tf.TensorShape([1, None])),
        (1j, 2j),
    ):
        assert signature_of((one,), {}) != signature_of((other,), {})
        assert signature_of((one,), {}) == signature_of((one,), {})
    assert signature_of((tf.TensorShape([1]),), {}) == signature_of((tf.TensorShape([1]),), {})


class Scaled(tf.types.experimental.TraceType):
    """A type of arguments that are equal where their factors are."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def is_subtype_of(self, other: object) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Sequence[object]) -> Scaled | None:
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: object = None) -> Factor:
        return Factor(self.factor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaled) and other.factor == self.factor

    def __hash__(self) -> int:
        return hash(self.factor)


class Factor:
    """An argument that cannot be hashed and says what it is traced as."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and other.factor == self.factor

    def __tf_tracing_type__(self, context: object) -> Scaled:
        return Scaled(self.factor)


def test_objects_that_cannot_be_hashed_count_by_what_they_are_traced_as() -> None:
    first, second, other = (signature_of((Factor(n),), {}) for n in (2, 2, 3))
    assert first == second != other
    traces = []

    def step(factor: Factor, x: tf.Tensor) -> tf.Tensor:
        traces.append(factor)
        return x * factor.factor

    optimized = tfmem.optimize(tf.function(step))
    found = [float(optimized(Factor(n), tf.constant(1.0))) for n in (2, 2, 3)]
    assert found == [2.0, 2.0, 3.0]
    assert len(traces) == 2


def test_an_object_that_tensorflow_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(TypeError, match="Could not generate a generic TraceType"):
        signature_of((type("Other", (), {"__hash__": None})(),), {})
