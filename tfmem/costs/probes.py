"""What a device computes and a link moves in a second, by trying.

Copies between a GPU and its own host are probed as plans make them, by the GPU's own kernels
(`passes.transfer`); others cross as the runtime has them do, by Send and Recv.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tfmem.costs.types import Link, Rates
from tfmem.graph import device_names
from tfmem.graph.verify import FROM_HOST, TO_HOST

_PRODUCTS, _SMALL_NODES, _PROBES = 4, 256, 5
"""How often probes work on a matrix, how many small nodes they run, and repetitions, of which the
fastest counts. More are steadier; all of them take some seconds, once on a machine."""

_COPIES, _TRIPS = 5, 9
"""Large copies in a row, and small ones there and back. What a call takes besides goes away in the
difference to a single one."""

_LONGEST = 0.5
"""Seconds that a call of a probe may take; each is called a few times."""

_SIDES = {"CPU": (1024, 512, 256), "GPU": (4096, 2048, 1024, 512)}
"""Sides of the square matrices that a kind of device is probed with: smaller ones where it is slow
or nearly full, which tell less of its speed."""

BYTES = 28
"""What a probe has in use at most, times the square of its side."""

_LEAST = 1e-9
"""Seconds that anything takes at least, where the clock shows less."""


def probe_sides(device: str) -> tuple[int, ...]:
    """Sides of the matrices that a device, given by its full name, is probed with, if it has room.

    The largest first, but for those whose products would take it longer than `_LONGEST` seconds:
    a slow device would be probed for minutes.

    Raises:
      tf.errors.ResourceExhaustedError: it has no room for the smallest.
    """
    *larger, least = _SIDES[device_names.kind(device)]

    def product(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return tf.matmul(value, value)[-1, -1]

    with tf.device(device):
        square = tf.zeros([least, least])
    seconds = _PRODUCTS * _fastest(product, square) / least**3
    return (*(side for side in larger if seconds * side**3 <= _LONGEST), least)


def probe_rates(device: str, side: int) -> Rates:
    """Measures how fast a device, given by its full name, computes and moves bytes.

    Raises:
      tf.errors.ResourceExhaustedError: it has no room for some matrices of this side.
    """

    def nothing(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return value[-1, -1]

    def small(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            one = value[-1, -1]
            for _ in range(_SMALL_NODES):
                one = tf.sin(one)
            return one

    def sums(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            found = value
            for _ in range(_PRODUCTS):
                found = tf.maximum(found, value)
            return found[-1, -1]

    with tf.device(device):
        square = tf.zeros([side, side])
        larger = tf.zeros([2 * side, side])  # than most caches
    empty = _fastest(nothing, square)
    multiplying = max((_fastest(_computing(device, side), square) - empty) / _PRODUCTS, _LEAST)
    adding = max((_fastest(sums, larger) - empty) / _PRODUCTS, _LEAST)
    return Rates(
        flops=2 * side**3 / multiplying,
        nbytes=3 * 2 * 4 * side**2 / adding,
        start=max((_fastest(small, square) - empty) / _SMALL_NODES, 1e-7),
    )


def probe_link(device: str, host: str, side: int) -> Link:
    """Measures copies between two devices, given by full names: each way alone, then both at once.

    Raises:
      tf.errors.ResourceExhaustedError: one of them has no room for some matrices of this side.
    """
    probe = _by_kernels if device_names.copies(device, host) else _by_runtime
    return probe(device, host, side)


@dataclass(frozen=True)
class _OwnKernels:
    """Copies by a GPU's own kernels, as plans make them.

    Attributes:
      device, host: full names.
    """

    device: str
    host: str

    def there(self, value: tf.Tensor) -> tf.Tensor:
        """A value in pinned memory of the host, where a copy leaves it."""

        def crossing(value: tf.Tensor) -> tf.Tensor:
            with tf.device(self.host):
                return tf.identity(_copy(TO_HOST, value, self.device))

        return tf.function(crossing, autograph=False)(value)

    def trips(self, count: int) -> Callable[[tf.Tensor], tf.Tensor]:
        """To the host and back, so many times."""

        def crossing(value: tf.Tensor) -> tf.Tensor:
            for _ in range(count):
                value = _copy(FROM_HOST, _copy(TO_HOST, value, self.device), self.device)
            with tf.device(self.device):
                return value[-1]

        return crossing

    def copies(self, op: str, count: int) -> Callable[[tf.Tensor], tf.Tensor]:
        """So many copies one way, one after the other."""

        def crossing(value: tf.Tensor) -> tf.Tensor:
            made: list[tf.Tensor] = []
            for _ in range(count):
                with tf.control_dependencies(made[-1:]):
                    made.append(_copy(op, value, self.device))
            with tf.device(self.host if op == TO_HOST else self.device):
                return tf.add_n([one[-1] for one in made])

        return crossing

    def latency(self, small: tf.Tensor) -> float:
        """Seconds of a copy of next to nothing."""
        trip, more = _fastest(self.trips(1), small), _fastest(self.trips(_TRIPS), small)
        return max((more - trip) / (2 * (_TRIPS - 1)), _LEAST)

    def seconds(self, op: str, value: tf.Tensor) -> tuple[float, float]:
        """Of a copy, and of what a call takes besides."""
        one, all_of_them = (_fastest(self.copies(op, count), value) for count in (1, _COPIES))
        each = (all_of_them - one) / (_COPIES - 1)
        return each, max(one - each, 0.0)


def _by_kernels(device: str, host: str, side: int) -> Link:
    """What a copy takes beside its bytes goes away in the difference to a small one."""
    own = _OwnKernels(device, host)

    def both_ways(here: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
        return own.copies(TO_HOST, _COPIES)(here) + own.copies(FROM_HOST, _COPIES)(there)

    with tf.device(device):
        small, large = tf.zeros([1]), tf.zeros([side * side])
    values = {TO_HOST: (small, large), FROM_HOST: (own.there(small), own.there(large))}
    latency = own.latency(small)
    seconds, calls = {}, {}
    for op, (less, more) in values.items():
        each, calls[op] = own.seconds(op, more)
        seconds[op] = max(each - own.seconds(op, less)[0], _LEAST)
    moving = {op: _COPIES * (latency + found) for op, found in seconds.items()}
    together = max(_fastest(both_ways, large, values[FROM_HOST][1]) - max(calls.values()), _LEAST)
    nbytes = 4 * (side * side - 1)
    return Link(
        to_host=nbytes / seconds[TO_HOST],
        from_host=nbytes / seconds[FROM_HOST],
        latency=latency,
        duplex=min(2.0, max(1.0, sum(moving.values()) / together)),
        contention=0.0,  # engines of their own copy, which take hardly any of its memory's rate
    )


def _copy(op: str, value: tf.Tensor, device: str) -> tf.Tensor:
    """A node of an op that has no Python function."""
    graph = tf.compat.v1.get_default_graph()
    attrs = {"T": tf.compat.v1.AttrValue(type=value.dtype.as_datatype_enum)}
    with tf.device(device):
        made = graph.create_op(op, [value], [value.dtype], name="copy", attrs=attrs)
        return made.outputs[0]


def _computing(device: str, side: int) -> Callable[[tf.Tensor], tf.Tensor]:
    def computing(value: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            square = tf.reshape(value, [side, side])
            for _ in range(_PRODUCTS):
                square = tf.matmul(square, square)
            return square[-1, -1]

    return computing


def _by_runtime(device: str, host: str, side: int) -> Link:
    def there(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            last = tf.raw_ops.Snapshot(input=value)[-1]
        with tf.device(device):
            return tf.raw_ops.Snapshot(input=last)

    def there_and_back(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            away = tf.raw_ops.Snapshot(input=value)
        with tf.device(device):
            return tf.raw_ops.Snapshot(input=away)[-1]

    def both(value: tf.Tensor) -> tf.Tensor:
        return there_and_back(value) + _computing(device, side)(value)

    def both_ways(value: tf.Tensor) -> tf.Tensor:
        with tf.device(host):
            away = tf.raw_ops.Snapshot(input=value)
        with tf.device(device), tf.control_dependencies([away]):
            other = tf.raw_ops.Snapshot(input=tf.maximum(value, 1.0))
            last = tf.raw_ops.Snapshot(input=away)[-1]
        with tf.device(host):
            return last + tf.raw_ops.Snapshot(input=other)[-1]

    with tf.device(device):
        small, large = tf.zeros([1]), tf.zeros([side * side])
    nbytes = 4 * side * side
    latency = _fastest(there, small) / 2
    out, round_trip = _fastest(there, large), _fastest(there_and_back, large)
    crossing = _fastest(both_ways, large) - out
    alone, together = _fastest(_computing(device, side), large), _fastest(both, large)
    copying = max(round_trip - 2 * latency, _LEAST)
    return Link(
        to_host=nbytes / max(out - 2 * latency, _LEAST),
        from_host=nbytes / max(round_trip - out, _LEAST),
        latency=latency,
        duplex=min(2.0, max(1.0, round_trip / max(crossing, _LEAST))),
        contention=min(1.0, max(0.0, (together - max(alone, round_trip)) / copying)),
    )


def _fastest(function: Callable[..., tf.Tensor], *values: tf.Tensor) -> float:
    """Seconds of a call; the least, for whatever else runs only adds to it."""
    compiled, seconds = tf.function(function, autograph=False), []
    for _ in range(_PROBES + 1):
        start = time.perf_counter()
        compiled(*values).numpy()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
