"""What tests/functions/test_arguments.py asks of processes of their own."""

from __future__ import annotations

import ctypes
from typing import Any

from tfmem.bridge.calls import canonical_arguments, flat_arguments
from tfmem.bridge.capture import capture
from tfmem.bridge.elements import tensor_of
from tfmem.functions.arguments import in_their_places, stand_ins, with_absent
from tfmem.functions.entry import Tenant
from tfmem.runtime import devices, heap, memory
from tfmem.runtime.regions import regions


def absent_arguments() -> dict[str, tuple[int, int]]:
    """Of each kind of argument the bytes that are absent, and those in use more with stand-ins."""
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    array = np.zeros((96, 256), np.float32)
    kinds = {
        "own": tf.random.normal(array.shape),
        "halves": tf.cast(tf.random.normal(array.shape), tf.bfloat16),
        "truths": tf.random.normal((384, 256)) > 0,
        "array": array,
        "elsewhere": tensor_of(array),
        "small": array[:1],
    }
    found = {}
    for kind, x in kinds.items():
        function = tf.function(lambda x: tf.reduce_sum(tf.cast(x, tf.float32)))
        concrete = function.get_concrete_function(x)
        flat = flat_arguments(concrete, *canonical_arguments(function, (x,), {}))
        captured = with_absent(capture(concrete, device=device, args=flat), flat, ((x,), {}))
        del flat
        before, _ = memory.memory_info(device)
        with stand_ins(captured, device):
            more = memory.memory_info(device)[0] - before
        assert memory.memory_info(device)[0] == before
        found[kind] = (sum(captured.absent.get(device, ())), more)
    return found


def beside_arrays() -> dict[str, bool]:
    """Whether tensors are held to be the allocator's, where its regions lie between arrays.

    The C library takes what was once a large array's for regions as well as for arrays.
    """
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    np.empty(2**25 - 2**16, np.uint8)  # gone at once
    made = [tf.random.normal((200_000,)) for _ in range(24)]
    del made[::3]  # a hole in each region
    arrays = [np.zeros(2**19 + 16 * i, np.uint8) for i in range(64)]
    fit = [one for one in arrays if one.ctypes.data % 64 == 0 and one.ctypes.data % 4096]
    adopted = [tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in fit]
    places = [heap.address(one) for one in made]
    begins = [array.ctypes.data for array in fit]
    return {
        "near": any(abs(one - other) < 2**26 for one in places for other in begins),
        "adopted": [heap.address(one) for one in adopted] == begins,
        "all of the made": all(heap.holds(device, one) for one in made),
        "all that fill a region": all(
            regions.hold(device, begin, 3_000_000, 2**26) for begin in _blocks(2**22)
        ),
        "one of the adopted": any(heap.holds(device, one) for one in adopted),
    }


def _blocks(nbytes: int) -> list[int]:
    """Addresses of what the C library gives where TensorFlow asks for a region."""
    libc, found = ctypes.CDLL(None), []
    for _ in range(8):
        pointer = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(pointer), 64, nbytes) == 0
        found.append(int(pointer.value or 0))
    return [begin for begin in found if begin % 4096]  # where how long it is stands before it


def adopted_arguments() -> dict[str, int]:
    """Of each kind of argument the bytes that are held beside it in a step."""
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    own, x = tf.random.normal((96, 256)), tensor_of(np.zeros((96, 256), np.float32))
    y = tensor_of(np.zeros((96, 256), np.float32))
    kinds: dict[str, Any] = {
        "adopted": x,
        "own": own,
        "small": x[:1],
        "several": [x, own, {"y": y}],
        "twice": [x, x],
        "as much as before": x,
    }
    found = {}
    for kind, args in kinds.items():
        before, _ = memory.memory_info(device)
        tenant = Tenant("step", device, NotImplemented)
        tenant.in_use = before + (0 if kind == "as much as before" else 3 * 96 * 256 * 4)
        with in_their_places([tenant], (args,), {}, args):
            found[kind] = memory.memory_info(device)[0] - before
        del tenant
        assert memory.memory_info(device)[0] == before
    return found


def arguments_of_both_kinds() -> dict[str, Any]:
    """A step whose arguments are the allocator's, then one of which the second is NumPy's."""
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    tf.random.normal((2**20,))  # what is free now is one chunk
    first, second = tf.random.normal((2**14,)), tf.random.normal((2**15,))
    tenant = Tenant("step", device, NotImplemented)
    with in_their_places([tenant], (first, second), {}, (first, second)):
        before, _ = memory.memory_info(device)
    lay = [range(a, a + 4 * one.shape[0]) for one in (first, second) for a in [heap.address(one)]]
    first, adopted = tf.random.normal((2**14,)), tensor_of(np.zeros(2**15, np.float32))
    del second
    with in_their_places([tenant], (first, adopted), {}, (first, adopted)):
        in_step, _ = memory.memory_info(device)
    (stand_in,) = tenant.stand_ins.values()
    begin = heap.address(stand_in)
    del stand_in
    between, _ = memory.memory_info(device)
    with in_their_places([tenant], (first, adopted), {}, (first, adopted)):
        same = [heap.address(one) for one in tenant.stand_ins.values()]
    del adopted
    return {
        "held between steps": in_step == between >= before,
        "beside the last": not any(one.start < begin + 2**17 and begin < one.stop for one in lay),
        "where it was": same == [begin],
        "gone with its tensor": between - memory.memory_info(device)[0],
    }
