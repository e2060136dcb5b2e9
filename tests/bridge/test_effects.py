"""What a step leaves behind beside its outputs is found, wherever in the function it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.support.functions import CASES
from tfmem.bridge.calls import flat_arguments
from tfmem.bridge.capture import capture
from tfmem.bridge.effects import Effects, effects_of

X = tf.ones([4, 4])
UPDATED = {
    "variables": 2, "variable_argument": 1, "iterator_argument": 1, "while_loop": 1, "cond": 2,
    "nested_function": 1, "custom_gradient": 1, "generator": 1, "method": 1, "no_outputs": 1,
    "sparse_gradient": 1,
}  # fmt: skip
"""How many variables a case updates."""

TAKEN = {"iterator_argument": 1, "captured_iterator": 1}
"""How many elements a case takes."""


def effects(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Effects:
    function = function if hasattr(function, "python_function") else tf.function(function)
    concrete = function.get_concrete_function(*args, **kwargs)
    return effects_of(
        capture(concrete, device="CPU:0", args=flat_arguments(concrete, args, kwargs))
    )


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_function_can_be_put_back(name: str) -> None:
    case = CASES[name]()
    args = case.renew() if case.renew else case.args
    found = effects(case.function, *args, **case.kwargs)
    assert found.lasting == ()
    assert not found.counts
    assert len(found.written) == UPDATED.get(name, 0)
    assert sum(map(len, found.elements.values())) == TAKEN.get(name, 0)


def test_variables_that_are_only_read_are_not_updated() -> None:
    read, looped, updated = (tf.Variable(X, name=name) for name in ("read", "looped", "updated"))

    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = x @ read
            updated.assign_add(looped)
        return tf.cond(x[0, 0] > 0, lambda: x + read, lambda: x + tf.gather(looped, [0] * 4))

    assert len(effects(step, X).written) == 1


SOURCE = iter(tf.data.Dataset.from_tensors((X, 1)).repeat())


def taking(count: int) -> Callable[[], tf.Tensor]:
    return lambda: tf.add_n([next(SOURCE)[0] for _ in range(count)])


def test_elements_are_counted_with_their_types_and_shapes() -> None:
    ((first, second),) = effects(taking(2)).elements.values()
    assert first == second
    assert first.types == (tf.float32, tf.int32)
    assert first.shapes == (tf.TensorShape([4, 4]), tf.TensorShape([]))


def in_a_loop() -> tf.Tensor:
    total = tf.zeros([4, 4])
    for _ in tf.range(2):
        total += next(SOURCE)[0]
    return total


def in_python(x: tf.Tensor) -> tf.Tensor:
    tf.py_function(lambda y: None, [x], [])
    return x + 1.0


def in_a_branch(x: tf.Tensor) -> tf.Tensor:
    if x[0, 0] > 0:
        tf.print(x[0, 0])
        x += 1.0
    else:
        x -= 1.0
    return x


TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
WRITER = tf.summary.create_noop_writer()
SHUFFLED = tf.data.Dataset.range(4).shuffle(4, seed=1)


def into_a_table(x: tf.Tensor) -> tf.Tensor:
    TABLE.insert(tf.constant([1], tf.int64), x[0, :1])
    return x + 1.0


def into_a_file(x: tf.Tensor) -> tf.Tensor:
    tf.io.write_file("/dev/null", "text")
    return x + 1.0


def over_a_data_set(x: tf.Tensor) -> tf.Tensor:
    """The data set is made outside: its shuffle goes on from step to step."""
    return x + tf.cast(SHUFFLED.reduce(tf.constant(0, tf.int64), tf.add), tf.float32)


@pytest.mark.parametrize(
    ("step", "args", "op"),
    [
        (in_a_loop, (), "IteratorGetNext"),
        (in_python, (X,), "EagerPyFunc"),
        (in_a_branch, (X,), "PrintV2"),
        (into_a_table, (X,), "LookupTableInsertV2"),
        (into_a_file, (X,), "WriteFile"),
        (over_a_data_set, (X,), "ReduceDataset"),
    ],
)
def test_what_cannot_be_undone_is_named(step: Any, args: Any, op: str) -> None:
    (found,) = effects(step, *args).lasting
    assert found.endswith(f"({op})")


def seeded(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.normal([4, 4], seed=3)


def seeded_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(2):
        x += tf.random.uniform([4, 4], seed=3)
    return x


@pytest.mark.parametrize(("step", "is_counted"), [(seeded, True), (seeded_in_a_loop, False)])
def test_random_kernels_with_a_seed_count(step: Any, is_counted: bool) -> None:
    found = effects(step, X)
    assert found.counts
    assert found.is_counted == is_counted
    assert found.lasting == ()


def test_random_kernels_without_a_seed_promise_nothing() -> None:
    drawn = {"shape": [4, 4], "dtype": tf.float32, "seed": 0, "seed2": 0}
    assert not effects(lambda x: x + tf.raw_ops.RandomStandardNormal(**drawn), X).counts
