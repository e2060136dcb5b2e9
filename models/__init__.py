"""The models that tfmem is measured on, and the benchmarks that measure it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # tables, not thousands of allocator lines
