"""Functions of data sets are counted as a bound that their runs do not exceed."""

from __future__ import annotations
