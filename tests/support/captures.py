"""Captures of functions, and nodes looked up in them."""

from __future__ import annotations

from tfmem.bridge.capture import Captured, capture
from tfmem.graph.ir import Node

LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"


def captured_from(function, *args, **options) -> Captured:
    concrete = function.get_concrete_function(*args)
    return capture(concrete, device="CPU:0", **options)


def only(captured: Captured, op: str) -> Node:
    (node,) = [node for node in captured.graph.nodes if node.op == op]
    return node
