"""Grappler, TensorFlow's optimizer of graphs, run ahead of time as when a function is called.

The graph that comes out is the one that TensorFlow would run, so that numbers are the same, but for
calls that XLA would compile and that are opened (`compiled.open_calls`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.core.protobuf import (
    config_pb2,
    device_properties_pb2,
    meta_graph_pb2,
    rewriter_config_pb2,
)
from tensorflow.python.eager import context as eager_context
from tensorflow.python.grappler import cluster, tf_optimizer

from tfmem.bridge import carried, compiled, kernels
from tfmem.bridge.graphdefs import (
    BODIES,
    GraphDef,
    NodeDef,
    functions_of,
    merged_device,
    parse_value,
    value_of,
)
from tfmem.bridge.inputs import UNSIZED, Input
from tfmem.bridge.tensors import whole_numbers
from tfmem.graph.bodies import BRANCHES
from tfmem.runtime.devices import full_name

_GROUP = "api_implements"

_MOST_KEPT = 32 * 2**20
"""Bytes of graphs that are kept; one of 10,000 nodes has some 4 MB, with constants more."""

_WHOLE = "biu"
"""Kinds of NumPy's types for truths and whole numbers."""


def optimize(
    concrete: Any, inputs: Sequence[Input], places: Mapping[str, str], device: str
) -> GraphDef:
    """A function's graph after Grappler, nested calls inlined, inputs and outputs kept.

    Args:
      concrete: the function.
      inputs: its inputs.
      places: the device of each input.
      device: that of the nodes which the user put nowhere: none is fused without one.
    """
    meta_graph = meta_graph_pb2.MetaGraphDef()
    graph_def = meta_graph.graph_def
    graph_def.CopyFrom(concrete.graph.as_graph_def())
    number = {item.name: i for i, item in enumerate(inputs)}
    for node in graph_def.node:
        if (index := number.get(node.name)) is None:
            kernels.place(node, device)
        else:
            _make_argument(node, inputs[index], index)
            node.device = places[node.name]
        if node.op in BRANCHES:
            op = concrete.graph.get_operation_by_name(node.name)
            _choose(node, whole_numbers(op.inputs[0]))

    if not graph_def.node:
        return graph_def  # Grappler refuses a graph of nothing

    _place_bodies(graph_def, device)
    compiled.open_calls(graph_def, device)

    names = [item.name for item in inputs] + [t.name for t in concrete.outputs]
    names += [op.name for op in concrete.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(names)
    found = _MADE.of(meta_graph, _config(), gpus())
    _let_go(found, {op.name for op in concrete.graph.control_outputs}, concrete.outputs)
    carried.drop_unread(found, map(value_of, concrete.outputs))
    return found


class _Made:
    """What Grappler has made of the last graphs.

    A function is captured anew for each budget that is tried, and Grappler takes half of that.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def of(self, meta_graph: Any, config: Any, gpus: Mapping[str, Mapping[str, Any]]) -> GraphDef:
        """What Grappler makes of a graph, which may change; it is the caller's to change."""
        asked = hashlib.sha256(repr(gpus).encode())
        for message in (config, meta_graph):
            asked.update(message.SerializeToString(deterministic=True))
        known = self._known.pop(asked.digest(), None)
        if known is None:
            known = _optimized(meta_graph, config, _machine(gpus)).SerializeToString()
        if len(known) <= _MOST_KEPT:
            self._known[asked.digest()] = known
        while sum(map(len, self._known.values())) > _MOST_KEPT:
            del self._known[next(iter(self._known))]  # the one asked for longest ago
        return type(meta_graph.graph_def).FromString(known)


_MADE = _Made()


def _optimized(meta_graph: Any, config: Any, machine: Any) -> GraphDef:
    """Runs Grappler, until it leaves no function or branch to be chosen."""
    found = tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=machine)
    while _has_chosen(found) | _choose_known(found):
        meta_graph.graph_def.CopyFrom(found)
        found = tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=machine)
    return found


def _choose(node: NodeDef, which: np.ndarray | None) -> bool:
    """Makes a branch of which it is known which function it runs a call of that function.

    AutoGraph makes such branches of conditions on ranks and shapes, and only the function that runs
    gives them a shape.

    Args:
      node: the branch.
      which: what it is told; None if that is not known.

    Returns:
      Whether it was changed.
    """
    if which is None or which.size != 1 or which.dtype.kind not in _WHOLE:
        return False
    names, number = functions_of(node), int(which.item())
    if node.op.endswith("If"):
        number = 0 if number else 1
    node.op = "PartitionedCall" if node.op.startswith("Stateless") else "StatefulPartitionedCall"
    del node.input[0]
    for name in set(node.attr) - {"Tin", "Tout"}:
        del node.attr[name]
    node.attr["f"].func.name = names[number if 0 <= number < len(names) else -1]
    return True


def _choose_known(graph_def: GraphDef) -> bool:
    """Chooses what Grappler has found out to be known; whether there was anything.

    A function that does not run may be one that cannot: a range to 1 that begins with 12.
    """
    is_any = False
    for nodes in (graph_def.node, *(one.node_def for one in graph_def.library.function)):
        branching = [node for node in nodes if node.op in BRANCHES]
        known = {node.name: node for node in nodes if node.op == "Const"} if branching else {}
        for node in branching:
            told = known.get(node.input[0].partition(":")[0])
            which = None if told is None else tf.make_ndarray(told.attr["value"].tensor)
            is_any |= _choose(node, which)
    return is_any


def _let_go(graph_def: GraphDef, must_run: Set[str], outputs: Iterable[tf.Tensor]) -> None:
    """Lets what stands for inlined calls that must run wait for what they return, not hold it.

    Of a nested function's gradient that is every activation, from the forward pass on::

        call = IdentityN(y:0, saved0:0, saved1:0)    call = NoOp(^y, ^saved0, ^saved1)
    """
    read = {parse_value(t.name).node for t in outputs}
    read |= {parse_value(t).node for n in graph_def.node for t in n.input if t[0] != "^"}
    for node in graph_def.node:
        if node.op in ("Identity", "IdentityN") and node.name in must_run - read:
            sources = [parse_value(text.removeprefix("^")).node for text in node.input]
            node.op = "NoOp"
            node.input[:] = [f"^{name}" for name in dict.fromkeys(sources)]
            node.attr.clear()


def _has_chosen(graph_def: GraphDef) -> bool:
    """Whether calls are left of functions that are one of several for the same purpose.

    Grappler chooses the one for the device and leaves the call as it is; it has done so by now, and
    inlines what is marked so no more. (tf-keras has such functions for LSTM and GRU.)
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    called = {n.attr["f"].func.name for n in graph_def.node if "f" in n.attr}
    chosen = [functions[n] for n in called & functions.keys() if _GROUP in functions[n].attr]
    for function in chosen:
        del function.attr[_GROUP]
    return bool(chosen)


def gpus() -> dict[str, Mapping[str, Any]]:
    """What TensorFlow tells of each GPU that it uses, by its full name: "device_name" and more."""
    physical = tf.config.list_physical_devices("GPU")
    if not physical:
        return {}
    details = tf.config.experimental.get_device_details(physical[0])
    return {full_name(device.name): details for device in tf.config.list_logical_devices("GPU")}


def _machine(gpus: Mapping[str, Mapping[str, Any]]) -> Any:
    """The devices that Grappler is to reckon with; None where there is no GPU.

    Its layout optimizer looks for GPUs, and asks how new they are, before it turns pictures over.
    """
    if not gpus:
        return None
    devices = []
    for name, details in gpus.items():
        properties = device_properties_pb2.DeviceProperties(type="GPU")
        properties.model = str(details.get("device_name", ""))
        version = details.get("compute_capability", ())
        properties.environment["architecture"] = ".".join(map(str, version))
        devices.append(device_properties_pb2.NamedDevice(name=name, properties=properties))
    return cluster.Cluster(devices=devices)


def _place_bodies(graph_def: GraphDef, device: str) -> None:
    """Gives nodes of loops and branches their caller's device; without one Grappler fuses none.

    What uses a resource stays open: it goes where the resource is when the function runs.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    waiting = [(node, device) for node in graph_def.node if node.op in BODIES]
    while waiting:
        node, around = waiting.pop()
        place = merged_device(node.device, around)
        for called in functions_of(node):
            if (function := functions.pop(called, None)) is None:
                continue
            resource = tf.resource.as_datatype_enum
            handles = {a.name for a in function.signature.input_arg if a.type == resource}
            for inner in function.node_def:
                if handles.isdisjoint(inner.input) and inner.op not in BODIES:
                    kernels.place(inner, place)
            waiting += [(inner, place) for inner in function.node_def if inner.op in BODIES]


def _config() -> Any:
    """The user's own settings, for graphs of every size, with loops kept as While nodes."""
    config = config_pb2.ConfigProto()
    config.CopyFrom(eager_context.context().config)
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"  # only here: keeps While whole
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    # It would turn large sums into accumulations whose order, and so rounding, varies between runs.
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    if rewrites.disable_meta_optimizer:  # calls must be inlined even so
        rewrites.disable_meta_optimizer = False
        del rewrites.optimizers[:]
        rewrites.optimizers.append("function")
    return config


def _make_argument(node: NodeDef, item: Input, index: int) -> None:
    """Makes an input's node one whose shape Grappler knows, as it does when TensorFlow calls it.

    It takes a placeholder's for unknown, since another could be fed. What it does not see, a shape
    or that behind a handle, it neither folds nor sorts products by.
    """
    node.Clear()
    node.name = item.name
    if item.dtype in UNSIZED:
        node.op = "_Arg"
        node.attr["T"].type = item.dtype.as_datatype_enum
        node.attr["index"].i = index
        for held in item.handle.shape_and_type if item.handle is not None else ():
            node.attr["_handle_dtypes"].list.type.append(held.dtype)
            node.attr["_handle_shapes"].list.shape.append(held.shape)
    else:
        node.op = "FakeParam"
        node.attr["dtype"].type = item.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(item.shape).as_proto())
