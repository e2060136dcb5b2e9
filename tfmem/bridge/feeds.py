"""Iterators of data sets, whose threads make the next batches in the memory of the CPU.

    the caller takes a batch -> threads make the next one -> quiet -> a step -> takes a batch ...

The allocator serves them at any moment, also in the middle of what a step uses; then a layout that
every step begins with is another one in each, and what finds no room there is a fatal error. So
steps wait until the iterators are quiet. How many elements each stage of a pipeline has made,
TensorFlow tells (`IteratorGetModelProto`, of pipelines that it tunes: `options.autotune`); a stage
is through when it has made as many for a batch as it made for those before.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

# Private part of TensorFlow; seen to work with `report.doctor.TESTED`.
from tensorflow.core.framework import model_pb2

from tfmem.bridge.instances import instances, references
from tfmem.runtime import devices

QUIET = 0.001
"""Seconds without a new element after which stages that are through rest. Their last elements may
still be copied. More costs that in each step, less meets a copy now and then."""

PATIENCE = 0.05
"""Seconds without a new element after which any stage counts as resting: the input has ended, or a
batch takes fewer elements than the last. More waits longer there, less cannot wait for elements
that take long to make."""

LATE = 0.02
"""Seconds of a core that threads which still run, or wait for one, are given besides: they may be
anybody's. Seconds that passed would not do: a busy machine lets a thread wait for longer than any
patience before it makes its first row."""

LONGEST = 10.0
"""Seconds that a step waits at most, as the allocator does for memory."""

_POLL = 0.0003
"""Seconds between two looks, each of 10 microseconds."""

_TICKS = os.sysconf("SC_CLK_TCK")
"""Of a second, in which the system counts what a thread has run."""

_BATCHING = {"BatchV2", "PaddedBatchV2", "ParallelBatch"}
_CHOOSING = {"FiniteSkip", "FiniteTake", "Shard", "Shuffle", "ShuffleAndRepeat"}
_REPEATING = {"FiniteRepeat", "ForeverRepeat", "MemoryCache", "MemoryCacheImpl"}
_PASSING = {"Root", "Prefetch", "Zip", "Concatenate", *_CHOOSING, *_REPEATING}
_HANDING_ON = {*_PASSING, *_BATCHING}
"""Stages of pipelines that make no rows, but pass on those that they are given."""

_SOURCES = {"FromTensor", "Random", "Range"}
_MAPPING = {"Filter", "Map", "ParallelMap", "ParallelMapV2", "Scan"}
_WHOLE = {*_PASSING, *_SOURCES, *_MAPPING, "DirectedInterleave"}
"""Stages of pipelines whose elements are whole batches, if there are no others."""

_SLICES, _ALIGNED = "TensorSlice", 64
"""The stage that gives out rows of a tensor where they lie, if their bytes are a multiple of this;
it copies others (`MaybeCopySubSlice` of TensorFlow)."""

_Made = dict[int, int]
"""Elements that each stage of a pipeline has made, by its number."""


class Feeds:
    """The iterators that are held, found anew when one of them is gone or another is made."""

    def __init__(self) -> None:
        self._feeds: list[_Feed] = []
        self._find()

    def _find(self) -> None:
        self._references = references(tf.data.Iterator)
        known = {id(feed.iterator): feed for feed in self._feeds if not feed.is_gone}
        self._feeds = [known.get(id(one)) or _Feed(one) for one in _held()]

    def settle(self) -> None:
        """Waits until none of them makes anything, as far as they tell; for `LONGEST` at most."""
        if tf.inside_function():
            return
        is_changed = self._references != references(tf.data.Iterator)
        if is_changed or any(feed.is_gone for feed in self._feeds):
            self._find()
        begin = since = time.monotonic()
        made = [feed.made() for feed in self._feeds]
        if not any(made) or all(map(_Feed.has_rested, self._feeds, made)):
            return
        now, others = begin, _Others()
        while now - begin < LONGEST:
            is_through = all(map(_Feed.is_through, self._feeds, made))
            if now - since >= (QUIET if is_through else PATIENCE) and others.have_run():
                break
            time.sleep(_POLL)
            before, made = made, [feed.made() for feed in self._feeds]
            now = time.monotonic()
            if made != before:
                since, others = now, _Others()
        for feed, count in zip(self._feeds, made, strict=True):
            feed.rest(count)


class _Others:
    """The other threads of the process, and how long each that could run has run since this."""

    def __init__(self) -> None:
        self._own = threading.get_native_id()
        self._before: dict[int, float] = {}  # seconds of a core, by thread, when it was met

    def have_run(self) -> bool:
        """Whether each that could run now has run for `LATE`; True if the system does not tell."""
        running = dict(self._running())
        for thread, seconds in running.items():
            self._before.setdefault(thread, seconds)
        return all(seconds - self._before[one] >= LATE for one, seconds in running.items())

    def _running(self) -> Iterator[tuple[int, float]]:
        """Threads that run or wait for a core, with the seconds that each has run so far."""
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError):  # it has ended
                    text = Path(f"/proc/self/task/{name}/stat").read_text()
                    state, *numbers = text.rpartition(")")[2].split()  # behind the thread's name
                    if state == "R" and int(name) != self._own:
                        yield int(name), (int(numbers[10]) + int(numbers[11])) / _TICKS


class _Feed:
    """An iterator, and what it had made when it rested."""

    def __init__(self, iterator: tf.data.Iterator) -> None:
        self._reference = weakref.ref(iterator)
        self._rested: _Made = {}
        self._each: _Made = {}  # by stage, for one element that the caller takes
        self._root = 0

    @property
    def iterator(self) -> tf.data.Iterator | None:
        """None once it is gone."""
        return self._reference()

    @property
    def is_gone(self) -> bool:
        return self.iterator is None

    def made(self) -> _Made:
        """What it has made by now; nothing if it does not tell."""
        model = _model(self.iterator)
        self._root = model.output
        return {number: node.num_elements for number, node in model.nodes.items()}

    def has_rested(self, made: _Made) -> bool:
        """Whether nothing was made since it rested."""
        return made == self._rested

    def is_through(self, made: _Made) -> bool:
        """Whether each stage has made what it made before for as many elements taken."""
        if not made:
            return True
        taken = made[self._root] - self._rested.get(self._root, 0)
        known = made.keys() & self._each.keys() & self._rested.keys()
        through = (made[one] - self._rested[one] >= taken * self._each[one] for one in known)
        return bool(known) and all(through)

    def rest(self, made: _Made) -> None:
        """Notes what it has made, now that it rests."""
        taken = made.get(self._root, 0) - self._rested.get(self._root, 0)
        if taken and self._rested:
            for stage in made.keys() & self._rested.keys():
                each = (made[stage] - self._rested[stage]) // taken
                self._each[stage] = max(each, self._each.get(stage, 0))
        self._rested = made


def rows_kept(nbytes: int) -> int:
    """How many rows of a batch the stages of pipelines keep, such as one that shuffles them.

    Args:
      nbytes: of a row, all its components together.
    """
    stages = (stage for one in _held() for stage in _model(one).nodes.values())
    return sum(
        stage.buffered_elements
        for stage in stages
        if nbytes <= stage.buffered_bytes / (stage.buffered_elements or 1) <= 1.5 * nbytes
    )


def rows_made(rows: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those of some rows of batches that pipelines make, and neither slice nor make as a whole.

    Args:
      rows: bytes of a row of each component, and how many a batch has.
    """
    models = [model.nodes.values() for model in map(_model, _held())]
    batching = [stages for stages in models if not stages or {one.name for one in stages} - _WHOLE]
    if models and not batching:
        return iter(())
    are_sliced = all(map(len, batching)) and all(
        stage.name in _HANDING_ON if stage.inputs else stage.name == _SLICES
        for stages in batching
        for stage in stages
    )
    return ((size, count) for size, count in rows if not are_sliced or size % _ALIGNED)


def has_begun(handle: tf.Tensor) -> bool:
    """Whether an iterator, by its handle, has made an element; True if it does not tell."""
    model = _model(handle)
    return not model.nodes or model.nodes[model.output].num_elements > 0


def _model(iterator: tf.data.Iterator | tf.Tensor | None) -> Any:
    """What an iterator tells of its stages; an empty ModelProto if it is gone or does not tell."""
    model = model_pb2.ModelProto()
    if iterator is not None:
        with tf.init_scope(), contextlib.suppress(tf.errors.OpError, ValueError):
            (handle,) = tf.nest.flatten(iterator, expand_composites=True)
            if tf.is_symbolic_tensor(handle):  # of an iterator inside a function
                return model
            model.ParseFromString(tf.raw_ops.IteratorGetModelProto(iterator=handle).numpy())
    return model


def _held() -> list[tf.data.Iterator]:
    """The iterators that somebody holds."""
    return instances(tf.data.Iterator)


def is_fed(device: str) -> bool:
    """Whether iterators that somebody holds make batches in the memory of a device."""
    return device == devices.full_name("CPU:0") and bool(_held())
