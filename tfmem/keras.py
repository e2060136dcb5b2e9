"""`MemoryBudget`: a callback that plans the steps of Keras 3 and tf-keras for a budget.

fit begins -> Keras's own step on one batch -> `optimize` -> stands in for the model's function
of an iterator -> fit ends by itself: the model is as it was
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfmem.api import Optimized, optimize
from tfmem.bridge.keras_models import (
    Hooks,
    library,
    list_of,
    one_step,
    replaced,
    replica_devices,
    steps_per_execution,
)
from tfmem.errors import Error
from tfmem.options import checked_options
from tfmem.plan import Plan
from tfmem.planning.request import TECHNIQUES
from tfmem.report.report import Report
from tfmem.runtime import memory
from tfmem.runtime.locks import uninterrupted
from tfmem.units import format_bytes

_log = logging.getLogger("tfmem")


class MemoryBudget(Hooks):
    """Trains a Keras model within a predicted budget of the device's memory.

        model.fit(data, callbacks=[tfmem.keras.MemoryBudget("6GiB")])

    Works with models of Keras 3 (TensorFlow backend) and of tf-keras. The train step is planned at
    the first batch, before it runs; if the budget cannot be met, `tfmem.BudgetError` says so and
    nothing was trained. XLA (`jit_compile`) is off for what is planned, and with
    `steps_per_execution` the steps run one by one. When `fit` has ended, by itself or by an
    exception of a step, the data, another callback or the keyboard, the model has its own functions
    again, and its variables are where they were if they have room there. (An exception that is kept
    with its traceback may keep `fit` from ending.)

    Each epoch's logs get `tfmem/peak_bytes`, the most that the device's allocator held in a step so
    far (where it keeps statistics), and `tfmem/predicted_peak_bytes`. Callbacks that stand before
    this one in the list do not see them.
    """

    def __init__(
        self,
        budget: float | str | None = None,
        *,
        evaluate: bool = False,
        predict: bool = False,
        **options: Any,
    ) -> None:
        """Takes what `tfmem.optimize` takes, and which of Keras's functions are planned.

        Args:
          budget: most bytes in use on each device at any moment of a step; see `tfmem.optimize`.
          evaluate: whether evaluation is planned too, in `fit` and in `evaluate`.
          predict: whether `predict` is planned too.
          **options: the others of `tfmem.optimize`; `device` is by default those of the model's
            distribution strategy.

        Raises:
          tfmem.Error: an argument is not valid.
        """
        self._options = {"budget": budget, **options}
        checked_options(**self._options)  # what is not valid is said now
        self._planned = {"train": True, "test": evaluate, "predict": predict}
        self._steps: dict[str, _Steps] = {}
        self._undo: dict[str, contextlib.ExitStack] = {}
        self._ends: dict[str, weakref.finalize[..., Any]] = {}
        self._peak = 0
        self._has_told = self._has_told_excess = False

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Plans of the train step, one for each shape of a batch; () before the first batch."""
        return self._steps["train"].plans if "train" in self._steps else ()

    def reports(self) -> tuple[Report, ...]:
        """A report of the train step for each of the plans."""
        return self._steps["train"].reports() if "train" in self._steps else ()

    def set_model(self, model: Any) -> None:
        """Takes the model; raises `tfmem.Error` if it is none that can be planned."""
        library(model)
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts the planned step in the place of the model's train function."""
        self._give_back()
        self._peak = 0
        self._begin("train")
        self._reset_peak()

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the model its own train function back, and its variables their places."""
        self._note_peak()
        self._end("train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the peaks to the logs."""
        self._note_peak()
        plans = self._device_plans()
        if logs is None or not plans:
            return
        if self._peak:
            logs["tfmem/peak_bytes"] = self._peak
        logs["tfmem/predicted_peak_bytes"] = max(plan.peak_bytes for plan in plans)
        self._tell_excess(min((plan.budget for plan in plans if plan.budget), default=self._peak))

    def on_test_begin(self, logs: Any = None) -> None:
        """Puts the planned evaluation in the place of the model's, if that was asked for."""
        self._note_peak()
        self._begin("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Gives the model its own evaluation back."""
        self._end("test")
        self._reset_peak()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Puts the planned prediction in the place of the model's, if that was asked for."""
        self._begin("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """Gives the model its own prediction back."""
        self._end("predict")

    def _begin(self, kind: str) -> None:
        self._end(kind)
        if not self._planned[kind]:
            return
        self._check()
        if kind not in self._steps or self._steps[kind].occasion != self._occasion(kind):
            self._steps[kind] = self._made(kind)
        undo = self._undo[kind] = contextlib.ExitStack()
        undo.callback(self._restore_variables, kind)
        undo.enter_context(replaced(self.model, f"{kind}_function", self._steps[kind]))
        if (called_by := list_of(self)) is not None:
            self._ends[kind] = weakref.finalize(called_by, self._end, kind)
            self._ends[kind].atexit = False

    def _occasion(self, kind: str) -> tuple[Any, ...]:
        """What a planned step is good for: compiling a model makes its functions anew."""
        return self.model, getattr(self.model, f"{kind}_function"), "train" in self._undo

    def _made(self, kind: str) -> _Steps:
        model, options = self.model, dict(self._options)
        if options.get("device") is None:
            options["device"] = replica_devices(model)
        if "train" in self._undo:
            # What this placed would go home after each evaluation, and training be planned anew.
            asked = options.get("techniques") or TECHNIQUES
            options["techniques"] = [name for name in asked if name != "place"]
        return _Steps(
            self._occasion(kind),
            one_step(library(model), model, kind),
            options,
            size=lambda: steps_per_execution(model),
            join=_concatenated if kind == "predict" else lambda outputs: outputs[-1],
            prepared=self._reset_peak,
            failed=self._give_back,
        )

    def _end(self, kind: str) -> None:
        if kind in self._ends:
            self._ends.pop(kind).detach()
        with uninterrupted():
            if kind in self._undo:
                self._undo.pop(kind).close()

    def _give_back(self) -> None:
        for kind in tuple(self._undo):
            self._end(kind)

    def _restore_variables(self, kind: str) -> None:
        optimized = self._steps[kind].optimized
        try:
            if optimized:
                optimized.restore_variables()
        except Error as error:
            _log.warning("variables stay on the host: %s", error)

    def _check(self) -> None:
        model = self.model
        if model.run_eagerly or tf.config.functions_run_eagerly():
            raise Error(
                f"{model.name} runs eagerly, so there is no graph to plan; compile it with "
                "run_eagerly=False, and leave tf.config.run_functions_eagerly off"
            )
        if model.jit_compile and not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: jit_compile is off while tfmem plans: what XLA compiles never reaches the "
                "executor that a plan steers",
                model.name,
            )

    def _tell_excess(self, budget: int) -> None:
        if self._peak > budget and not self._has_told_excess:
            self._has_told_excess = True
            _log.warning(
                "%s: %s were in use where the budget is %s: more than was predicted (the reports "
                "tell what was done), or after planning something else took memory on the device "
                "(buffers of tf.data on a CPU, another model); leave it room",
                self.model.name,
                format_bytes(self._peak),
                format_bytes(budget),
            )

    def _note_peak(self) -> None:
        for device in self._scarce():
            with contextlib.suppress(Error):  # the allocator keeps no statistics
                self._peak = max(self._peak, memory.memory_info(device)[1])

    def _reset_peak(self) -> None:
        for device in self._scarce():
            with contextlib.suppress(Error):
                memory.reset_peak(device)

    def _scarce(self) -> set[str]:
        return {plan.device for plan in self._device_plans()}

    def _device_plans(self) -> list[Plan]:
        return [plan for first in self.plans for plan in (first, *first.others)]


@dataclass
class _Steps:
    """Stands in for a model's function of an iterator: takes batches, runs the planned step.

    Attributes:
      occasion: what it was made for.
      step: Keras's own, on one batch.
      options: of `optimize`.
      size: how many batches a call takes.
      join: makes one result of theirs.
      prepared: called when a plan is there and its first step has not run yet.
      failed: called before an error leaves.
      optimized: the step, from the first batch on.
      spec: of the batches that it takes; None for any.
    """

    occasion: tuple[Any, ...]
    step: Callable[[Any], Any]
    options: Mapping[str, Any]
    size: Callable[[], int]
    join: Callable[[list[Any]], Any]
    prepared: Callable[[], None]
    failed: Callable[[], None]
    optimized: Optimized | None = None
    spec: Any = None
    _known: int = 0

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those made so far."""
        return self.optimized.plans if self.optimized else ()

    def reports(self) -> tuple[Report, ...]:
        """Those of the plans."""
        return self.optimized.reports() if self.optimized else ()

    def __call__(self, batches: Iterable[Any]) -> Any:
        try:
            self._make_for(getattr(batches, "element_spec", None))
            outputs = [self._run(batch) for batch in itertools.islice(batches, self.size())]
        except BaseException:
            self.failed()
            raise
        if not outputs:
            raise StopIteration
        return self.join(outputs)

    def _make_for(self, spec: Any) -> None:
        """Makes the step for batches, unless the one there is takes them, too."""
        if self.optimized is not None:
            if spec is self.spec or _is_within(spec, self.spec):
                return
            self.optimized.restore_variables()
        self.optimized = optimize(_traceable(self.step, spec), **self.options)
        self.spec, self._known = spec, 0

    def _run(self, batch: Any) -> Any:
        assert self.optimized is not None
        batch = tf.nest.map_structure(_without_optional, batch)
        count = self.optimized.prepare(batch)
        if count != self._known:
            self._known = count
            self.prepared()
        return self.optimized(batch)


def _traceable(step: Callable[[Any], Any], spec: Any) -> Any:
    """The step, with the dimensions that the iterator of its batches leaves open left open.

    As in Keras, all batches run in one trace: one plan, and one state of each random op.
    """
    return tf.function(step, input_signature=[spec] if _is_whole(spec) else None)


def _is_whole(spec: Any) -> bool:
    """Whether batches can be told by it, which have all of their parts."""
    parts = tf.nest.flatten(spec)
    return bool(parts) and all(_is_there(part) for part in parts)


def _is_within(spec: Any, known: Any) -> bool:
    """Whether a step that was made for batches takes others as well."""
    if not _is_whole(known):
        return True
    try:
        tf.nest.assert_same_structure(spec, known)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(known), strict=True)
    return all(one.is_subtype_of(other) for one, other in pairs)


def _is_there(spec: Any) -> bool:
    return isinstance(spec, tf.TypeSpec) and not isinstance(spec, tf.OptionalSpec)


def _without_optional(item: Any) -> Any:
    """Keras 3 stands an empty Optional for a part of a batch that is None."""
    return None if isinstance(item, tf.experimental.Optional) else item


def _concatenated(outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)
