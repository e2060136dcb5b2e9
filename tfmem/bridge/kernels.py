"""What kernels TensorFlow has for a node: whether a device can run it, what it leaves on the host,
whether oneDNN's run in their place.

Known for devices that are not there, too: kernels are registered when TensorFlow is loaded.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.util import _pywrap_util_port as port

from tfmem.bridge.graphdefs import NodeDef, merged_device, output_count
from tfmem.graph import device_names

_FOR_ANY = "DEFAULT"
"""Kind of device of kernels that stand for all kinds which have none of their own."""


def runs_on(node: NodeDef, kind: str) -> bool:
    """Whether a kind of device, such as "GPU", has a kernel for a node.

    True for calls of functions, which TensorFlow spreads over devices.
    """
    return op_def_registry.get(node.op) is None or _kernel_of(node, kind) is not None


def has_kernel(op: str, kind: str, **types: tf.DType) -> bool:
    """Whether a kind of device has a kernel of an op for types, by the names of its attributes."""
    node = tf.compat.v1.NodeDef(op=op)
    for name, dtype in types.items():
        node.attr[name].type = dtype.as_datatype_enum
    return _kernel_of(node, kind) is not None


def place(node: NodeDef, device: str) -> None:
    """Puts a node on a device where the user put it nowhere, or beside it if that has no kernel.

    So does TensorFlow.
    """
    node.device = merged_device(node.device, device)
    kind = device_names.kind(node.device)
    if kind != "CPU" and not runs_on(node, kind):
        node.device = device_names.cpu_of(node.device)


def host_outputs(node: NodeDef, kind: str) -> frozenset[int]:
    """Outputs that a node's kernel leaves in the memory of the host; most of a GPU's int32 are."""
    return _in_host_memory(node, kind, "output_arg")


def host_inputs(node: NodeDef, kind: str) -> frozenset[int]:
    """Inputs that a node's kernel reads in the memory of the host; TensorFlow copies them there."""
    return _in_host_memory(node, kind, "input_arg")


def _in_host_memory(node: NodeDef, kind: str, which: str) -> frozenset[int]:
    kernel = _kernel_of(node, kind)
    if kernel is None or not kernel.host_memory_arg:
        return frozenset()
    found: set[int] = set()
    index = 0
    for arg in getattr(op_def_registry.get(node.op), which):
        count = output_count(arg, node)
        if arg.name in kernel.host_memory_arg:
            found.update(range(index, index + count))
        index += count
    return frozenset(found)


def has_cuda() -> bool:
    """Whether GPUs run TensorFlow's own kernels, and NCCL sums up: not those of a plugin."""
    is_built_in = not pywrap_tfe.TF_ListPluggablePhysicalDevices()
    return is_built_in and bool(tf.test.is_built_with_gpu_support())


@functools.cache
def onednn_types() -> frozenset[str]:
    """Types that oneDNN's kernels take on this machine's CPU, where there are any for an op.

    TensorFlow runs them in the place of its own: unasked on processors with instructions for neural
    networks, elsewhere where TF_ENABLE_ONEDNN_OPTS=1; those of bfloat16 where the processor has
    AVX-512 (`mkl_layout_pass.cc`, `IsBF16SupportedByOneDNNOnThisCPU`).
    """
    if not port.IsMklEnabled():
        return frozenset()
    return frozenset({"float32", "bfloat16"} if has_avx512() else {"float32"})


def computes(dtype: str) -> bool:
    """Whether oneDNN's convolutions, pools and batch norms take a type on this machine's CPU."""
    return dtype in onednn_types() or (dtype == "float16" and runs_half())


@functools.cache
def runs_half() -> bool:
    """Whether oneDNN's convolutions, pools and norms take float16, too (`core/util/util.cc`).

    Gradients of batch norms of float16 are TensorFlow's own everywhere.
    """
    instructions = {"avx512_fp16", "amx_fp16", "avx_ne_convert"}
    return port.IsMklEnabled() and any(one in (_processor() or "") for one in instructions)


@functools.cache
def has_avx512() -> bool:
    """Whether this machine's CPU has AVX-512; taken for granted where Linux does not tell."""
    return "avx512f" in (_processor() or "avx512f")


@functools.cache
def instructions() -> tuple[str, ...]:
    """Instructions that this machine's CPU has, by Linux's names; none where it does not tell."""
    lines = (_processor() or "").splitlines()
    return next((tuple(line.split()[2:]) for line in lines if line.startswith("flags")), ())


@functools.cache
def _processor() -> str | None:
    """What Linux tells of the CPU."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None


def keeps_arguments_on_host(dtype: Any) -> bool:
    """Whether a GPU reads the arguments of a function of this type in the memory of the host."""
    node = tf.compat.v1.NodeDef(op="_Arg")
    node.attr["T"].type = dtype.as_datatype_enum
    return bool(host_outputs(node, "GPU"))


def _kernel_of(node: NodeDef, kind: str) -> Any:
    """The KernelDef that TensorFlow would take; None if there is none."""
    for wanted in (kind, _FOR_ANY):
        fitting = [kernel for kernel in _kernels(node.op, wanted) if _fits(kernel, node)]
        if fitting:
            return max(fitting, key=lambda kernel: kernel.priority)
    return None


@functools.cache
def _kernels(op: str, kind: str) -> tuple[Any, ...]:
    found = kernels.get_registered_kernels_for_op(op).kernel
    return tuple(kernel for kernel in found if kernel.device_type == kind)


def _fits(kernel: Any, node: NodeDef) -> bool:
    label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
    return kernel.label == label and all(
        set(_types(node, one.name)) <= set(one.allowed_values.list.type)
        for one in kernel.constraint
    )


def _types(node: NodeDef, name: str) -> list[int]:
    """A node's attribute as types; the op's default where the node has none."""
    if name in node.attr:
        value = node.attr[name]
    else:
        op = op_def_registry.get(node.op)
        value = next(attr.default_value for attr in op.attr if attr.name == name)
    return [value.type] if value.type else list(value.list.type)
