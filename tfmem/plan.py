"""What planning decides and passes carry out: plain, frozen, hashable data.

A plan speaks of the nodes of the captured graph by name. `Recomputation` names its clones by a rule
(`clone_name`), so that an eviction may speak of a clone that does not exist yet.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tfmem.errors import Error
from tfmem.graph.ir import Value
from tfmem.units import format_bytes


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A node computed again for some of its users.

    Where the clone runs is said by the plan's order, which names clones like any other node.

    Attributes:
      node: the node that is computed again.
      users: nodes, clones among them, that read the clone instead of the original.
      index: 1 for the first clone of this node, 2 for the second, and so on.
    """

    node: str
    users: tuple[str, ...]
    index: int = 1

    @property
    def clone(self) -> str:
        """Name of the clone."""
        return clone_name(self.node, self.index)


def clone_name(node: str, index: int) -> str:
    """Name of the `index`-th clone of a node; its own for 0."""
    return f"{node}/clone{index}" if index else node


@dataclass(frozen=True, slots=True)
class Fetch:
    """One copy from the host to the device, shared by neighbouring uses.

    Attributes:
      users: nodes on the device that read this copy, in execution order.
      trigger: node of the device after which the copy starts; "" lets it start with the step.
    """

    users: tuple[str, ...]
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How one value crosses between device and host.

    An *eviction* is a transfer of a value made on the device that comes back: it is copied out as
    soon as it is made, its near users read the original, those named in `fetches` the copies. A
    placement fetches values made on the host (a variable that is read) and sends values made on the
    device to nodes of the host (a gradient).

    Attributes:
      value: the value that crosses.
      fetches: its copies to the device.
      pace: node of the device that waits until the copy to the host has landed; "" for none.
    """

    value: Value
    fetches: tuple[Fetch, ...] = ()
    pace: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """A variable that lives on the host.

    Attributes:
      variable: name of the variable's input node.
      moved: nodes that run on the host beside it: its reads, its update, what only they need.
      transfers: how values cross between these nodes and the device.
    """

    variable: str
    moved: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()


def moved_with(placements: Iterable[Placement]) -> frozenset[str]:
    """The nodes that run on the host with placed variables."""
    return frozenset(name for placement in placements for name in placement.moved)


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The plan of a function that a loop or a branch runs.

    Attributes:
      node: the While, If, Case or call node.
      branch: which of its functions.
      plan: of that function's graph; its peak counts the function's inputs.
    """

    node: str
    branch: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to a graph, and what that is predicted to give.

    Attributes:
      order: every node of the graph and every clone, in the execution order to be enforced on the
        device; () enforces none.
      window: how many neighbouring nodes of the order may be in flight out of order; 1 enforces
        the order strictly.
      recomputations: what is computed again.
      evictions: values that leave the device between two uses.
      placements: variables that live on the host.
      bodies: plans of the functions that loops and branches run.
      device: the device whose memory is scarce.
      host: the device that takes what leaves it; "" if there is none.
      budget: bytes asked for, or None.
      peak_bytes: predicted peak on the device, everything counted.
      baseline_peak_bytes: the same for the original function.
      step_seconds: predicted time of a step.
      baseline_step_seconds: the same for the original function.
      host_bytes: most bytes held on the host at any moment.
      reason: if the plan changes nothing, why; else "".
      others: plans for further devices, each made for the graph that those before it leave.
    """

    order: tuple[str, ...] = ()
    window: int = 1
    recomputations: tuple[Recomputation, ...] = ()
    evictions: tuple[Transfer, ...] = ()
    placements: tuple[Placement, ...] = ()
    bodies: tuple[BodyPlan, ...] = ()
    device: str = ""
    host: str = ""
    budget: int | None = None
    peak_bytes: int = 0
    baseline_peak_bytes: int = 0
    step_seconds: float = 0.0
    baseline_step_seconds: float = 0.0
    host_bytes: int = 0
    reason: str = ""
    others: tuple[Plan, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether carrying the plan out would leave the graph as it is."""
        changes = (self.order, self.recomputations, self.evictions, self.placements, self.bodies)
        return not any(changes) and all(plan.is_noop for plan in self.others)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every value that crosses between device and host, evictions first."""
        placed = (transfer for placement in self.placements for transfer in placement.transfers)
        return (*self.evictions, *placed)

    def summary(self) -> str:
        """What the plan does and predicts, a few lines of text for each device."""
        return "\n".join(plan._summary() for plan in (self, *self.others))

    def _summary(self) -> str:
        if replace(self, others=()).is_noop:
            where = f" on {self.device}" if self.others else ""
            return f"nothing changed{where}: {self.reason or 'no technique applies'}"
        return "\n".join(
            [
                f"predicted peak   {format_bytes(self.peak_bytes)} on {self.device}, "
                f"originally {format_bytes(self.baseline_peak_bytes)}",
                f"predicted time   {self.step_seconds:.3g} s a step, "
                f"originally {self.baseline_step_seconds:.3g} s",
                f"host memory      {format_bytes(self.host_bytes)}",
                f"budget           {format_bytes(self.budget) if self.budget else 'none'}",
                f"techniques       {self.techniques}",
            ]
        )

    @property
    def techniques(self) -> str:
        """What is done, a line of text."""
        swapped = len(self.evictions)
        placed = len(self.placements)
        order = f"{len(self.order)} nodes ordered, window {self.window}" if self.order else ""
        done = [
            order,
            f"{len(self.recomputations)} recomputations" if self.recomputations else "",
            f"{swapped} values swapped" if swapped else "",
            f"{placed} variables on {self.host}" if placed else "",
            *(f"in {one.node}: {one.plan.techniques}" for one in self.bodies),
        ]
        return ", ".join(filter(None, done))

    def difference(self, other: Plan) -> dict[str, tuple[Any, Any]]:
        """What differs, by field: what this plan has, and what the other one has.

        Of an order only how many nodes stand elsewhere is told; of what is recomputed, swapped and
        placed, what only one of the two has.
        """
        found: dict[str, tuple[Any, Any]] = {}
        for name in (field.name for field in dataclasses.fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if name == "order":
                moved = sum(a != b for a, b in zip(mine, theirs, strict=False))
                mine, theirs = f"{len(mine)} nodes", f"{len(theirs)} nodes, {moved} elsewhere"
            elif isinstance(mine, tuple):
                common = set(mine) & set(theirs)
                mine = [str(one) for one in mine if one not in common]
                theirs = [str(one) for one in theirs if one not in common]
            found[name] = mine, theirs
        return found

    def to_json(self) -> str:
        """The plan as JSON text; `from_json` reads it back equal."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
          tfmem.Error: the text is no plan.
        """
        try:
            return _plan(json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise Error(
                f"not a plan in JSON ({type(error).__name__}: {error}); "
                "pass text that Plan.to_json() of the same tfmem version wrote"
            ) from error


_MOST = 2**63 - 1
"""Most bytes, or nodes, or clones of one, that a plan may speak of."""

_MADE_OF = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "Value": (list,),
    "Plan": (dict,),
}
"""What JSON has for a field, by its type; for the others a list."""


def _fields(kind: type[Any], found: Any) -> dict[str, Any]:
    """What JSON has of a dataclass: each field, of its type, and no other."""
    if not isinstance(found, dict):
        raise TypeError(f"{kind.__name__} is {_shown(found)}")
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if found.keys() != types.keys():
        others = sorted(found.keys() ^ types.keys())
        raise ValueError(f"{kind.__name__} lacks, or should not have, {_shown(others)}")
    for name, one in found.items():
        is_amount = isinstance(one, (int, float)) and not 0 <= one <= _MOST
        if type(one) not in _MADE_OF.get(types[name], (list,)) or is_amount:
            raise TypeError(f"{name} of {kind.__name__} is {_shown(one)}")
        if isinstance(one, str):
            one.encode()
    return found


def _shown(found: Any) -> str:
    text = ascii(found)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _names(found: list[Any]) -> tuple[str, ...]:
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"{_shown(name)} is no name of a node")
        name.encode()
    return tuple(found)


def _plan(found: Any) -> Plan:
    fields = _fields(Plan, found)
    return Plan(
        **fields
        | {
            "order": _names(fields["order"]),
            "recomputations": tuple(map(_recomputation, fields["recomputations"])),
            "evictions": tuple(map(_transfer, fields["evictions"])),
            "placements": tuple(map(_placement, fields["placements"])),
            "bodies": tuple(map(_body, fields["bodies"])),
            "others": tuple(map(_plan, fields["others"])),
        }
    )


def _body(found: Any) -> BodyPlan:
    fields = _fields(BodyPlan, found)
    return BodyPlan(fields["node"], fields["branch"], _plan(fields["plan"]))


def _recomputation(found: Any) -> Recomputation:
    fields = _fields(Recomputation, found)
    return Recomputation(fields["node"], _names(fields["users"]), fields["index"])


def _fetch(found: Any) -> Fetch:
    fields = _fields(Fetch, found)
    return Fetch(_names(fields["users"]), fields["trigger"])


def _transfer(found: Any) -> Transfer:
    fields = _fields(Transfer, found)
    node, index = fields["value"]
    if type(index) is not int or not 0 <= index <= _MOST:
        raise TypeError(f"{_shown(index)} is no output of a node")
    (name,) = _names([node])
    return Transfer(Value(name, index), tuple(map(_fetch, fields["fetches"])), fields["pace"])


def _placement(found: Any) -> Placement:
    fields = _fields(Placement, found)
    transfers = tuple(map(_transfer, fields["transfers"]))
    return Placement(fields["variable"], _names(fields["moved"]), transfers)
