"""Buffers that are counted by who holds them: tensors, and the lists that refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfmem.costs.types import HANDLE_BYTES, SWITCH
from tfmem.graph.scalars import Bounded

NOWHERE = -1
"""In the place of a buffer's number: what takes no memory here, or belongs to somebody else."""


class Tensor:
    """A tensor: the number of its buffer; its value, or bounds of it, where it is one number."""

    __slots__ = ("buffer", "number")

    def __init__(self, buffer: int, number: int | None = None) -> None:
        self.buffer, self.number = buffer, number


class List:
    """A list or an optional: the buffer of its handle, its elements, how many hold it.

    One that `grows` may have any number of elements: what is set somewhere in it is another one.
    """

    __slots__ = ("buffer", "grows", "items", "refs")

    def __init__(self, buffer: int, items: Iterable[Thing], grows: bool = False) -> None:
        self.buffer, self.items, self.refs, self.grows = buffer, list(items), 1, grows


Thing = Tensor | List | None
"""What a value is: None for a resource, and for an element that was never set."""


class Holdings:
    """All buffers, by number, and in order what is asked for and given back.

    Attributes:
      granularity: each buffer takes a multiple of so many bytes.
      refs: how many hold each buffer.
      sizes: bytes of each.
      events: (number of a buffer, its bytes), or 0 or `SWITCH` in their place where it ends.
      lasting: buffers of constants: they are there in every step from the first on.
    """

    def __init__(self, granularity: int) -> None:
        self.granularity = granularity
        self.refs: list[int] = []
        self.sizes: list[int] = []
        self.events: list[tuple[int, int]] = []
        self.lasting: set[int] = set()
        self._adopted: set[int] = set()

    def make(self, nbytes: int) -> int:
        """A new buffer with one holder; `NOWHERE` if it takes nothing."""
        if not nbytes:
            return NOWHERE
        self.sizes.append(-(-nbytes // self.granularity) * self.granularity)
        self.refs.append(1)
        self.events.append((len(self.refs) - 1, self.sizes[-1]))
        return len(self.refs) - 1

    def make_list(self, items: Iterable[Thing], grows: bool = False) -> List:
        """A new list with one holder, which holds its elements."""
        made = List(self.make(HANDLE_BYTES), items, grows)
        for item in made.items:
            self.hold(item)
        return made

    def adopt(self, buffer: int) -> None:
        """A variable of the caller's takes a buffer over: when it ends here, that is what it is."""
        self._adopted.add(buffer)

    def hold(self, thing: Thing) -> None:
        """One more holds a thing."""
        if isinstance(thing, List):
            thing.refs += 1
        elif thing is not None and thing.buffer >= 0:
            self.refs[thing.buffer] += 1

    def drop(self, thing: Thing) -> None:
        """One less holds a thing: it ends with the last."""
        if isinstance(thing, List):
            thing.refs -= 1
            if not thing.refs:
                for item in thing.items:
                    self.drop(item)
                self._release(thing.buffer)
        elif thing is not None:
            self._release(thing.buffer)

    def _release(self, buffer: int) -> None:
        if buffer < 0:
            return
        self.refs[buffer] -= 1
        if not self.refs[buffer]:
            self.events.append((buffer, SWITCH if buffer in self._adopted else 0))

    def is_shared(self, thing: Thing) -> bool:
        """Whether more than one holds a thing, or somebody else does."""
        if isinstance(thing, List):
            return thing.refs > 1
        return thing is None or thing.buffer < 0 or self.refs[thing.buffer] > 1


def reached(things: Iterable[Thing]) -> list[int]:
    """Numbers of the buffers of some things and of what they refer to, each once."""
    found: dict[int, None] = {}
    todo: list[Thing] = list(things)
    while todo:
        thing = todo.pop()
        if thing is not None and thing.buffer >= 0:
            found[thing.buffer] = None
        if isinstance(thing, List):
            todo += thing.items
    return list(found)


def number(thing: Thing) -> int | None:
    """The value of a tensor of one number; None where it is not known."""
    found = most(thing)
    return None if isinstance(found, Bounded) else found


def most(thing: Thing) -> int | None:
    """The value of a tensor of one number, or its bounds; None where neither is known."""
    return thing.number if isinstance(thing, Tensor) else None


def numbers(things: Sequence[Thing]) -> list[int | None]:
    """The values of tensors, or their bounds."""
    return [most(thing) for thing in things]
