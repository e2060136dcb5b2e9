"""What else one could use against memory, so that it can be measured in the same run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with 2.21.
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context

from models.zoo.task import Task

COMPARATORS = {
    "grappler": "Grappler's memory optimizer, told that the backward pass is gradient_tape/",
    "recompute_grad": "tf.recompute_grad by hand around each block",
    "remat_scope": 'Keras 3: RematScope("activations")',
    "jit_compile": "jit_compile=True",
}
"""Modes and what they are; a model that cannot be run so says why."""


_BLOCK = 8
"""What `recompute_grad` is set to: any number for layers, moments together where a model has none.
"""


class CannotRun(Exception):
    """The comparator is not made for the model; the message says why."""


def changed(mode: str, config: Any) -> Any:
    """The configuration with which a model is built for a comparator.

    Raises:
      CannotRun: the model knows nothing of it.
    """
    if mode == "remat_scope":
        if not hasattr(config, "library"):
            raise CannotRun("RematScope acts on layers of Keras 3; this model has none")
        return dataclasses.replace(config, library="remat")
    if mode != "recompute_grad":
        return config
    if not hasattr(config, "recompute_grad"):
        raise CannotRun("the model has no blocks that could be computed twice by hand")
    return dataclasses.replace(config, recompute_grad=config.recompute_grad or _BLOCK)


def prepare(mode: str, task: Task, batch: tuple[tf.Tensor, ...]) -> Callable[..., tf.Tensor]:
    """The training step under a comparator, traced."""
    if mode == "grappler":
        _use_memory_optimizer()
    function = tf.function(task.step, jit_compile=mode == "jit_compile" or None)
    function.get_concrete_function(*batch)
    return function


def _use_memory_optimizer() -> None:
    """Turns Grappler's memory optimizer on for every function of this process."""
    config = config_pb2.ConfigProto()
    config.CopyFrom(eager_context.context().config)
    rewrites = config.graph_options.rewrite_options
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.HEURISTICS
    rewrites.memory_optimizer_target_node_name_scope = "gradient_tape/"
    rewrites.min_graph_nodes = -1
    options = eager_context.FunctionCallOptions(config_proto=config)
    eager_context.context().function_call_options = options
