"""What a step, or a function within it, asks of the allocator, in order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tfmem.costs.types import SWITCH, Asked, Costs, Requests
from tfmem.graph.compact import Compact
from tfmem.simulation.liveness import Lifetimes
from tfmem.simulation.program import Program


def requests(
    lifetimes: Lifetimes,
    workspace: Sequence[tuple[int, ...]],
    within: Mapping[int, Asked],
    *,
    held: Container[int] = (),
    kept: Container[int] = (),
) -> Iterator[Requests]:
    """What one step asks for: for inputs that are not there yet, then at each position.

    A node's workspace is asked for after its outputs, but what comes before a 0 among its buffers,
    and given back before its inputs. A node that runs functions has its outputs from them, and they
    give back those of its inputs that it is the last to read. A stash is asked for in its parts.

    Args:
      lifetimes: when each buffer begins and ends.
      workspace: bytes of the buffers that each node of the order holds while it runs.
      within: what functions ask for, by the position of the node that runs them.
      held: buffers that are there before the step.
      kept: buffers that stay after it.
    """
    return _Step(lifetimes, workspace, within, held, kept).run()


class _Step:
    """The requests of one step, as they are collected."""

    def __init__(
        self,
        lifetimes: Lifetimes,
        workspace: Sequence[tuple[int, ...]],
        within: Mapping[int, Asked],
        held: Container[int],
        kept: Container[int],
    ) -> None:
        self.lifetimes, self.workspace, self.within = lifetimes, workspace, within
        self.sizes: list[int] = lifetimes.nbytes.tolist()
        count = max(1, len(lifetimes.program.order))
        self.begins: list[list[int]] = [[] for _ in range(count)]
        self.ends: list[list[int]] = [[] for _ in range(count)]
        self.inputs: list[int] = []
        renewed = {after for before, after in lifetimes.variables if before != after}
        there = {before for before, _ in lifetimes.variables}
        for b in on_device(lifetimes):
            if b not in held:
                is_there = lifetimes.is_input(b) and (b in there or b not in renewed)
                (self.inputs if is_there else self.begins[lifetimes.start[b]]).append(b)
            if b not in kept:
                self.ends[lifetimes.end[b]].append(b)
        self.parts = parts_of(lifetimes)
        self.gone: set[int] = set()  # what a branch has not made, or has given back
        self.beyond = len(self.sizes) + sum(len(sizes) for _, sizes in self.parts.values())
        self.adopted = renewed - {after for old, after in lifetimes.variables if self.sizes[old]}

    def run(self) -> Iterator[Requests]:
        """Those of inputs that are not there yet, then those of each position."""
        yield tuple(request for b in self.inputs for request in self._asked(b))
        for position, (starting, ending) in enumerate(zip(self.begins, self.ends, strict=True)):
            made: list[tuple[int, int]] = []
            done: set[int] = set()
            if position in self.within:
                made += self._functions(position, set(ending), done)
                if self.within[position].is_exact:
                    self._miss((b for b in starting if b in self.parts), done)
            before, after = self._kernel(position)
            made += before
            missing = done | self.gone
            made += [one for b in starting for one in self._asked(b) if one[0] not in missing]
            made += after
            made += [(number, 0) for number, _ in (*before, *after)]
            for b in ending:
                end = SWITCH if b in self.adopted else 0
                left = self.gone if b in starting else missing
                made += [(one, end) for one, _ in self._asked(b) if one not in left]
            yield tuple(made)

    def _kernel(self, position: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What a node's kernel asks for before its outputs, and after them."""
        sizes = self.workspace[position] if position < len(self.workspace) else ()
        if position in self.within:
            return [], []
        if sizes and self._is_lent(position):
            sizes = sizes[1:]
        before, after = around_outputs(sizes)
        first = self.beyond + len(before)
        return list(enumerate(before, self.beyond)), list(enumerate(after, first))

    def _is_lent(self, position: int) -> bool:
        """Whether a node's kernel takes an input that ends with it as its first scratch."""
        program = self.lifetimes.program
        value = program.graph.lent.get(program.order[position])
        buffer = -1 if value is None else self.lifetimes.buffers[value]
        return buffer >= 0 and buffer in self.ends[position]

    def _asked(self, b: int) -> list[tuple[int, int]]:
        if b not in self.parts:
            return [(b, self.sizes[b])]
        first, sizes = self.parts[b]
        return list(enumerate(sizes, first))

    def _functions(self, position: int, ending: set[int], done: set[int]) -> Requests:
        """What functions ask for; what they leave, or have given back, is then done."""
        asked, form = self.within[position], self.lifetimes.program.graph
        first = form.first[self.lifetimes.program.order[position]]
        number = {one: self._number(first + output, part) for one, output, part in asked.made}
        number = {one: known for one, known in number.items() if known >= 0}
        done.update(number.values())
        for one, name, output, part, _ in asked.given:
            value = _value(form, name, output)
            is_last = value >= 0 and self.lifetimes.buffers[value] in ending
            number[one] = self._number(value, part) if is_last else -1
        made, left = [], {}
        for one, nbytes in asked.events:
            known = number.get(one)
            if known is None:
                made.append((self.beyond + one, nbytes))
                left[one] = nbytes > 0
            elif known >= 0 and not (nbytes <= 0 and known in self.gone):
                made.append((known, nbytes))
                done.add(known)
                if asked.is_exact:
                    (self.gone.discard if nbytes > 0 else self.gone.add)(known)
        made += [(self.beyond + one, 0) for one, is_left in left.items() if is_left]
        return tuple(made)

    def _miss(self, stashes: Iterable[int], done: Container[int]) -> None:
        parts = (one for b in stashes for one, _ in self._asked(b))
        self.gone.update(one for one in parts if one not in done)

    def _number(self, value: int, part: int) -> int:
        """The number of a value's buffer, or of a part of it; -1 if there is none here."""
        b = self.lifetimes.buffers[value] if value >= 0 else -1
        if b < 0 or b not in self.parts:
            return b if b >= 0 and self.sizes[b] and not part else -1
        first, sizes = self.parts[b]
        return first + part if part < len(sizes) else -1


def around_outputs(sizes: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Of the buffers that a kernel holds, those that it makes before its outputs, and after them.

    A 0 stands for the outputs, which come first where there is none.
    """
    at = sizes.index(0) if 0 in sizes else 0
    return sizes[:at], [nbytes for nbytes in sizes[at:] if nbytes]


def parts_of(lifetimes: Lifetimes) -> dict[int, tuple[int, list[int]]]:
    """Of each buffer that is a stash: the number of its first part, the sizes of all."""
    found, first = {}, len(lifetimes.nbytes)
    stashes = lifetimes.program.graph.stashes
    for b, owner in enumerate(lifetimes.owner.tolist()) if stashes else ():
        if owner in stashes:
            sizes = [nbytes for nbytes, number in stashes[owner] for _ in range(number)]
            found[b] = first, sizes
            first += len(sizes)
    return found


def numbers_of(buffer: int, parts: Mapping[int, tuple[int, Sequence[int]]]) -> Sequence[int]:
    """The numbers under which a buffer is asked for: its own, or those of its parts."""
    first, sizes = parts.get(buffer, (buffer, (0,)))
    return range(first, first + len(sizes))


def _value(form: Compact, name: str, output: int) -> int:
    """The number of a node's output, or of its stash; -1 if the graph has no such node."""
    node = form.number.get(name)
    return -1 if node is None else form.first[node] + output


def ending(asked: Asked, lifetimes: Lifetimes, position: int) -> frozenset[int]:
    """The buffers given to functions, by their numbers there, that end where these run."""
    form = lifetimes.program.graph
    found = set()
    for one, name, output, *_ in asked.given:
        value = _value(form, name, output)
        buffer = lifetimes.buffers[value] if value >= 0 else -1
        if buffer >= 0 and lifetimes.end[buffer] == position:
            found.add(one)
    return frozenset(found)


def most_of(asked: Asked, given: Container[int]) -> int:
    """Most bytes that functions take at a time more than was there before, without padding.

    Args:
      asked: what they ask for.
      given: the buffers that were there before and end where they can.
    """
    sizes: dict[int, int] = {}
    of_given = {one: nbytes for one, _, _, _, nbytes in asked.given}
    now = most = 0
    for one, nbytes in asked.events:
        if nbytes > 0:
            now += nbytes
            sizes[one] = nbytes
            most = max(most, now)
        elif one in sizes:
            now -= sizes[one]
        elif one in given:
            now -= of_given[one]
    return most


def with_adopted(asked: Iterable[tuple[int, int]], adopters: Container[int]) -> Requests:
    """Requests with the bytes of what is adopted, below 0, in the place of `SWITCH`.

    Args:
      asked: what a step asks for.
      adopters: bytes of variables that adopt buffers as large.
    """
    made, requested = list[tuple[int, int]](), dict[int, int]()
    for number, nbytes in asked:
        if nbytes > 0:
            requested[number] = nbytes
        elif nbytes == SWITCH:
            adopted = requested.get(number, 0)
            nbytes = -adopted if adopted in adopters else 0
        made.append((number, nbytes))
    return tuple(made)


def on_device(lifetimes: Lifetimes) -> list[int]:
    """The buffers that the device's allocator sees, by whose turn it is."""
    found: list[int] = np.flatnonzero(~lifetimes.on_host & (lifetimes.nbytes > 0)).tolist()
    turn = lifetimes.turn
    return found if turn is None else sorted(found, key=turn.tolist().__getitem__)


def functions(
    steps: Program, costs: Costs, lifetimes: Lifetimes, branch_of: Mapping[str, int] | None = None
) -> dict[int, Asked]:
    """What functions ask for, by the position of the node that runs them.

    Args:
      steps, costs, lifetimes: of the step.
      branch_of: the branch that nodes take, by name; of others that which takes most.
    """
    if not costs.requests:
        return {}
    names = (steps.graph.priced[node] for node in steps.order)
    return {
        position: _as_given(name, costs, lifetimes, position, (branch_of or {}).get(name))
        for position, name in enumerate(names)
        if name in costs.requests
    }


def _as_given(
    name: str, costs: Costs, lifetimes: Lifetimes, position: int, branch: int | None
) -> Asked:
    """What a node's functions ask for where they run: others may hold what they end elsewhere."""
    asked = costs.requests[name]
    if costs.asking is None:
        return asked
    if branch is not None:
        asked = costs.asking(name, frozenset(), branch)
    ended = {one for one, nbytes in asked.events if nbytes <= 0}
    held = ended - ending(asked, lifetimes, position)
    kept = frozenset((node, at, part) for one, node, at, part, _ in asked.given if one in held)
    return costs.asking(name, kept, branch) if kept else asked


def staying(steps: Program, costs: Costs) -> list[int]:
    """Bytes of each buffer, but for values of the graph, that is there throughout every step."""
    names = (steps.graph.priced[node] for node in steps.order)
    asked = (costs.requests[name] for name in names if name in costs.requests)
    return [*costs.copied, *(nbytes for one in asked for nbytes in one.stays)]


def kernel_buffers(steps: Program, costs: Costs) -> list[tuple[int, ...]]:
    """Bytes of the buffers that each node's kernel holds, with a 0 where outputs are made."""
    known = costs.kernel_buffers
    return [known.get(steps.graph.priced[node], (0,)) for node in steps.order]


def scratch(steps: Program, costs: Costs, lifetimes: Lifetimes) -> list[int]:
    """Bytes that each node of an order holds while it runs, above its outputs.

    What functions take depends on which of the node's inputs end with it; it is less than nothing
    where inputs end before the outputs are made.
    """
    found = [*map(sum, kernel_buffers(steps, costs))]
    for position, asked in functions(steps, costs, lifetimes).items():
        most = most_of(asked, ending(asked, lifetimes, position))
        found[position] = most - _outputs(steps.graph, costs, steps.order[position])
    return found


def _outputs(form: Compact, costs: Costs, node: int) -> int:
    """Bytes of a node's outputs and stashes as allocated."""
    return sum(map(costs.allocated, form.nbytes[form.first[node] : form.first[node + 1]]))
