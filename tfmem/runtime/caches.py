"""What TensorFlow takes a CPU's caches to be, told by kernels that work in parts of that size."""

from __future__ import annotations

import tensorflow as tf

from tfmem.bridge.asked import Question
from tfmem.runtime import devices
from tfmem.runtime.asking import ask

_PLACES, _FEATURES = 4, 1024
"""Of a side of the volume, and of its values, by which the cache is asked about: the more features,
the less is gathered for the same work."""

_UNIT, _USUAL = 2**19, 2**25
"""Bytes in whose multiples caches are told; those of a cache where nothing tells."""


def last_level() -> int:
    """Bytes that TensorFlow takes the last level of a CPU's cache to have.

    Eigen reads them from the processor: for AMD's, of all its dies together, whatever Linux says
    of one. So many volumes are gathered at a time by the gradient of a convolution that is made to
    gather hardly anything of each; one of float64, which oneDNN never computes.
    """
    places, work = _PLACES**3, _PLACES**3 * (1 + _FEATURES) + _FEATURES
    node_def = tf.compat.v1.NodeDef(op="Conv3DBackpropFilterV2")
    for name in ("strides", "dilations"):
        node_def.attr[name].list.i.extend([1] * 5)
    node_def.attr["padding"].s, node_def.attr["data_format"].s = b"SAME", b"NDHWC"
    node_def.attr["T"].type = tf.float64.as_datatype_enum
    volume, kernel = (1, *[_PLACES] * 3), (1, 1, 1, 1, _FEATURES)
    answer = ask(
        Question(
            node_def.op,
            node_def.SerializeToString(deterministic=True),
            ((tf.float64, (*volume, 1)), (tf.int32, (5,)), (tf.float64, (*volume, _FEATURES))),
            ((1, kernel),),
            ((tf.float64, kernel),),
            devices.full_name("CPU:0"),
        )
    )
    gathered = sum(answer.scratch) // tf.float64.size if answer else 0
    told = gathered // places * work * tf.float64.size // _UNIT * _UNIT
    return told or _USUAL
