"""What ops do with lists and optionals: which buffers they make, and which they only refer to.

Source: TensorFlow's ``list_kernels.h``, ``list_kernels.cc``, ``optional_ops.cc``, version 2.21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tfmem.simulation.holdings import Holdings, List, Tensor, Thing, most, number


@dataclass(frozen=True)
class Call:
    """One node that makes or reads lists or optionals.

    Attributes:
      holdings: where buffers are made.
      things: its inputs.
      is_sole: whether nobody else holds its first input, which may then be changed in place.
      nbytes: of its inputs.
      sizes: of its outputs.
      count: how many elements it makes of a tensor; None where that is not known.
    """

    holdings: Holdings
    things: Sequence[Thing]
    is_sole: bool
    nbytes: Sequence[int]
    sizes: Sequence[int]
    count: int | None

    def list(self, index: int = 0) -> List | None:
        """An input that is a list."""
        thing = self.things[index] if index < len(self.things) else None
        return thing if isinstance(thing, List) else None

    def items(self, index: int = 0) -> Sequence[Thing]:
        """The elements of an input that is a list."""
        found = self.list(index)
        return found.items if found else ()

    def fresh(self, output: int) -> Tensor:
        """A new tensor for an output."""
        return Tensor(self.holdings.make(self.sizes[output]))

    def changed(self) -> List:
        """The first input, to be changed: itself if nobody else holds it, else a copy."""
        found = self.list()
        if found is not None and self.is_sole:
            self.holdings.hold(found)
            return found
        return self.holdings.make_list(self.items(), found is not None and found.grows)

    def found(self, item: Thing, output: int) -> Thing:
        """An element as an output; zeros in the place of one that was never set."""
        if item is None:
            return self.fresh(output) if self.sizes[output] else None
        self.holdings.hold(item)
        return item

    def rows(self) -> Iterator[Thing]:
        """A copy of each row of the first input."""
        total, count = self.nbytes[0], self.count or 1
        for _ in range(count):
            yield Tensor(self.holdings.make(-(-total // count)))


def _none(call: Call) -> list[Thing]:
    return [call.holdings.make_list(())]


def _reserve(call: Call) -> list[Thing]:
    count = most(call.things[1])
    return [call.holdings.make_list([None] * max(0, count or 0), grows=not count)]


def _optional(call: Call) -> list[Thing]:
    return [call.holdings.make_list(call.things)]


def _value(call: Call) -> list[Thing]:
    items = call.items()
    found = [items[i] if i < len(items) else None for i in range(len(call.sizes))]
    return [call.found(item, output) for output, item in enumerate(found)]


def _has_value(call: Call) -> list[Thing]:
    made = call.fresh(0)
    made.number = None if call.list() is None else int(bool(call.items()))
    return [made]


def _length(call: Call) -> list[Thing]:
    made = call.fresh(0)
    made.number = None if call.list() is None else len(call.items())
    return [made]


def _push(call: Call) -> list[Thing]:
    made = call.changed()
    call.holdings.hold(call.things[1])
    made.items.append(call.things[1])
    return [made]


def _pop(call: Call) -> list[Thing]:
    made = call.changed()
    item = made.items.pop() if made.items else None
    if item is None:
        return [made, call.found(None, 1)]
    return [made, item]  # what the list held of it, the output holds now


def _set(call: Call) -> list[Thing]:
    made, index, item = call.changed(), number(call.things[1]), call.things[2]
    if index is None and None in made.items:
        index = made.items.index(None)
    elif index is None:
        takes_the_last = bool(made.items) and not made.grows
        index = len(made.items) - takes_the_last
    while len(made.items) <= index:
        made.items.append(None)
    call.holdings.hold(item)
    call.holdings.drop(made.items[index])
    made.items[index] = item
    return [made]


def _get(call: Call) -> list[Thing]:
    items, index = call.items(), number(call.things[1])
    if index is None:
        index = next((i for i in range(len(items)) if items[i] is not None), 0)
    return [call.found(items[index] if 0 <= index < len(items) else None, 0)]


def _from_tensor(call: Call) -> list[Thing]:
    rows = list(call.rows())
    made = call.holdings.make_list(())
    made.items = rows
    return [made]


def _scatter_into(call: Call) -> list[Thing]:
    """Copies of the rows of the second input, in the place of elements."""
    made, total, count = call.changed(), call.nbytes[1], call.count or 1
    for index in range(count):
        if index >= len(made.items):
            made.items.append(None)
        call.holdings.drop(made.items[index])
        made.items[index] = Tensor(call.holdings.make(-(-total // count)))
    return [made]


def _resize(call: Call) -> list[Thing]:
    made, size = call.changed(), most(call.things[1])
    while size is not None and len(made.items) > max(0, size):
        call.holdings.drop(made.items.pop())
    made.items += [None] * ((size or 0) - len(made.items))
    return [made]


def _joined(call: Call) -> list[Thing]:
    return [call.holdings.make_list([*call.items(0), *call.items(1)])]


OPS: dict[str, Callable[[Call], list[Thing]]] = {
    "EmptyTensorList": _none,
    "OptionalNone": _none,
    "TensorListReserve": _reserve,
    "OptionalFromValue": _optional,
    "OptionalGetValue": _value,
    "OptionalHasValue": _has_value,
    "TensorListLength": _length,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListSetItem": _set,
    "TensorListGetItem": _get,
    "TensorListFromTensor": _from_tensor,
    "TensorListSplit": _from_tensor,
    "TensorListScatter": _from_tensor,
    "TensorListScatterV2": _from_tensor,
    "TensorListScatterIntoExistingList": _scatter_into,
    "TensorListResize": _resize,
    "TensorListConcatLists": _joined,
}
"""Ops whose outputs refer to their inputs or to new buffers. What reads lists into tensors
(`STACKING_OPS`, `TensorListGather`) makes outputs like any other op."""

ELEMENTWISE = ("AddN", "ZerosLike")
"""Ops that take lists, too, element by element."""


def elementwise(call: Call) -> list[Thing]:
    """A list with a new element for each of the inputs'; a sum of one is that one itself."""
    found = [thing for thing in call.things if isinstance(thing, List)]
    return [_like(call.holdings, found, is_sum=len(call.things) > 1)]


def _like(holdings: Holdings, found: Sequence[List], *, is_sum: bool) -> List:
    made = holdings.make_list(())
    for index in range(max((len(one.items) for one in found), default=0)):
        items = [one.items[index] for one in found if index < len(one.items)]
        set_items = [item for item in items if item is not None]
        inner = [item for item in set_items if isinstance(item, List)]
        tensors = [item for item in set_items if isinstance(item, Tensor)]
        if is_sum and len(set_items) <= 1:
            holdings.hold(set_items[0] if set_items else None)
            made.items += set_items or [None]
        elif inner:
            made.items.append(_like(holdings, inner, is_sum=is_sum))
        elif tensors and tensors[0].buffer >= 0:
            made.items.append(Tensor(holdings.make(holdings.sizes[tensors[0].buffer])))
        else:
            made.items.append(tensors[0] if tensors else None)
    return made
