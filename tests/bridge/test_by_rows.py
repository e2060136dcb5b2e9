"""Variables that functions of branches and loops access by rows."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.captures import captured_from
from tests.support.functions import matrix


def updated_in(kind: str, table: tf.Variable, bias: tf.Variable) -> tf.types.experimental.Callable:
    def update(rows):
        table.scatter_sub(tf.IndexedSlices(rows, tf.constant([0, 2])))
        bias.assign_add(rows[0])
        return tf.constant(True)

    @tf.function
    def step(x):
        rows = tf.gather(tf.convert_to_tensor(table), [0, 2]) * x
        is_fine = tf.reduce_sum(rows) < 1e6
        if kind == "branch":
            tf.cond(is_fine, lambda: update(rows), lambda: tf.constant(False))
        elif kind == "branch in a loop":
            for _ in tf.range(tf.cast(x, tf.int32)):
                tf.cond(is_fine, lambda: update(rows), lambda: tf.constant(False))
        return rows + bias

    return step


@pytest.mark.parametrize("kind", ["branch", "branch in a loop", "nowhere"])
def test_whole_reads_of_what_functions_access_by_rows_are_copies(kind):
    table, bias = tf.Variable(matrix(0, 8, 4)), tf.Variable(matrix(1, 4))
    captured = captured_from(updated_in(kind, table, bias), tf.constant(2.0))
    copied = [captured.variables[name] for name in captured.graph.form.copied_variables]
    assert [variable is table for variable in copied] == [True] * (kind != "nowhere")
    form = captured.graph.form
    reads = [n for n, node in enumerate(captured.graph.nodes) if node.op == "ReadVariableOp"]
    assert any(form.is_copy(read) for read in reads) == (kind != "nowhere")
