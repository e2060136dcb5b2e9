"""Every error tfmem raises on purpose. Each message says what, where, and what to do about it."""


class Error(Exception):
    """Base of all errors that tfmem raises on purpose; those of TensorFlow pass as they are."""


class BudgetError(Error):
    """The budget cannot be met; the message gives the least reachable peak and what makes it up.

    Attributes:
      least_bytes: that peak; None if it is not the peak that is in the way.
    """

    def __init__(self, message: str, least_bytes: int | None = None) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


class HostMemoryError(Error):
    """The host has too little memory for what would leave the device, or the host is gone."""


class UnsupportedFunctionError(Error):
    """The function cannot be optimised (for example ``jit_compile=True``); it is left as it was."""


class RewriteError(Error):
    """A rewritten graph breaks an invariant: a bug of tfmem, never of the user."""
