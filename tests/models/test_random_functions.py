"""Functions made at random give the same numbers under a budget, and keep it."""

from __future__ import annotations

import json

import pytest

from models.bench.random_functions import Maker, many
from models.bench.random_ops import ROWS, WIDTH

COUNT, DEEPEST = 500, 3
"""Of every run; `python -m models.bench.random_functions` makes any number, and deeper ones, of
callers who hold all that they may: of these one in a hundred takes more than its budget."""


@pytest.mark.memory
def test_functions_made_at_random_keep_budgets_and_numbers() -> None:
    found = list(many(0, COUNT, DEEPEST, is_held=False))  # one process: cores are full as it is
    assert len(found) == COUNT
    wrong = [one for one in found if one["outcome"] not in ("kept", "refused")]
    assert not wrong, json.dumps(wrong, indent=1)
    assert sum(one["outcome"] == "kept" for one in found) >= 0.9 * COUNT


def test_a_seed_makes_the_same_function_whenever_it_is_traced() -> None:
    first, second = (Maker(11).function().get_concrete_function(spec()) for _ in range(2))
    assert [op.type for op in first.graph.get_operations()] == [
        op.type for op in second.graph.get_operations()
    ]
    other = Maker(12).function().get_concrete_function(spec())
    assert len(other.graph.get_operations()) != len(first.graph.get_operations())


def spec():
    import tensorflow as tf

    return tf.TensorSpec([ROWS, WIDTH])
