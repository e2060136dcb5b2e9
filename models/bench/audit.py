"""One step of a plan, request by request: what its kernels asked of the allocator, and what not.

    python -m models.bench audit MODEL --budget=100MiB [--limit=100MiB]

MODEL is one of the zoo or a case of the wild suite (of Keras 2 with TF_USE_LEGACY_KERAS=1 in the
environment). The third step is traced. Buffers that were asked for are aligned with those that the
replay asks for, by their bytes and order; what is in one of the two only is told by op.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tfmem
from models.bench.table import table
from tfmem.costs.types import GRAIN
from tfmem.functions import rewrite
from tfmem.functions.placed import distinct
from tfmem.planning.nested import charge
from tfmem.runtime import devices, heap, memory
from tfmem.simulation.simulate import asked
from tfmem.units import format_bytes

SHARE = 0.6
"""Of the original's predicted peak: the budget, where none is given."""

LARGE = 2**15
"""Bytes from which on a buffer decides whether a step has room."""

_STEPS_BEFORE = 2
"""Steps before the one that is traced, in which memory is still to get and padding settles."""


@dataclass(frozen=True)
class Request:
    """A buffer that a step asked for, or that the replay does.

    Attributes:
      node: whose kernel asks; "" for none.
      op: of the node.
      nbytes: in whole grains.
      stays: whether it was still held when the step had ended.
    """

    node: str
    op: str
    nbytes: int
    stays: bool = False


@dataclass(frozen=True)
class Audit:
    """A step that was traced, beside the step that was foreseen.

    Attributes:
      foreseen: what the replay asks for, in order.
      real: what was asked for, in order.
      predicted: the peak that was predicted, in bytes.
      measured: the most that was in use in the step.
      order: the nodes in the order in which they run, for moments.
    """

    foreseen: tuple[Request, ...]
    real: tuple[Request, ...]
    predicted: int
    measured: int
    order: tuple[str, ...]

    def aligned(self, least: int = 0) -> tuple[int, list[Request], list[Request]]:
        """How many came as foreseen, those that were not, those that were but did not come.

        Args:
          least: bytes from which on they count.
        """
        foreseen = [one for one in self.foreseen if one.nbytes >= least]
        real = [one for one in self.real if one.nbytes >= least]
        sizes = [one.nbytes for one in foreseen], [one.nbytes for one in real]
        matcher = difflib.SequenceMatcher(None, *sizes, autojunk=False)
        count, unforeseen, absent = 0, [], []
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                count += b - a
            else:
                absent += foreseen[a:b]
                unforeseen += real[c:d]
        return count, unforeseen, absent

    def text(self) -> str:
        """What differs, by op, the most bytes first."""
        lines = [
            f"peak: {format_bytes(self.measured)} measured, "
            f"{format_bytes(self.predicted)} predicted",
        ]
        for name, least in (("all", 0), (f"of {LARGE // 2**10} KiB and more", LARGE)):
            count, _, _ = self.aligned(least)
            whole = sum(one.nbytes >= least for one in self.real)
            lines.append(f"asked {name}: {count} of {whole} as foreseen")
        _, unforeseen, absent = self.aligned()
        header = ["op", "buffers", "largest", "sum", "first at", "stay"]
        lines += ["", "not foreseen", table(header, list(self._by_op(unforeseen)))]
        lines += ["", "foreseen, not asked for", table(header, list(self._by_op(absent)))]
        return "\n".join(lines)

    def _by_op(self, requests: Iterable[Request]) -> Iterator[list[str]]:
        place = {name: number for number, name in enumerate(self.order)}
        groups: dict[str, list[Request]] = {}
        for one in requests:
            groups.setdefault(one.op, []).append(one)
        sums = {op: sum(one.nbytes for one in group) for op, group in groups.items()}
        for op in sorted(groups, key=lambda op: -sums[op]):
            group = groups[op]
            moments = [place[one.node] for one in group if one.node in place]
            yield [
                op or "(none)",
                str(len(group)),
                format_bytes(max(one.nbytes for one in group)),
                format_bytes(sums[op]),
                f"{min(moments)} of {len(place)}" if moments else "-",
                str(sum(one.stays for one in group)),
            ]


def audit(function: Any, batches: Iterator[Sequence[Any]], budget: int | None) -> Audit:
    """Traces a step of a function under a budget.

    Args:
      function: to be optimised.
      batches: the arguments of each step.
      budget: in bytes; None for `SHARE` of what the original takes.

    Raises:
      tfmem.Error: the budget cannot be met, or the function changes nothing.
    """
    batch = next(batches)
    if budget is None:
        budget = int(SHARE * tfmem.optimize(function).plan(*batch).baseline_peak_bytes)
    step = tfmem.optimize(function, budget=budget)
    for _ in range(_STEPS_BEFORE):
        step(*batch)
        batch = next(batches)
    device = devices.scarce()
    memory.reset_peak(device)
    with heap.traced(device) as events:
        step(*batch)
    measured = memory.memory_info(device)[1]
    return _audit(step, events, measured)


def _audit(step: tfmem.Optimized, events: Sequence[heap.HeapEvent], measured: int) -> Audit:
    entry = distinct(step._known)[-1]
    one = entry.planned[0]
    charged = charge(one.graph, one.costs, entry.captured.bodies, one.plan.bodies, one.plan.device)
    ops = {node.name: node.op for node in rewrite.rewritten_graph(entry).nodes}
    foreseen = tuple(
        Request(node, ops.get(node, ""), nbytes)
        for node, nbytes in asked(one.graph, charged, one.plan)
    )
    return Audit(foreseen, tuple(_real(events, ops)), one.plan.peak_bytes, measured, one.plan.order)


def _real(events: Sequence[heap.HeapEvent], ops: Mapping[str, str]) -> Iterator[Request]:
    last = {event.address: number for number, event in enumerate(events) if not event.is_request}
    for number, event in enumerate(events):
        if event.is_request:
            node = event.node.partition(":")[0]
            nbytes = -(-event.requested // GRAIN) * GRAIN
            stays = last.get(event.address, -1) < number
            yield Request(node, ops.get(node, ""), nbytes, stays)
