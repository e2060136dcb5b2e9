"""Models of Keras 3 and tf-keras: their hooks, their own steps, what they do not tell openly."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from tfmem.errors import Error


class Hooks:
    """A callback of either Keras at whose hooks nothing is done.

    Neither library's `Callback` is the base, so that neither needs to be installed for the other.
    """

    async_safe = True
    """Asked by Keras 3: batches may go on while other callbacks are called."""

    model: Any = None

    def set_params(self, params: Any) -> None:
        """Told how long training will last."""

    def set_model(self, model: Any) -> None:
        """Told whom it is to watch."""
        self.model = model

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is done here."""

    on_epoch_begin = on_epoch_end = on_train_begin = on_train_end = _nothing
    on_test_begin = on_test_end = on_predict_begin = on_predict_end = _nothing
    on_batch_begin = on_batch_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_batch_begin = on_test_batch_end = _nothing
    on_predict_batch_begin = on_predict_batch_end = _nothing

    def _no(self) -> bool:
        return False

    # Asked by tf-keras.
    _implements_train_batch_hooks = _implements_test_batch_hooks = _no
    _implements_predict_batch_hooks = _no


def list_of(callback: Any) -> Any:
    """The list that calls a callback now; None if nothing tells.

    It lives as long as the `fit`, `evaluate` or `predict` that made it, whatever ends that: no hook
    is called where data, another callback or the keyboard does.
    """
    own = inspect.currentframe()
    frame = own.f_back if own else None
    try:
        while frame is not None:
            caller = frame.f_locals.get("self")
            called = getattr(caller, "callbacks", None)
            if isinstance(called, list) and any(one is callback for one in called):
                return caller
            frame = frame.f_back
        return None
    finally:
        del own, frame  # or they would refer to themselves, and to the list


def library(model: Any) -> str:
    """ "keras" or "tf_keras", whichever the model is of.

    Raises:
      tfmem.Error: it is a model of neither, or Keras does not run on TensorFlow.
    """
    names = {base.__module__.split(".")[0] for base in type(model).__mro__}
    found = next((name for name in ("tf_keras", "keras") if name in names), None)
    if found is None:
        raise Error(
            f"{type(model).__name__} is no model of Keras 3 or tf-keras; use tfmem.optimize on its "
            "train step"
        )
    backend = sys.modules["keras"].backend.backend() if found == "keras" else "tensorflow"
    if backend != "tensorflow":
        raise Error(
            f"Keras runs on {backend}; tfmem plans TensorFlow's graphs: set "
            "KERAS_BACKEND=tensorflow before Keras is imported"
        )
    return found


def one_step(named: str, model: Any, kind: str) -> Callable[[Any], Any]:
    """Keras's own function of one batch, not compiled by XLA.

    Keras makes functions of an iterator; they are given one that ends after the batch. A model's
    own that takes more of them than one at a call raises tfmem.Error when it is traced.

    Args:
      named: as of `library`.
      model: compiled.
      kind: "train", "test" or "predict".
    """
    make, name = f"make_{kind}_function", f"{kind}_function"
    alone = partial(_alone, f"{type(model).__name__}.{make}")
    if named == "keras":
        with changed(model, jit_compile=False, steps_per_execution=1, **{name: None}):
            getattr(model, make)()
            function = getattr(model, name)
        if kind == "predict":
            return lambda batch: function([batch])
        return lambda batch: alone(function, batch)

    with changed(model, _steps_per_execution=None, **{name: None}):
        function = getattr(model, make)()
        function = getattr(function, "python_function", function)

    def step(batch: Any) -> Any:
        with changed(model, _jit_compile=False):  # read while the step is traced
            return alone(function, batch)

    return step


class _Single:
    """An iterator of one batch, which no loop of TensorFlow takes again in each turn."""

    def __init__(self, batch: Any) -> None:
        self._batches = [batch]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        graph = tf.compat.v1.get_default_graph()
        while graph is not None and type(graph).__name__ != "WhileBodyFuncGraph":
            graph = getattr(graph, "outer_graph", None)
        if graph is not None or not self._batches:
            raise StopIteration
        return self._batches.pop()


def _alone(made_by: str, function: Callable[[Any], Any], batch: Any) -> Any:
    """What a function of an iterator gives of one batch, where it takes no more than that."""
    try:
        return function(_Single(batch))
    except StopIteration as error:
        raise Error(
            f"{made_by} makes a function that takes several batches at a call; let it take one, "
            "and use compile(steps_per_execution=...), or tfmem.optimize on your own train step"
        ) from error


@contextlib.contextmanager
def changed(model: Any, **values: Any) -> Iterator[None]:
    """Attributes of a model are others for a while.

    They are set past the model's own `__setattr__`, which would take a variable for a new weight.
    """
    before = {name: getattr(model, name) for name in values}
    try:
        for name, value in values.items():
            object.__setattr__(model, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(model, name, value)


@contextlib.contextmanager
def replaced(model: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a model is another until something else takes the place of that.

    So compiling a model, or making its functions anew, ends it.
    """
    before = getattr(model, name)
    object.__setattr__(model, name, value)
    try:
        yield
    finally:
        if getattr(model, name) is value:
            object.__setattr__(model, name, before)


def steps_per_execution(model: Any) -> int:
    """How many batches the model's own functions take at a call."""
    size = getattr(model, "_steps_per_execution", None)
    if size is None:
        size = getattr(model, "steps_per_execution", None)
    if size is None:
        return 1
    return int(model.distribute_strategy.experimental_local_results(size)[0])


def replica_devices(model: Any) -> list[str] | None:
    """The devices of a model's distribution strategy; None where it has one replica.

    Raises:
      tfmem.Error: the strategy is not one of several devices of this process.
    """
    strategy = model.distribute_strategy
    kinds = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
    if strategy.num_replicas_in_sync == 1:
        return None
    if type(strategy) not in kinds:
        raise Error(
            f"{type(strategy).__name__} spreads the model over machines, which tfmem cannot plan; "
            "use MirroredStrategy on the devices of one"
        )
    return list(strategy.extended.worker_devices)
