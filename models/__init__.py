"""The models that tfmem is measured on, and the benchmarks that measure it."""

import os

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def _import_quietly() -> None:
    """Imports TensorFlow without the lines that 2.21 writes before it has read its log level."""
    errors = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        import tensorflow  # noqa: F401 - loaded now, so that it is quiet
    finally:
        os.dup2(errors, 2)
        os.close(errors)


if _LEVEL not in os.environ:
    os.environ[_LEVEL] = "3"  # tables, not thousands of allocator lines
    _import_quietly()
