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


class OutOfMemoryError(Error):
    """A step ran out of the device's memory although a budget was set for it.

    TensorFlow's own error is its `__cause__`.

    Attributes:
      is_restored: whether the variables were given back the values that they had before the step.
      updated: names of the variables that the step may have updated before it failed, if they were
        not given their values back.
    """

    def __init__(
        self, message: str, *, is_restored: bool = False, updated: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.is_restored = is_restored
        self.updated = updated


class HostMemoryError(Error):
    """The host has too little memory for what would leave the device, or the host is gone."""


class UnsupportedFunctionError(Error):
    """The function cannot be optimised (for example ``jit_compile=True``); it is left as it was.

    Attributes:
      node: of the function, because of which; "" if it is none in particular.
    """

    def __init__(self, message: str, node: str = "") -> None:
        """Takes what is said, and the name of the node."""
        super().__init__(message)
        self.node = node


class RewriteError(Error):
    """A bug of tfmem, never of the user: a rewritten graph breaks an invariant, for example."""
