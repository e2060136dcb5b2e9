"""What tests/functions/test_arguments.py asks of processes of their own."""

from __future__ import annotations

import ctypes
from typing import Any

from tfmem.bridge.calls import canonical_arguments, flat_arguments
from tfmem.bridge.capture import capture
from tfmem.bridge.elements import tensor_of
from tfmem.functions.arguments import in_their_places, keep, lying, stand_ins, with_passed
from tfmem.functions.entry import Tenant
from tfmem.runtime import chunks, devices, heap, memory
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
        captured = with_passed(capture(concrete, device=device, args=flat), flat, ((x,), {}))
        del flat
        before, _ = memory.memory_info(device)
        with stand_ins(captured, device):
            more = memory.memory_info(device)[0] - before
        assert memory.memory_info(device)[0] == before
        found[kind] = (sum(one.nbytes for one in captured.passed if not one.is_there), more)
    return found


def beside_arrays() -> dict[str, bool]:
    """Whether tensors are held to be the allocator's, where its regions lie between arrays.

    The C library takes what was once a large array's for regions as well as for arrays, and an
    array of the size of a region has a block as large as a region's.
    """
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    np.empty(2**25 - 2**16, np.uint8)  # gone at once
    made = [tf.random.normal((200_000,)) for _ in range(24)]
    del made[::3]  # a hole in each region
    whole = tf.random.normal((2**22,))  # a region of its own
    constants = [_constant(device, np.zeros(2**22, np.uint8)) for _ in range(6)]
    arrays = [np.zeros(2**19 + 16 * i, np.uint8) for i in range(64)]
    arrays += [np.zeros(2**24, np.uint8) for _ in range(8)]
    fit = [one for one in arrays if one.ctypes.data % 64 == 0]
    adopted = [tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in fit]
    chunks_of_made = [chunks.chunk_of(device, one) for one in made]
    places = [one.begin for one in chunks_of_made if one]
    region = chunks.chunk_of(device, whole)
    return {
        "near": any(abs(one - array.ctypes.data) < 2**26 for one in places for array in fit),
        "chunks": all(one and 0 <= one.nbytes - 800_000 < 800_000 for one in chunks_of_made),
        "all of the made": all(chunks.holds(device, one) for one in made),
        "what fills a region": region is not None and region.nbytes == 2**24,
        "constants": all(chunks.holds(device, one) == is_there for one, is_there in constants),
        "copies": any(is_there for _, is_there in constants),
        "all that fill a region": all(
            regions.hold(device, begin, 3_000_000, 2**26) for begin in _blocks(2**22)
        ),
        "again": all(chunks.holds(device, one) == is_there for one, is_there in constants),
        "one of the adopted": any(chunks.holds(device, one) for one in adopted),
        "as large as a region": any(array.nbytes == 2**24 for array in fit),
    }


def _blocks(nbytes: int) -> list[int]:
    """Addresses of what the C library gives where TensorFlow asks for a region."""
    libc, found = ctypes.CDLL(None), []
    for _ in range(8):
        pointer = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(pointer), 64, nbytes) == 0
        found.append(int(pointer.value or 0))
    return found


def _constant(device: str, array: Any) -> tuple[Any, bool]:
    """A tensor of an array, and whether the allocator made a copy for it.

    That depends on where another copy, NumPy's, begins, as does whether it is left there.
    """
    import tensorflow as tf

    before, _ = memory.memory_info(device)
    made = tf.constant(array)
    return made, memory.memory_info(device)[0] - before >= array.nbytes


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
    lay = list(filter(None, (chunks.chunk_of(device, one) for one in (first, second))))
    first, adopted = tf.random.normal((2**14,)), tensor_of(np.zeros(2**15, np.float32))
    del second
    with in_their_places([tenant], (first, adopted), {}, (first, adopted)):
        in_step, _ = memory.memory_info(device)
    (its_chunk,) = (chunks.chunk_of(device, one) for one in tenant.stand_ins.values())
    assert its_chunk
    between, _ = memory.memory_info(device)
    with in_their_places([tenant], (first, adopted), {}, (first, adopted)):
        same = [chunks.chunk_of(device, one) for one in tenant.stand_ins.values()]
    del adopted
    return {
        "held between steps": in_step == between >= before,
        "beside the last": len(lay) == 2
        and not any(one.begin < its_chunk.end and its_chunk.begin < one.end for one in lay),
        "where it was": same == [its_chunk],
        "gone with its tensor": between - memory.memory_info(device)[0],
    }


def arguments_let_go_before() -> dict[str, list[bool]]:
    """Whether what stands in for an argument lies where the last one did, or elsewhere.

    Of two steps each: the caller lets go of the first batch before he makes the next, or after.
    """
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    found: dict[str, list[bool]] = {"let go": [], "held": []}
    tf.random.normal((2**20,))  # what is free now is one chunk
    for is_let_go in (True, False, True):
        first, second = heap.buffer(device, 2**16), heap.buffer(device, 2**17)
        tenant = Tenant("step", device, NotImplemented)
        with in_their_places([tenant], (first, second), {}, (first, second)):
            pass
        lay = chunks.place_of(device, second)
        tenant.in_use, _ = memory.memory_info(device)
        if is_let_go:
            del first, second
        other, adopted = heap.buffer(device, 2**16), tensor_of(np.zeros(2**17, np.uint8))
        if not is_let_go:
            del first, second
        with in_their_places([tenant], (other, adopted), {}, (other, adopted)):
            pass
        (lies,) = (chunks.place_of(device, one) for one in tenant.stand_ins.values())
        found["let go" if is_let_go else "held"].append(lies == lay)
        del other, adopted
    return found


def where_arguments_lie() -> dict[str, Any]:
    """Arguments in chunks of their size, in a larger one, and in NumPy's memory, as planned for."""
    import numpy as np
    import tensorflow as tf

    device = devices.full_name("CPU:0")
    tf.random.normal((2**20,))  # what is free now is one chunk
    hole, wall = tf.random.normal((2**15 + 2**14,)), tf.random.normal((64,))
    small, other_wall = tf.random.normal((2**10,)), tf.random.normal((64,))
    first, second = tf.random.normal((2**16,)), tf.random.normal((2**16,))
    unsure, is_copy = _constant(device, np.zeros(2**17, np.uint8))
    constants = [unsure]
    while not is_copy:
        unsure, is_copy = _constant(device, np.zeros(2**17, np.uint8))
        constants.append(unsure)
    adopted = tensor_of(np.zeros(2**17, np.float32))
    del small, hole
    with heap.traced(device) as events:
        padded = heap.buffer(device, 2**17)  # in the hole
    (given,) = (one.given for one in events if one.requested == 2**17)
    args = first, second, padded, unsure, adopted
    function = tf.function(lambda *args: [tf.reduce_sum(tf.cast(x, tf.float32)) for x in args])
    concrete = function.get_concrete_function(*args)
    flat = flat_arguments(concrete, *canonical_arguments(function, args, {}))
    captured = with_passed(capture(concrete, device=device, args=flat), flat, (args, {}))
    del flat
    with stand_ins(captured, device) as held:
        found = heap.measured(device)
        assert found
        known = lying(captured, device, held, found)
        (its_place,) = (chunks.chunk_of(device, one) for one in held.values())
        assert its_place
        tenant = Tenant("step", device, NotImplemented)
        keep(tenant, captured, held)
    kept = [chunks.chunk_of(device, one) for one in tenant.stand_ins.values()] == [its_place]
    before, _ = memory.memory_info(device)
    del args, adopted
    assert all(one is not None for one in (wall, other_wall))
    return {
        "passed": {one.name: one.is_there for one in captured.passed},
        "lying": {one.name: (one.nbytes, one.most) for one in known},
        "made": [2**18, 2**18, given, its_place.nbytes],
        "beside": [one.name for one in known if one.is_beside],
        "above": [one.above for one in known] == sorted((one.above for one in known), reverse=True),
        "kept": kept,
        "gone with its tensor": before - memory.memory_info(device)[0],
    }
