"""Functions of data sets are counted as a bound that their runs do not exceed."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfmem
from tests.helpers.limited import run_json  # placeholder
