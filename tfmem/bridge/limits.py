"""Limits of this process's own devices, as its context made them."""

from __future__ import annotations

# Private parts of TensorFlow; seen to work with `report.doctor.TESTED`. The public list of devices
# with limits makes devices of its own, whose limits are not those of this process's configuration.
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session as session
from tensorflow.python.eager import context


def limits() -> dict[str, int]:
    """Most bytes that each device's allocator hands out, by full name; 0 where it has no limit."""
    known = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    return {
        session.TF_DeviceListName(known, i): session.TF_DeviceListMemoryBytes(known, i)
        for i in range(session.TF_DeviceListCount(known))
    }
