"""A step rehearsed under a memory limit: what to evict, and when, so that an order fits.

The nodes run in a given order while the bytes in use are counted. Whenever the next node would go
over the limit, the resident storage with the least score is evicted: dropped, and computed again
before its next use, or sent to the host and fetched back. This is dynamic tensor rematerialization
(M. Kirisame et al., arXiv 2006.09616) ahead of time, with the future known, and with a host.

For each node of the order, the same letters in the code:

A. *Bring back.* What the node reads and is evicted is fetched, or computed again; before that what
   it is computed from is brought back. All of it is pinned until it has been read. A clone runs
   like any node: it needs room (B) and appears (C) within the A of the node that wants it.
B. *Make room.* While the node's outputs and scratch do not fit, the storage with the least score
   (`scores`) is evicted. Scores in the queue were lower bounds when they were put there; the least
   is made exact before it counts. One that cannot be evicted now is postponed.
C. *Run.* The outputs appear; one may take an input's storage over.
D. *Let go.* A storage that nothing will need is freed; the others may be evicted again.

By hand: every value takes 4 bytes, every node a second, the limit is 8, d has no output::

    order               in use   resident         what happens
    a = MatMul()             4   a
    b = MatMul(a)            8   a b
    c = MatMul(b)            8   b c              B: a is evicted, for b is pinned
    d = MatMul(c, a)         8   c a/clone1       A: a is computed again, as a/clone1

The score of a at c: 1 s to bring it back / (4 bytes * 1 s until d) = 0.25.

What comes out is a schedule whose live bytes keep the limit during every run. What the allocator
adds (padding, holes) is not counted here: candidates are judged by its replay.

Bounds: a schedule that is to be faster than another one is given up once it is as far behind the
plain order as that one at its end; its clones are at most `MOST_CLONES` times the nodes of the
order, else the limit counts as out of reach. Each storage that is looked at (evicted, raised,
postponed or pinned) takes one vectorised pass over the queue; its exact score looks at
`scores.MOST_SOURCES` storages and at the readers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.queue import EvictionQueue, Postponed
from tfmem.planning.eviction.schedule import HostCopy, Run, Schedule
from tfmem.planning.eviction.scores import Scores, Scoring
from tfmem.planning.eviction.state import FETCHED, State

MOST_CLONES = 3
"""Clones for each node of the order before a limit counts as out of reach: thrashing has no end."""

EXACT = 1.01
"""Score over its bound in the queue up to which the bound counts as exact. Nearer to 1 finds the
least score more exactly and looks at more; at 1 itself rounding would raise a bound for ever."""

SLOWER = 1e-12
"""Part of its seconds by which a schedule has to be faster than another to count as faster: sums of
the same seconds differ by less."""


class Unreachable(Exception):
    """The limit cannot be kept: nothing is left that may leave, or all is computed many times."""


class Slower(Exception):
    """The limit may be kept, but not in less than the seconds asked for."""


def rehearse(
    problem: EvictionProblem, limit: float, scoring: Scoring, seconds: float = math.inf
) -> Schedule:
    """Rehearses one step under a memory limit.

    Args:
      problem: the graph, its order, its prices.
      limit: most bytes in use at a time; infinite for none.
      scoring: how victims are chosen.
      seconds: those that it has to take less than, by the schedule's own clock.

    Raises:
      Unreachable: the limit cannot be kept.
      Slower: it takes as long or longer.
    """
    return _Rehearsal(problem, limit, scoring, seconds).run()


class _Rehearsal:
    """One run of a problem's order under a limit."""

    def __init__(
        self, problem: EvictionProblem, limit: float, scoring: Scoring, seconds: float
    ) -> None:
        self.problem, self.form, self.limit = problem, problem.form, limit
        self.most_behind = seconds * (1 - SLOWER) - problem.begins[-1]
        self.state = State(problem)
        self.storages, self.is_here = self.state.storages, self.state.is_here
        self.scores = Scores(self.state, scoring)
        self.queue, self.postponed = EvictionQueue(scoring.staleness_exponent), Postponed()
        self.clone_here = [0] * len(self.form.names)  # whose values are here
        self.clone_count = [0] * len(self.form.names)  # so far
        self.clones_left = MOST_CLONES * len(problem.order)
        self.made = Schedule(peak_bytes=self.state.in_use)
        for node, is_on_host in enumerate(problem.on_host):
            for value in problem.outputs(node) if is_on_host else ():
                if problem.storage[value] >= 0 and problem.uses[value]:
                    self._copy_of(value)
        for storage, is_sent in enumerate(problem.is_sent):
            if is_sent:
                self._copy_of(storage)

    def run(self) -> Schedule:
        """The schedule."""
        state, problem = self.state, self.problem
        for position, node in enumerate(problem.order):
            state.position, state.due_clock = position, problem.begins[position]
            self._offer_all(self.postponed.due(position))
            reads = problem.storages_read[node]
            self._pin(reads)
            if not all(self.is_here[value] for value in self.form.reads[node]):
                self._bring_back(node)  # A
            self._run(node, 0)  # B, C
            for storage in reads:
                self._let_go(storage)  # D
        self.made.seconds = state.now
        return self.made

    # A. Bring back.

    def _bring_back(self, node: int) -> None:
        todo = self._missing(node)
        for what, subject in todo:
            if what == "run":
                self._pin(self.problem.storages_read[subject])
        for what, subject in todo:
            if what == "run":
                self._recompute(subject)
            else:
                self._fetch(subject)

    def _missing(self, node: int) -> list[tuple[str, int]]:
        """What brings a node's inputs back, in the order in which it can be done.

        Returns:
          ("fetch", storage) or ("run", node), each once.
        """
        form = self.form
        found: dict[tuple[str, int], None] = {}
        todo = [("need", v) for v in reversed(form.reads[node]) if not self.is_here[v]]
        while todo:
            what, subject = todo.pop()
            if what == "run":
                found.setdefault((what, subject))
                continue
            producer = form.producer[subject]
            if self.is_here[subject] or ("run", producer) in found:
                continue
            if self.problem.storage[subject] == subject and self.storages[subject].copy:
                found.setdefault(("fetch", subject))
                continue
            todo.append(("run", producer))
            todo += [("need", v) for v in reversed(form.reads[producer]) if not self.is_here[v]]
        return list(found)

    def _fetch(self, storage: int) -> None:
        state, size = self.state, self.problem.size[storage]
        self._make_room(size)
        state.in_use += size
        self.made.peak_bytes = max(self.made.peak_bytes, state.in_use)
        self._copy_of(storage).fetches.append((state.runs, []))
        state.now += self.scores.exposed * state.seconds_from_host(storage)
        self.storages[storage].made_by = FETCHED
        self.is_here[storage] = True
        self._offer_if_free(storage)

    def _recompute(self, node: int) -> None:
        for storage in self.problem.storages_made[node]:
            if self.is_here[storage]:
                self._free(storage)  # the clone makes all of them anew
        self.clones_left -= 1
        if self.clones_left < 0:
            raise Unreachable(self.form.names[node])
        self.clone_count[node] += 1
        self._run(node, self.clone_count[node])
        for storage in self.problem.storages_read[node]:
            self.storages[storage].pins -= 1
            self._settle(storage)

    # B. Make room.

    def _make_room(self, nbytes: int) -> None:
        while self.state.in_use + nbytes > self.limit:
            storage, is_sent = self._victim()
            if is_sent:
                self._send(storage)
            self._evict(storage)

    def _victim(self) -> tuple[int, bool]:
        """The storage with the least score, and whether it is sent to the host first."""
        state = self.state
        while True:
            storage, bound = self.queue.least(state.due_clock)
            if storage < 0:
                if self._free_what_is_over() or self._offer_all(
                    self.postponed.recall(state.position)
                ):
                    continue
                raise Unreachable(self.form.names[self.problem.order[state.position]])
            one = self.storages[storage]
            if one.pins:
                self.queue.take(storage)
                continue
            score, is_sent = self.scores.score(storage)
            if score == math.inf:
                self.queue.take(storage)
                one.delay = self.postponed.put(storage, state.position, one.delay)
            elif score > bound * EXACT:
                self.queue.raise_to(storage, score, state.due_clock)
            else:
                return storage, is_sent

    def _free_what_is_over(self) -> bool:
        """Frees what was kept for a clone whose time has passed; whether there was any."""
        before = self.state.in_use
        over = [
            s for s, one in enumerate(self.storages) if one.needed_for_clone < self.state.due_clock
        ]
        for storage in over:
            self._settle(storage)
        return self.state.in_use < before

    def _send(self, storage: int) -> None:
        self._copy_of(storage).pace = self.state.runs - 1
        self.state.link_free = self.state.landing(storage)
        self.state.now = max(self.state.now, self.state.link_free)

    def _evict(self, storage: int) -> None:
        """Evicts a storage. What it is computed from is needed when it is, unless it has a copy."""
        one, due = self.storages[storage], self.state.due(storage)
        self._free(storage)
        if one.copy is not None or due == math.inf:
            return
        self._await(storage)
        todo = [(storage, due)]
        while todo:
            evicted, due = todo.pop()
            for source in self.problem.storages_read[self.form.producer[evicted]]:
                kept = self.storages[source]
                if due >= kept.needed_for_clone:
                    continue
                kept.needed_for_clone = due
                if self.is_here[source]:
                    self._offer_if_free(source)
                elif kept.copy is None:
                    if not kept.component:
                        self._await(source)
                    todo.append((source, due))

    def _await(self, storage: int) -> None:
        """Makes what will be computed again one component with its neighbours that will, too."""
        problem, state = self.problem, self.state
        node = self.form.producer[storage]
        own = self.storages[storage].component = state.components.add(problem.seconds[node])
        sources = filter(state.is_pending, problem.storages_read[node])
        for other in (*sources, *state.evicted_children(storage)):
            state.components.join(own, self.storages[other].component)

    # C. Run.

    def _run(self, node: int, clone: int) -> None:
        problem, state, made = self.problem, self.state, self.made
        if state.now - state.due_clock >= self.most_behind:  # it never catches up
            raise Slower
        outputs = problem.storages_made[node]
        taken, giver = self._taken_over(node, clone)
        new = sum(problem.size[value] for value in outputs if value != taken)
        self._make_room(new + problem.scratch[node])
        state.in_use += new
        made.timeline.append(state.in_use + problem.scratch[node])
        made.peak_bytes = max(made.peak_bytes, made.timeline[-1])
        run = Run(node, clone)
        for value in dict.fromkeys(self.form.reads[node]):
            self._note_read(value, run)
        made.runs.append(run)
        state.runs += 1
        self.clone_here[node] = clone
        state.now += problem.seconds[node]
        if giver >= 0:
            state.in_use -= problem.size[giver] - problem.size[taken]
            self._vanish(giver)
        for value in problem.outputs(node):
            self.is_here[value] = True
        for storage in outputs:
            self._appear(storage)

    def _taken_over(self, node: int, clone: int) -> tuple[int, int]:
        """The output that takes over an input's storage, and that storage; -1 if none does."""
        for value in self.form.takes[node]:
            storage = self.problem.storage[value]
            if storage < 0 or self.problem.stays[storage]:
                continue
            one, uses = self.storages[storage], self.problem.uses[storage]
            here = [self.state.position] if not clone else []
            is_last = uses[one.next_use :] in ([], here)
            if one.pins == 1 and is_last and one.needed_for_clone == math.inf and one.copy is None:
                return self.form.taker[node], storage
        return -1, -1

    def _note_read(self, value: int, run: Run) -> None:
        """Records what a run reads: the original, a clone, or a copy that came back."""
        storage, producer = self.problem.storage[value], self.form.producer[value]
        clone = self.clone_here[producer]
        if clone and storage >= 0:
            self.made.clones.setdefault(Run(producer, clone), []).append(run)
        one = self.storages[value]
        if storage == value and one.copy and one.copy.fetches and one.made_by == FETCHED:
            one.copy.fetches[-1][1].append(run)

    def _appear(self, storage: int) -> None:
        """A storage was just made by the last run."""
        one = self.storages[storage]
        one.made_by, one.made_at = self.state.runs - 1, self.state.now
        one.component = one.delay = 0
        if not self.problem.is_sent[storage]:
            one.copy = None
        self._offer(storage)

    # D. Let go.

    def _let_go(self, storage: int) -> None:
        """A node of the order that reads a storage has run."""
        one, uses = self.storages[storage], self.problem.uses[storage]
        one.pins -= 1
        while one.next_use < len(uses) and uses[one.next_use] <= self.state.position:
            one.next_use += 1
        self._offer_if_free(storage)

    def _settle(self, storage: int) -> None:
        """A clone that reads a storage has run: does anything else that is evicted need it?"""
        children = self.state.evicted_children(storage)
        self.storages[storage].needed_for_clone = min(
            map(self.state.due, children), default=math.inf
        )
        self._offer_if_free(storage)

    def _offer_all(self, storages: Iterable[int]) -> bool:
        """Offers storages; whether there were any."""
        found = list(storages)
        for storage in found:
            self._offer_if_free(storage)
        return bool(found)

    def _offer_if_free(self, storage: int) -> None:
        if self.is_here[storage] and not self.storages[storage].pins:
            self._offer(storage)

    def _offer(self, storage: int) -> None:
        """Lets a resident storage be chosen to leave, or frees it if nothing needs it."""
        problem, one, due = self.problem, self.storages[storage], self.state.due(storage)
        is_being_sent = problem.is_sent[storage] and one.made_by != FETCHED
        if due == math.inf and not (problem.stays[storage] or one.pins or is_being_sent):
            self._free(storage)
        elif problem.size[storage] and not (problem.stays[storage] or storage in problem.fixed):
            seconds = self.scores.least_seconds(storage)
            if seconds < math.inf:
                self.queue.put(storage, problem.size[storage], due, seconds)

    # What all of them do.

    def _pin(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self.storages[storage].pins += 1

    def _free(self, storage: int) -> None:
        self.state.in_use -= self.problem.size[storage]
        self._vanish(storage)

    def _vanish(self, storage: int) -> None:
        self.queue.take(storage)
        for value in self.problem.values[storage]:
            self.is_here[value] = False

    def _copy_of(self, storage: int) -> HostCopy:
        """A storage's copy on the host, noted in the schedule when it is first asked for."""
        one = self.storages[storage]
        if one.copy is None:
            node = self.form.producer[storage]
            run = Run(node, self.clone_here[node])
            one.copy = self.made.copies[run, storage - self.form.first[node]] = HostCopy()
        return one.copy
