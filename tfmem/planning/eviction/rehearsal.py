"""A step rehearsed under a limit: what to give up, and when, so that an order fits.

The nodes run in a given order while the bytes in use are counted. Whenever the next node would go
over the limit, the resident value with the least *score* leaves the device: it is dropped and
computed again before its next use, or sent to the host and fetched back, whichever is cheaper. What
a node needs and is not there is brought back first, with whatever that needs in turn. What comes
out is a schedule, and every schedule keeps the limit by construction.

    score = seconds to bring the value back / (bytes * seconds until its next use)

The seconds to bring a value back are those of its node and of every node that would have to run
again only for its sake; `spread` adds a part of those that are to run again next to it, which
keeps the stretches between kept values short. What has to be kept longer for its sake is taken off
below the line. This is the rule of dynamic tensor rematerialization
(M. Kirisame et al., arXiv 2006.09616), used ahead of time, when the next use is known.

A value that is gone is *pledged* if a later node needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tfmem.planning.eviction.problem import NEVER, Stage
from tfmem.planning.eviction.queue import Crowd, Groups

_MOST_REPEATS = 3
"""Clones for each node of the order before a limit counts as out of reach: thrashing has no end."""

_LONGEST_DELAY = 32
"""Most nodes for which a storage that cannot leave is not looked at: looking at hundreds of them at
every node took most of the time on graphs of 20,000."""


class Step(NamedTuple):
    """One run of a node: the first if `turn` is 0, else the `turn`-th time again."""

    node: int
    turn: int


@dataclass(slots=True)
class Crossing:
    """How one value crosses between device and host.

    Attributes:
      pace: index of the step that waits for the copy to the host to land; -1 if none does.
      fetches: the ways back: index of the step that each is wanted by, and the steps that read it.
    """

    pace: int = -1
    fetches: list[tuple[int, list[Step]]] = field(default_factory=list)


@dataclass(frozen=True)
class Knobs:
    """How scores are made; which setting is best depends on the graph, so several are tried.

    Attributes:
      spread: part of the neighbours' seconds that counts for a value.
      patience: exponent of the time until the next use.
      swap: factor on the seconds of copies: 1 if none of them were hidden behind computation, 0 if
        all were; infinite to swap nothing.
      recompute: whether values may be computed again.
    """

    spread: float = 0.0
    patience: float = 1.0
    swap: float = NEVER
    recompute: bool = True


@dataclass(slots=True)
class Schedule:
    """What a rehearsal decided.

    Attributes:
      steps: every run of a node on the device, in order.
      clones: the steps that read each step of turn 1 or more.
      crossings: the values (step, output) that cross between device and host.
      seconds: time of a step of the function, by the rehearsal's own clock.
      peak_bytes: most bytes in use, what stays for the whole step included.
      timeline: bytes in use while each step runs.
    """

    steps: list[Step] = field(default_factory=list)
    clones: dict[Step, list[Step]] = field(default_factory=dict)
    crossings: dict[tuple[Step, int], Crossing] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    timeline: list[int] = field(default_factory=list)


class Unreachable(Exception):
    """The limit cannot be kept: nothing is left that may leave, or all is computed many times."""


class Rehearsal:
    """One run of a stage's order under a limit."""

    def __init__(self, stage: Stage, limit: int, knobs: Knobs) -> None:
        self.stage, self.limit, self.knobs = stage, limit, knobs
        count = len(stage.size)
        self.made = Schedule()
        self.alive = stage.fixed_bytes
        self.now = 0.0
        self.position, self.clock = 0, 0.0
        self.link = 0.0  # when the way to the host is free
        self.here = [root < 0 for root in stage.root]  # of each value
        self.turn = [0] * len(stage.form.names)
        self.crossing: list[Crossing | None] = [None] * count  # of storages with a host copy
        self.born = [0] * count  # index of the step that made each storage
        self.born_at = [0.0] * count
        self.next = [0] * count  # index into the uses of each storage
        self.pot = [NEVER] * count  # when values that are gone will need each storage
        self.locked = [0] * count
        self.group = [0] * count  # of each storage that is pledged; see `crowd.Groups`
        self.groups = Groups()
        self.left = _MOST_REPEATS * len(stage.order)  # runs of clones until it is given up
        self.turns = [0] * len(stage.form.names)  # how often each node was run again
        # Storages that could not leave: when to look again, when that was, and which; a heap.
        self.postponed: list[tuple[int, int, int]] = []
        self.delay = [0] * count  # nodes for which each was postponed last
        self.crowd = Crowd(knobs.patience)
        for node, is_away in enumerate(stage.away):
            if is_away:
                for value in range(stage.form.first[node], stage.form.first[node + 1]):
                    if stage.root[value] >= 0 and stage.uses[value]:
                        self._crossing_of(value)
        for root, is_sent in enumerate(stage.is_sent):
            if is_sent:
                self._crossing_of(root)

    def run(self) -> Schedule:
        """The schedule.

        Raises:
          Unreachable: the limit cannot be kept.
        """
        self.made.peak_bytes = self.alive
        for position, node in enumerate(self.stage.order):
            self.position = position
            while self.postponed and self.postponed[0][0] <= position:
                self._offer_again(heappop(self.postponed)[2])
            reads = self._storages_read(node)
            for root in reads:
                self.locked[root] += 1
            if any(not self.here[value] for value in self.stage.form.reads[node]):
                self._bring(node)
            self._run(node, 0)
            for root in reads:
                self.locked[root] -= 1
                self._advance(root)
        self.made.seconds = self.now
        return self.made

    # Running nodes.

    def _run(self, node: int, turn: int) -> None:
        stage, form = self.stage, self.stage.form
        outputs = [v for v in range(form.first[node], form.first[node + 1]) if stage.root[v] == v]
        taken, giver = self._taken_over(node, turn)
        new = sum(stage.size[v] for v in outputs if v != taken)
        self._make_room(new + stage.scratch[node])
        self.alive += new
        self.made.timeline.append(self.alive + stage.scratch[node])
        self.made.peak_bytes = max(self.made.peak_bytes, self.made.timeline[-1])
        step = Step(node, turn)
        for value in dict.fromkeys(form.reads[node]):
            self._note_use(value, step)
        self.made.steps.append(step)
        self.turn[node] = turn
        self.now += stage.seconds[node]
        if giver >= 0:
            self.alive -= stage.size[giver] - stage.size[taken]
            self._vanish(giver)
        for value in range(form.first[node], form.first[node + 1]):
            self.here[value] = True
        for root in outputs:
            self._appear(root)

    def _taken_over(self, node: int, turn: int) -> tuple[int, int]:
        """The output that takes over an input's storage, and that storage; -1 if none does."""
        stage, form = self.stage, self.stage.form
        for value in form.takes[node]:
            root = stage.root[value]
            if root >= 0 and self.locked[root] == 1 and not stage.stays[root]:
                uses, i = stage.uses[root], self.next[root]
                is_last = i >= len(uses) or (not turn and uses[i:] == [self.position])
                if is_last and self.pot[root] == NEVER and self.crossing[root] is None:
                    return form.taker[node], root
        return -1, -1

    def _note_use(self, value: int, step: Step) -> None:
        """Records what a step reads: the original, a clone, or a copy that came back."""
        stage = self.stage
        root, producer = stage.root[value], stage.form.producer[value]
        turn = self.turn[producer]
        if turn and root >= 0:
            self.made.clones.setdefault(Step(producer, turn), []).append(step)
        crossing = self.crossing[value] if root == value else None
        if crossing is not None and crossing.fetches and self.born[value] < 0:
            crossing.fetches[-1][1].append(step)

    def _appear(self, root: int) -> None:
        """A storage was just made by the last step."""
        self.born[root] = len(self.made.steps) - 1
        self.born_at[root] = self.now
        self.group[root] = self.delay[root] = 0
        if not self.stage.is_sent[root]:
            self.crossing[root] = None
        self._offer(root)

    def _offer(self, root: int) -> None:
        """Lets a resident storage be chosen to leave, or frees it if nothing needs it."""
        stage = self.stage
        due = self._due(root)
        is_sending = stage.is_sent[root] and self.born[root] >= 0
        if due == NEVER and not (stage.stays[root] or self.locked[root] or is_sending):
            self._leave(root)
            return
        if stage.size[root] < self.crowd.smallest or stage.stays[root]:
            return
        price = self._rough_price(root)
        if price < NEVER:
            self.crowd.put(root, stage.size[root], due, price)

    def _advance(self, root: int) -> None:
        """A node of the order that reads a storage has run."""
        uses = self.stage.uses[root]
        i = self.next[root]
        while i < len(uses) and uses[i] <= self.position:
            i += 1
        self.next[root] = i
        self._offer_again(root)

    def _due(self, root: int) -> float:
        """When a storage is needed next, by the clock of the order without repetitions."""
        uses, i = self.stage.uses[root], self.next[root]
        direct = float(self.stage.began[uses[i]]) if i < len(uses) else NEVER
        return min(direct, self.pot[root])

    def _storages_read(self, node: int) -> list[int]:
        root = self.stage.root
        return list(dict.fromkeys(root[v] for v in self.stage.form.reads[node] if root[v] >= 0))

    # Leaving.

    def _make_room(self, nbytes: int) -> None:
        while self.alive + nbytes > self.limit:
            root, is_sent = self._choose()
            if is_sent:
                self._send(root)
            self._drop(root)

    def _choose(self) -> tuple[int, bool]:
        """The storage with the least score, and whether it must be copied to the host first.

        Scores in the crowd are lower bounds; they are brought up to date as they are looked at.
        """
        self.clock = float(self.stage.began[self.position])
        while True:
            root, score = self.crowd.least(self.clock)
            if root < 0:
                if self._refresh() or self._recall():
                    continue
                raise Unreachable(self.stage.form.names[self.stage.order[self.position]])
            if self.locked[root]:
                self.crowd.take(root)
                continue
            exact, is_sent = self._score(root)
            if exact == NEVER:
                self._postpone(root)
            elif exact > score * 1.01:
                self.crowd.rescore(root, exact, self.clock)
            else:
                return root, is_sent

    def _postpone(self, root: int) -> None:
        """A storage that cannot leave now is looked at again later, each time after longer."""
        self.crowd.take(root)
        self.delay[root] = min(max(1, 2 * self.delay[root]), _LONGEST_DELAY)
        heappush(self.postponed, (self.position + self.delay[root], self.position, root))

    def _recall(self) -> bool:
        """Looks at once at all that were postponed at an earlier node; whether there were any."""
        early = [item for item in self.postponed if item[1] < self.position]
        self.postponed = [item for item in self.postponed if item[1] == self.position]
        heapify(self.postponed)
        for _, _, root in early:
            self._offer_again(root)
        return bool(early)

    def _refresh(self) -> bool:
        """Frees what was kept for a use that has passed; whether there was any."""
        before = self.alive
        for root in [root for root, pot in enumerate(self.pot) if pot < self.clock]:
            self._settle(root)
        return self.alive < before

    def _rough_price(self, root: int) -> float:
        """A lower bound of the seconds that bringing a storage back takes."""
        stage, knobs = self.stage, self.knobs
        if self.crossing[root] is not None:
            return 0.0
        node = stage.form.producer[root]
        again = stage.seconds[node] if stage.may_repeat[node] and knobs.recompute else NEVER
        return min(again, self._copies(root) * knobs.swap) if knobs.swap < NEVER else again

    def _copies(self, root: int) -> float:
        """Seconds of the copies that still have to be made if a storage leaves."""
        costs, nbytes = self.stage.costs, self.stage.size[root]
        seconds = costs.latency + nbytes / costs.from_host
        if self.crossing[root] is None:
            seconds += costs.latency + nbytes / costs.to_host
        return seconds

    def _score(self, root: int) -> tuple[float, bool]:
        """The score of a storage that may leave, and whether it is by way of the host."""
        relief = self.stage.size[root] * self._wait(self._due(root))
        has_copy = self.crossing[root] is not None
        hidden = min(1.0, self.knobs.swap)
        if has_copy and self.born[root] < 0:
            return hidden * self._copies(root) / relief, False
        again = NEVER
        if self.knobs.recompute and not has_copy:
            seconds, longer = self._again(root)
            again = seconds / (relief - longer) if longer < relief else NEVER
        is_young = len(self.made.steps) - self.born[root] < 2
        if is_young or (self.knobs.swap == NEVER and not has_copy):
            return again, False
        back = hidden * self._copies(root) if self._due(root) < NEVER else 0.0
        swap = (back + max(0.0, self._landing(root) - self.now)) / relief
        return min(again, swap), swap < again

    def _wait(self, due: float) -> float:
        """How much a time until the next use counts for."""
        return float(max(1e-9, min(due, self.stage.began[-1]) - self.clock) ** self.knobs.patience)

    def _again(self, root: int) -> tuple[float, float]:
        """What it costs to compute a storage again.

        Returns:
          Seconds of the nodes that would run again only for it, with the neighbours' part; and the
          bytes times waiting time of what has to be kept longer for it. Infinite if it cannot be.
        """
        stage, reads = self.stage, self.stage.form.reads
        due = self._due(root)
        wait = self._wait(due)
        seconds = longer = 0.0
        groups: set[int] = set()
        todo, seen = [root], {root}
        while todo:
            node = stage.form.producer[todo.pop()]
            if not stage.may_repeat[node] or len(seen) > 256:
                return NEVER, NEVER
            seconds += stage.seconds[node]
            for nbytes, updated in stage.contents[node]:
                longer += nbytes * max(0.0, wait - self._wait(updated))
            for source in {stage.root[value] for value in reads[node]} - seen - {-1}:
                seen.add(source)
                if self.here[source]:
                    longer += stage.size[source] * max(0.0, wait - self._wait(self._due(source)))
                elif self.crossing[source] is not None:
                    seconds += self._copies(source) * min(1.0, self.knobs.swap)
                elif self.group[source]:
                    groups.add(self.groups.find(self.group[source]))
                else:
                    todo.append(source)
        if self.knobs.spread:
            groups |= {self.groups.find(self.group[child]) for child in self._pledged(root)}
            seconds += self.knobs.spread * sum(self.groups.seconds[group] for group in groups)
        return seconds, longer

    def _pledged(self, root: int) -> list[int]:
        """Storages that are made from this one, are gone, and will be needed."""
        stage, form = self.stage, self.stage.form
        found = []
        for reader in stage.readers[root]:
            for value in range(form.first[reader], form.first[reader + 1]):
                child = stage.root[value]
                if child >= 0 and child != root and self.group[child] and not self.here[child]:
                    found.append(child)
        return found

    def _landing(self, root: int) -> float:
        costs = self.stage.costs
        begin = max(self.link, self.born_at[root])
        return begin + costs.latency + self.stage.size[root] / costs.to_host

    def _send(self, root: int) -> None:
        crossing = self._crossing_of(root)
        crossing.pace = len(self.made.steps) - 1
        self.link = self._landing(root)
        self.now = max(self.now, self.link)

    def _crossing_of(self, root: int) -> Crossing:
        kept = self.crossing[root]
        if kept is None:
            node = self.stage.form.producer[root]
            step = Step(node, self.turn[node])
            kept = self.crossing[root] = Crossing()
            self.made.crossings[step, root - self.stage.form.first[node]] = kept
        return kept

    def _drop(self, root: int) -> None:
        """A storage leaves; what it was made from may be needed to bring it back."""
        stage = self.stage
        due = self._due(root)
        self._leave(root)
        if self.crossing[root] is not None or due == NEVER:
            return
        self.group[root] = self.groups.add(stage.seconds[stage.form.producer[root]])
        todo = [(root, due)]
        while todo:
            lost, due = todo.pop()
            self._join(lost)
            for value in stage.form.reads[stage.form.producer[lost]]:
                source = stage.root[value]
                if source < 0 or due >= self.pot[source]:
                    continue
                self.pot[source] = due
                if self.here[source]:
                    self._offer_again(source)
                elif self.crossing[source] is None:
                    if not self.group[source]:
                        seconds = stage.seconds[stage.form.producer[source]]
                        self.group[source] = self.groups.add(seconds)
                    todo.append((source, due))

    def _offer_again(self, root: int) -> None:
        if self.here[root] and not self.locked[root]:
            self._offer(root)

    def _join(self, root: int) -> None:
        """Puts a storage that is pledged into one group with its neighbours that are."""
        stage, form = self.stage, self.stage.form
        sources = (stage.root[value] for value in form.reads[form.producer[root]])
        lost = [s for s in sources if s >= 0 and self.group[s] and not self.here[s]]
        for other in (*lost, *self._pledged(root)):
            self.groups.join(self.group[root], self.group[other])

    def _leave(self, root: int) -> None:
        self.alive -= self.stage.size[root]
        self._vanish(root)

    def _vanish(self, root: int) -> None:
        self.crowd.take(root)
        for value in self.stage.members[root]:
            self.here[value] = False

    # Coming back.

    def _bring(self, node: int) -> None:
        """Brings back what a node reads, and before that what that needs."""
        todo = self._missing(node)
        for kind, subject in todo:
            for root in self._storages_read(subject) if kind == "again" else ():
                self.locked[root] += 1
        for kind, subject in todo:
            if kind == "fetch":
                self._fetch(subject)
                continue
            self._clear(subject)
            self.left -= 1
            if self.left < 0:
                raise Unreachable(self.stage.form.names[node])
            self.turns[subject] += 1
            self._run(subject, self.turns[subject])
            for root in self._storages_read(subject):
                self.locked[root] -= 1
                self._settle(root)

    def _missing(self, node: int) -> list[tuple[str, int]]:
        """Fetches of storages and runs of nodes, in the order in which they can be done."""
        stage, form = self.stage, self.stage.form
        found: dict[tuple[str, int], None] = {}
        todo = [("need", v) for v in reversed(form.reads[node]) if not self.here[v]]
        while todo:
            what, subject = todo.pop()
            if what != "need":
                found.setdefault((what, subject))
                continue
            producer = form.producer[subject]
            if self.here[subject] or ("again", producer) in found:
                continue
            if stage.root[subject] == subject and self.crossing[subject] is not None:
                found.setdefault(("fetch", subject))
                continue
            todo.append(("again", producer))
            todo += [("need", v) for v in reversed(form.reads[producer]) if not self.here[v]]
        return list(found)

    def _clear(self, node: int) -> None:
        """What is left of a node's earlier outputs goes: the clone makes all of them anew."""
        form, stage = self.stage.form, self.stage
        for value in range(form.first[node], form.first[node + 1]):
            if stage.root[value] == value and self.here[value]:
                self._leave(value)

    def _fetch(self, root: int) -> None:
        stage = self.stage
        self._make_room(stage.size[root])
        self.alive += stage.size[root]
        self.made.peak_bytes = max(self.made.peak_bytes, self.alive)
        crossing = self._crossing_of(root)
        crossing.fetches.append((len(self.made.steps), []))
        self.now += min(1.0, self.knobs.swap) * (
            stage.costs.latency + stage.size[root] / stage.costs.from_host
        )
        self.born[root] = -1
        self.here[root] = True
        self._offer_again(root)

    def _settle(self, root: int) -> None:
        """A clone that read a storage has run: does anything else that is gone need it?"""
        self.pot[root] = min(map(self._due, self._pledged(root)), default=NEVER)
        self._offer_again(root)


def rehearse(stage: Stage, limit: int, knobs: Knobs) -> Schedule:
    """Rehearses one step under a limit.

    Raises:
      Unreachable: the limit cannot be kept.
    """
    return Rehearsal(stage, limit, knobs).run()
